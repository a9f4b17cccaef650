"""A question's file is hashed into runs, from its bytes on disk to the verdict on the terminal."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import Findings, Observed, find, run
from sinkscope.experiments.registration import REGISTERED, Registration, register, registered, standing
from sinkscope.experiments.running import _merged, _register
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.training import RECORD, Run

FILE = """from sinkscope.experiments import Has, Question, Variation, most_models
mine = Question("mine", "?", "me", (Variation("a"),),
    (most_models("a", Has("sink_0", 3.0), "most", "most models have a sink", "me"),), seeds=7)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def git(folder: Path, *arguments: str) -> bytes:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(("git", "-C", str(folder), *who, *arguments), check=True, capture_output=True).stdout


def noted(path: Path) -> dict[str, str]:
    question = find(str(path))
    assert question.registration is not None
    return question.registration.noted(question.values_sha256)


def test_the_hash_is_of_the_raw_bytes(mine):
    for text in (FILE, FILE.replace("\n", "\r\n"), FILE + "# é\n"):
        mine.write_bytes(text.encode())
        assert find(str(mine)).registration.sha256 == hashlib.sha256(mine.read_bytes()).hexdigest()


def test_a_commit_is_noted_only_where_it_holds_these_bytes(mine):
    assert "commit" not in noted(mine)
    folder = mine.parent
    git(folder, "init", "-q")
    git(folder, "add", "mine.py")
    git(folder, "commit", "-qm", "claims")
    note = noted(mine)
    shown = git(folder, "show", f"{note['commit']}:{note['file']}")
    assert hashlib.sha256(shown).hexdigest() == note["sha256"]
    mine.write_text(FILE + "# changed\n")
    assert "commit" not in noted(mine)


def test_notes_of_several_questions_stand_side_by_side(tmp_path):
    register(tmp_path / "run", "one", {"sha256": "1"})
    register(tmp_path / "run", "two", {"sha256": "2"})
    assert registered(tmp_path / "run") == {"one": {"sha256": "1"}, "two": {"sha256": "2"}}
    (tmp_path / "run" / REGISTERED).write_text("{")
    assert registered(tmp_path / "run") == {}


def test_runs_are_registered_for_all_questions_that_share_them(mine, small, tmp_path):
    """Nothing is trained: the backend only looks at what the folders hold when it is called."""
    first = replace(find(str(mine)), shared=small().shared)  # the corpus of the scale takes a minute to encode
    other = replace(first, name="other", seeds=3)  # the first three of seven
    elsewhere = replace(other, name="elsewhere", not_at={"nano": "a reason"})
    noted: dict[str, set[str]] = {}

    def looking(jobs, out, workers, watch):
        noted.update({name: set(registered(out / name)) for name in jobs})
        return Sweep(waiting=list(jobs))

    with pytest.raises(InputError, match="no runs"):
        run(first, out=tmp_path / "runs", results=tmp_path, backend=looking, also=(first, other, elsewhere))
    assert sorted(noted.values(), key=len) == [{"mine"}] * 4 + [{"mine", "other"}] * 3


def test_a_part_of_a_question_registers_the_whole(mine, small, tmp_path):
    """Seeds that are still missing are run as a part, whose own values no verdict ever reads."""
    whole = replace(find(str(mine)), shared=small().shared)
    part = replace(whole, variations=(replace(whole.variations[0], seeds=(5, 6)),))
    noted: list[str] = []

    def looking(jobs, out, workers, watch):
        noted.extend(registered(out / name)["mine"]["values"] for name in jobs)
        return Sweep(waiting=list(jobs))

    with pytest.raises(InputError, match="no runs"):
        run(part, out=tmp_path / "runs", results=tmp_path, backend=looking, also=(whole,))
    assert noted == [whole.values_sha256] * 2
    assert part.values_sha256 != whole.values_sha256


def test_a_run_that_is_resumed_keeps_the_hash_with_which_it_started(mine, tmp_path):
    first, started, fresh = find(str(mine)), tmp_path / "started", tmp_path / "fresh"
    _register(first, [started])
    (started / RECORD).write_text("{}")
    mine.write_text(FILE + "# margins loosened\n")
    second = find(str(mine))
    _register(second, [started, fresh])
    hashes = [registered(folder)["mine"]["sha256"] for folder in (started, fresh)]
    assert hashes == [first.registration.sha256, second.registration.sha256]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("from margins import MARGIN", "'margins'"),
        ("import margins.of.mine as m, json", "'margins.of.mine'"),
        ("def late():\n    from . import margins", "'.'"),
        ("import numpy\nfrom margins import MARGIN", "'numpy', 'margins'"),
        ("import sinkscope.experiments, json\nfrom collections.abc import Mapping", ""),
    ],
)
def test_what_a_hash_does_not_cover_makes_a_question_unregistered(line, named, mine):
    """Margins in another module could be loosened after the runs without a change of the file's hash."""
    (mine.parent / "margins.py").write_text("MARGIN = 3.0\n")
    text = FILE + line + "\n"
    mine.write_text(text)
    registration, _ = Registration.read(mine)
    runs = [Observed(f"a-{s}", "finished", s, registered={"mine": {"sha256": registration.sha256}}) for s in range(7)]
    stands = standing("mine", registration, "", runs)
    assert stands.registered == (not named)
    if named:
        assert stands.words.startswith(f"unregistered: mine.py imports {named}, which its hash does not cover")


