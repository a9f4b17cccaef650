"""`python -m tools.pages.statements`: write which commit stated which claim, from the history of this checkout.

Every commit that changed the questions is asked for its claims, in a process of its own that runs its code; commits
that the table knows already are not asked again. Commit claims first, then this table.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments.statements import TABLE, key
from sinkscope.files import write_text

ROOT = Path(__file__).parents[2]
QUESTIONS = ("sinkscope/experiments",)
RECORDS = ("results/experiments", "sinkscope/experiments/records")
# In the code of a commit, whose rules may be older than their `asked`.
LIST = """
import json, sys
from sinkscope.experiments.questions import QUESTIONS
def asked(rule):
    names = [name for name in ("margin", "limit", "tolerance") if hasattr(rule, name)]
    return float(getattr(rule, names[0]))
own = getattr(QUESTIONS, "own", QUESTIONS)
def told(a):
    return a.claim.statement, asked(a.claim.rule), getattr(a.effect, "refusal", "")
claims = {n: [told(a) for a in q.assertions] for n, q in own.items()}
json.dump(claims, sys.stdout)
"""

Claims = dict[str, dict[str, list[str]]]  # question -> key -> commit and date


def page(known: dict[str, Any] | None = None) -> str:
    """The table, a line for each question; `known` is the one before."""
    table: dict[str, Any] = known or {"upto": "", "claims": {}, "runs": {}}
    claims: Claims = table["claims"]
    newest, last = table["upto"], git("rev-parse", "HEAD").decode().strip()
    of_last = git("log", "-1", "--format=%ct").decode()
    for commit, date in [*commits(table["upto"], ("*.py",), QUESTIONS), (last, in_utc(of_last))]:
        stated = claims_at(commit)
        if stated is None:
            continue
        for name, keys in stated.items():
            of_question = claims.setdefault(name, {})
            for one in sorted(keys):
                of_question.setdefault(one, [commit[:8], date])
        newest = commit
    final = claims_at(last) or {}
    now = {name: {one: claims[name][one] for one in sorted(final[name])} for name in sorted(final)}
    runs = dict(table["runs"])
    for commit, date in commits("", ("*.json",), RECORDS):
        for run in runs_in(commit):
            runs[run] = min(date, runs.get(run, date))
    return written({"upto": newest, "claims": now, "runs": runs})


def commits(after: str, kinds: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Commits that changed files of these kinds, oldest first, with their time in UTC."""
    paths = [f"{folder}/**/{kind}" for folder in folders for kind in kinds]
    paths += [f"{folder}/{kind}" for folder in folders for kind in kinds]
    since = [f"{after}..HEAD"] if after else ["HEAD"]
    found = git("log", "--reverse", "--format=%H %ct", *since, "--", *(f":(glob){path}" for path in paths))
    for line in found.decode().splitlines():
        commit, _, seconds = line.partition(" ")
        yield commit, in_utc(seconds)


def in_utc(seconds: str) -> str:
    """The time of a commit, ISO 8601."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")


@cache
def claims_at(commit: str) -> dict[str, set[str]] | None:
    """The keys of all claims by question, as the code of a commit states them; None where there are none yet."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "sinkscope"))) as archive:
            archive.extractall(folder, filter="data")
        told = subprocess.run([sys.executable, "-c", LIST], cwd=folder, capture_output=True, text=True, check=False)
    if told.returncode:
        print(f"{commit[:8]}: no claims ({told.stderr.strip().splitlines()[-1]})", file=sys.stderr)
        return None
    return {name: {key(*claim) for claim in claims} for name, claims in json.loads(told.stdout).items()}


def runs_in(commit: str) -> Iterator[str]:
    """The names of the runs that a commit's changed records hold."""
    changed = git("diff-tree", "--root", "--no-commit-id", "-m", "--name-only", "--diff-filter=AMR", "-r", commit)
    for path in sorted(set(changed.decode().splitlines())):
        if path.startswith(RECORDS) and path.endswith(".json"):
            try:
                record = json.loads(git("show", f"{commit}:{path}"))
            except ValueError:
                continue
            yield from (run["run"] for seeds in record.get("runs", {}).values() for run in seeds.values())


def written(table: dict[str, Any]) -> str:
    """JSON, a line for each question and each run, so that a change shows as what it is."""
    claims = [f"  {json.dumps(name)}: {json.dumps(keys)}" for name, keys in table["claims"].items()]
    runs = [f"  {json.dumps(name)}: {json.dumps(date)}" for name, date in sorted(table["runs"].items())]
    parts = [f' "upto": {json.dumps(table["upto"])}', _object("claims", claims), _object("runs", runs)]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _object(name: str, lines: list[str]) -> str:
    return f' "{name}": {{\n' + ",\n".join(lines) + "\n }" if lines else f' "{name}": {{}}'


def git(*words: str) -> bytes:
    """What git says in this checkout. Raises `InputError` where there is none."""
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"git {words[0]}: {error}; the table is made in a checkout with its history") from error


if __name__ == "__main__":
    write_text(TABLE, page(json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else None))
    print(TABLE)