def test_a_margin_that_the_file_reads_from_elsewhere_is_part_of_what_is_compared(mine):
    """The bytes of the file stay the same where a margin in another file is loosened."""
    settings = mine.parent / "settings.json"
    settings.write_text("3.0")
    read = f"import json\nfrom pathlib import Path\nmargin = json.loads(Path({str(settings)!r}).read_text())\n"
    mine.write_text(read + FILE.replace("3.0", "margin"))
    before = find(str(mine))
    assert before.values_sha256 == find(str(mine)).values_sha256
    runs = [Observed(f"a-{s}", "finished", s, registered={"mine": noted(mine)}) for s in range(7)]
    assert standing("mine", before.registration, before.values_sha256, runs).registered
    settings.write_text("1.0")
    after = find(str(mine))
    stands = standing("mine", after.registration, after.values_sha256, runs)
    assert (stands.registered, stands.edited) == (False, True)
    assert stands.words.startswith("changed after 7 of 7 runs: mine.py is the same file, but reads its seeds")


def test_what_decides_is_hashed_as_it_was_built(mine):
    question = find(str(mine))
    (most,) = question.assertions
    looser = replace(most, effect=replace(most.effect, has=replace(most.effect.has, at_least=1.0)))
    changed = (
        replace(question, seeds=8),
        replace(question, shared={"steps": 6}),
        replace(question, variations=(replace(question.variations[0], changes={"steps": 5}),)),
        replace(question, assertions=(looser,)),
    )
    hashes = {question.values_sha256, *(each.values_sha256 for each in changed)}
    assert len(hashes) == 5
    assert replace(question, note="words").values_sha256 == question.values_sha256


def test_a_run_that_is_made_again_keeps_what_its_file_was_at_first(mine):
    """Deleting the folders of runs whose numbers are known does not make a loosened margin a stated one."""
    question = find(str(mine))
    old = Observed("a-0", "finished", 0, registered={"mine": {"sha256": "old"}, "other": {"sha256": "o"}})
    new = replace(old, registered={"mine": noted(mine), "other": {"sha256": "n"}})
    for first, kept in ((old, {"sha256": "old"}), (replace(old, registered={}), None)):
        before = Findings("mine", "nano", 1, {"a": {0: first}})
        merged = _merged(question, "nano", {("a", 0): Run(mine)}, {("a", 0): new}, {}, {}, before)
        assert merged.runs["a"][0].registered.get("mine") == kept
        assert merged.runs["a"][0].registered["other"] == {"sha256": "n"}
    fresh = _merged(question, "nano", {("a", 0): Run(mine)}, {("a", 0): new}, {}, {}, None)
    assert fresh.runs["a"][0].registered == new.registered


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nothing\.py"):
        Registration.read(tmp_path / "nothing.py")


@pytest.mark.parametrize(
    "old",
    [
        "from sinkscope.experiments import Withdrawn",
        "from sinkscope.statistics.claims import Above",
        "from sinkscope.experiments import above, level\nabove(1.0, level('m', 'a'), 'c', 's', 't', from_seed=3)",
    ],
)
def test_a_file_for_the_earlier_rules_gets_one_line_with_what_to_write(old, mine):
    mine.write_text(old)
    with pytest.raises(InputError, match="seeds=6 in the question; more_models") as error:
        find(str(mine))
    assert "\n" not in str(error.value)
    mine.write_text(FILE.replace(", seeds=7", ""))
    with pytest.raises(InputError, match="write seeds=6 into the question"):
        find(str(mine))


def test_a_record_without_a_registration_has_no_such_field():
    assert not {"registered", "text"} & Observed("a", "finished", 0).to_dict().keys()
    whole = Observed("a", "finished", 0, registered={"q": {"sha256": "1"}}, text="1")
    assert Observed.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


def test_where_no_experiment_is_installed_a_file_is_named_as_the_way(monkeypatch):
    monkeypatch.setattr("sinkscope.experiments.registries.QUESTIONS", {})
    with pytest.raises(InputError, match="unknown experiment 'abstract': none is installed; name a file"):
        find("abstract")
