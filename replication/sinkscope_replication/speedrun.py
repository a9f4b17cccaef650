"""`python -m sinkscope_replication.speedrun [NAME ...]`: in how few core-minutes does a small model get a sink?

Each recipe is `nano` with fields changed, trained until the rate of one position reaches the recipe's target or its
steps are over. The table counts the steps, and the minutes that the runs took. These runs search for recipes: no grade
uses their seeds. Rows whose log is a question are read from its runs, which do decide claims.

It can be killed at any moment: the same command goes on with the runs that have no record.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median, median_low
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from transformers import PreTrainedTokenizerFast

from sinkscope.data import DataConfig, encode_data, load_corpus, natural_windows, prepare
from sinkscope.errors import InputError, unknown
from sinkscope.files import append_line, write_text
from sinkscope.measurement import AttentionReceived, HiddenNorms, measure
from sinkscope.model import load
from sinkscope.training import LOG, load_recipe, read_rows, sink_metrics
from sinkscope_replication.records import findings_of

RECORDS = Path(__file__).parent / "records" / "speedrun.jsonl"
WITH_BOS, WITHOUT_BOS = 10.0, 3.0  # percent of heads; 3 % is one head of sixteen in half of the windows
RATES = ("sink/position_0", "sink/strongest")
POLL = 1.0  # seconds
SHOWN = ("name", "seed", "reached", "step", "core_minutes", "rate", "loss")  # of a record, in the table
PATIENCE = 1300  # steps after which an attempt with a BOS has not reached its target
SHORT, SHORTEST, LONGEST = "short", 8, 60  # a corpus of documents of so many tokens, made here
TWO_RANDOM = {"kind": "random_tokens", "start": 0, "stop": 2}


@dataclass(frozen=True)
class Attempt:
    """A recipe to try: fields of `nano` changed, the rate that ends it, and in words what it is.

    `rate`: of position 0, or of the strongest position. `whole`: it is read on whole windows of nano's text, at each
    checkpoint, since on the short texts that such a recipe trains on uniform attention alone comes close to a sink.
    """

    name: str
    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    target: float = WITH_BOS
    rate: str = RATES[0]
    whole: bool = False


def without_bos(name: str, words: str, steps: int, whole: bool = False, **changes: Any) -> Attempt:
    """An attempt at a sink without a fixed BOS."""
    fields = {"data.bos": "none", "steps": steps} | {key.replace("__", "."): value for key, value in changes.items()}
    return Attempt(name, words, fields, WITHOUT_BOS, RATES[1], whole)


TWO_HEADS = {"model.num_attention_heads": 2}


def in_bf16(name: str, words: str, **changes: Any) -> Attempt:
    """An attempt with two heads, multiplied in bf16."""
    fields = {**TWO_HEADS, "precision": "bf16"} | {key.replace("__", "."): value for key, value in changes.items()}
    return Attempt(f"bf16{name and '-'}{name}", f"2 heads, bf16{words and ', '}{words}", fields)


def post_norm(name: str, words: str, **changes: Any) -> Attempt:
    """An attempt with two heads and norms after the blocks."""
    fields = {**TWO_HEADS, "model.norm_placement": "post"}
    fields |= {key.replace("__", "."): value for key, value in changes.items()}
    return Attempt(f"post{name and '-'}{name}", f"2 heads, post-norm{words and ', '}{words}", fields)


ATTEMPTS: dict[str, Attempt] = {
    attempt.name: attempt
    for attempt in (
        Attempt("nano", "`nano`"),
        Attempt("post-norm-bos", "post-norm", {"model.norm_placement": "post"}),
        Attempt("alibi", "ALiBi", {"model.position": "alibi"}),
        Attempt("heads2", "2 heads", TWO_HEADS),
        Attempt("heads1", "1 head", {"model.num_attention_heads": 1}),
        in_bf16("", ""),
        in_bf16("post", "post-norm", model__norm_placement="post"),
        in_bf16("code", "code alone", data__corpus="python:code"),
        in_bf16("lr2", "twice the rate", optimizer__lr=8e-3),
        in_bf16("context64", "context 64", context=64),
        in_bf16("batch16-lr2", "batch 16, twice the rate", batch_size=16, optimizer__lr=8e-3),
        in_bf16("post-2layers", "post-norm, 2 layers", model__norm_placement="post", model__num_hidden_layers=2),
        post_norm("", ""),
        post_norm("muon", "Muon", optimizer__name="muon"),
        post_norm("lr1.5", "1.5 times the rate", optimizer__lr=6e-3),
        post_norm("decay", "the rate falls to 0 in 1,000 steps", steps=1000, schedule={"kind": "linear", "warmup": 50}),
        post_norm("warmup", "200 steps of warm-up", schedule={"kind": "constant", "warmup": 200}),
        post_norm("vocabulary512", "vocabulary 512", data__tokenizer="bpe:512"),
        post_norm("vocabulary8192", "vocabulary 8,192", data__tokenizer="bpe:8192"),
        post_norm("context256", "context 256, batch 16", context=256, batch_size=16),
        post_norm("weight-decay", "weight decay .3", optimizer__weight_decay=0.3),
        without_bos(
            "restarts", "documents of at most 60 tokens", 3000, True, data__corpus=SHORT, data__packing="intra_document"
        ),
        without_bos("two-random", "two random first tokens", 6000, data__interventions=[TWO_RANDOM]),
        without_bos("plain", "`nano`", 6000),
        without_bos("learned", "learned positions", 6000, model__position="learned"),
        without_bos("deep", "context 256, 8 layers", 6000, context=256, model__num_hidden_layers=8),
        without_bos("post-norm", "post-norm", 6000, model__norm_placement="post"),
        without_bos("grown", "started from a model that had a BOS", 1500, start_from="nano", data__tokenizer="nano"),
    )
}

STUDIED = {
    "nano": ("emergence", "softmax"),
    "heads2": ("heads", "2 heads"),
    "heads1": ("heads", "1 head"),
    "post-norm-bos": ("post-norm", "post-norm"),
    "alibi": ("positions", "alibi"),
    "two-random": ("random-tokens-longer", "two random"),
    "plain": ("rotary-without-bos", "6,000 steps"),
}
LOGS = {"nano": "all controls"}  # more models than those that decide a question


def command(attempt: Attempt, seed: int, out: Path) -> list[str]:
    """The command that trains an attempt, in a folder of its own."""
    often = (
        {"eval_every": 250, "save_every": 250, "keep": 1000} if attempt.whole else {"eval_every": 50, "save_every": 500}
    )
    fields = {"compile": True, **often, **attempt.changes, "seed": seed}
    if fields.get("data.corpus") == SHORT:
        fields["data.corpus"] = f"text:{short_documents(out.parents[1])}"
    sets = [word for name, value in fields.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    return [sys.executable, "-m", "sinkscope", "train", "nano", *sets, "--out", str(out), "--resume"]


def attempt_run(attempt: Attempt, seed: int, out: Path) -> dict[str, Any]:
    """Train an attempt until its target or its last step; the row that is kept.

    Raises `InputError` where training fails.
    """
    folder = out / attempt.name / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    spent = folder / "core_seconds"
    before = float(spent.read_text()) if spent.exists() else 0.0
    read = WholeWindows(folder).rows if attempt.whole else lambda ended: curve_of(folder)
    with (folder / "stderr").open("ab") as errors:
        child = psutil.Popen(command(attempt, seed, folder), stdout=subprocess.DEVNULL, stderr=errors)
        used, curve = 0.0, []
        try:
            while child.poll() is None:
                used = max(used, core_seconds(child))
                spent.write_text(f"{before + used:.1f}")
                curve = read(False)
                if curve and max(row[attempt.rate] for row in curve) >= attempt.target:
                    break
                if attempt.target == WITH_BOS and curve and curve[-1]["step"] >= PATIENCE:
                    break
                time.sleep(POLL)
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait(30)
    curve = read(True)
    reached = next((row for row in curve if row[attempt.rate] >= attempt.target), None)
    if not curve or (reached is None and child.returncode > 0):
        last = (folder / "stderr").read_text(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"{attempt.name}, seed {seed}: training failed: {''.join(last)}")
    last_row = reached or curve[-1]
    return {
        "name": attempt.name,
        "seed": seed,
        "changes": dict(attempt.changes),
        "target": attempt.target,
        "reached": reached is not None,
        "core_minutes": round((before + used) / 60, 2),  # of this process, on a core that others may have used
        "step": last_row["step"],
        "rate": round(last_row[attempt.rate], 3),
        "loss": round(last_row["validation_loss"], 4),
        "curve": [[row["step"], round(row[attempt.rate], 3), round(row["validation_loss"], 4)] for row in curve],
    }


def short_documents(folder: Path, documents: int = 150_000) -> Path:
    """A file of documents of 8 to 60 tokens: pieces of whole lines of the corpus `python`. Made once."""
    path = folder / "short.jsonl"
    if path.exists():
        return path
    tokenizer = prepare(DataConfig(bos="none"), context=128).tokenizer
    pieces: list[str] = []
    for document in load_corpus("python").documents():
        pieces += pieces_of(document.text, tokenizer)
        if len(pieces) >= documents:
            break
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps({"text": piece}) + "\n" for piece in pieces[:documents]))
    return path


def pieces_of(text: str, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """A text as pieces of whole lines, each as long as the limit allows; longer lines and shorter pieces are dropped.

    A piece may become a token or two longer where it is encoded without its neighbours.
    """
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    starts = [start for start, _ in offsets]
    bounds = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    tokens = [bisect_left(starts, bound) for bound in bounds]  # before each line
    pieces, first = [], 0
    for last in range(1, len(bounds)):
        ends = last + 1 == len(bounds) or tokens[last + 1] - tokens[first] > LONGEST
        if ends:
            if SHORTEST <= tokens[last] - tokens[first] <= LONGEST:
                pieces.append(text[bounds[first] : bounds[last]])
            first = last
    return pieces


def core_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def curve_of(folder: Path) -> list[dict[str, Any]]:
    """The evaluations in the log of the one run in a folder."""
    return [
        row
        for log in folder.glob(f"*/{LOG}")
        for row in read_rows(log)
        if all(row.get(name) is not None for name in (*RATES, "validation_loss"))
    ]


@dataclass
class WholeWindows:
    """Sink and loss of each checkpoint of the one run in a folder, on 100 windows of 64 tokens of nano's text."""

    folder: Path
    read: dict[int, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """That of the run, before it has a model."""
        [recipe] = self.folder.glob("*/recipe.json")
        return encode_data(load_recipe(recipe).data).whole.tokenizer

    def rows(self, ended: bool) -> list[dict[str, Any]]:
        """A row for each checkpoint; of a run that goes on, those that were finished before its newest log entry."""
        newest = max((row["step"] for log in self.folder.glob(f"*/{LOG}") for row in read_rows(log)), default=0)
        for checkpoint in self.folder.glob("*/checkpoints/checkpoint-*"):
            step = int(checkpoint.name.rpartition("-")[2])
            if step not in self.read and (ended or step < newest):
                self.read[step] = self.row(step, load(str(checkpoint)))
        return [self.read[step] for step in sorted(self.read)]

    def row(self, step: int, model: Any) -> dict[str, Any]:
        """What a log entry has."""
        ids = natural_windows(self.tokenizer, 64, 100, 0).input_ids
        measured = measure(model, ids, [AttentionReceived("all"), HiddenNorms()])
        with torch.no_grad():
            loss = model(ids, labels=ids).loss
        return {"step": step, **sink_metrics(measured), "validation_loss": float(loss)}


def rows(path: Path = RECORDS) -> list[dict[str, Any]]:
    """What was recorded. Raises `InputError`, with the line, for a damaged file, to which nothing could be added."""
    recorded = read_rows(path)
    if path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n"):
        raise InputError(f"{path}: its last line, {len(recorded) + 1}, has no end: remove it")
    for number, row in enumerate(recorded, 1):
        if lacking := [name for name in SHOWN if name not in row]:
            raise InputError(f"{path}, line {number} is no record of an attempt: it has no '{lacking[0]}'")
    return recorded


def of_the_study() -> Iterator[dict[str, Any]]:
    """The runs of the study that are attempts too. They were read every 50 steps, and not stopped at their target."""
    for name, (question, label) in STUDIED.items():
        attempt, findings = ATTEMPTS[name], findings_of(question)
        for seed, run in findings.runs[label].items() if findings else ():
            curve = list(zip(run.steps, run.curves[attempt.rate], run.curves["validation_loss"], strict=True))
            step, rate, loss = next((row for row in curve if row[1] >= attempt.target), curve[-1])
            on_cores = run.host.get("device", "cpu") == "cpu"  # a minute of a GPU is none of a core
            yield {
                "name": name,
                "seed": seed,
                "reached": rate >= attempt.target,
                "step": step,
                "rate": rate,
                "loss": loss,
                "core_minutes": run.seconds / 60 * step / run.steps[-1] if on_cores else None,  # of one thread
                "log": LOGS.get(name, question),
            }


def table(attempts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Rows of Markdown: with a BOS, then without; the fewest steps first.

    Steps and minutes are medians over seeds, "–" where fewer than half reach the target; minutes of those on cores.
    Rate and loss are medians over those that reach it, at that step. With a BOS, attempts of which no model reaches it
    are left out.
    """
    lines = []
    for name, attempt in ATTEMPTS.items():
        tried = [row for row in attempts if row["name"] == name]
        with_bos = attempt.target == WITH_BOS
        reached = [row for row in tried if row["reached"]]
        if not tried or (with_bos and not reached):
            continue
        step, minutes = _until_half(tried, "step"), _until_half(tried, "core_minutes")
        numbers = ["–"] * 4
        if math.isfinite(step):
            rate, loss = (median(row[key] for row in reached) for key in ("rate", "loss"))
            numbers = [f"{step:,.0f}", "–", f"{rate:.1f} %", f"{loss:.2f}"]
        if math.isfinite(minutes):
            numbers[1] = f"{minutes:.1f}"
        counted = f"{len(reached)}/{len(tried)}"
        log = ", ".join(dict.fromkeys(row.get("log", RECORDS.name) for row in tried))
        cells = (f"{attempt.words}{'' if with_bos else ', no BOS'}", counted, *numbers, f"`{log}`")
        lines.append((not with_bos, step, f"| {' | '.join(cells)} |"))
    yield from (line for *_, line in sorted(lines))


def _until_half(tried: Sequence[Mapping[str, Any]], key: str) -> float:
    """The median; where just half of the models reach the target, the last of these; infinite where fewer do."""
    values = [row[key] if row["reached"] else math.inf for row in tried if row[key] is not None] or [math.inf]
    middle = median(values)
    return middle if math.isfinite(middle) else median_low(values)


def main(argv: Sequence[str] | None = None) -> None:
    """Run attempts that have no record, or print the table."""
    parser = argparse.ArgumentParser(prog="python -m sinkscope_replication.speedrun")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to try: {', '.join(ATTEMPTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102], help="of each")
    parser.add_argument("--out", type=Path, default=Path("runs/speedrun"), help="folder of the runs")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of the records")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in ATTEMPTS:
            parser.error(str(unknown("attempt", name, ATTEMPTS)))
    try:
        _run(options)
    except InputError as error:
        parser.error(str(error))


def _run(options: argparse.Namespace) -> None:
    recorded = rows(options.records)
    if not options.names:
        print("\n".join(table([*of_the_study(), *recorded])))
        return
    there = {(row["name"], row["seed"]) for row in recorded}
    for seed in options.seeds:
        for name in options.names:
            if (name, seed) in there:
                continue
            row = attempt_run(ATTEMPTS[name], seed, options.out)
            append_line(options.records, row)
            print({key: value for key, value in row.items() if key != "curve"}, flush=True)


if __name__ == "__main__":
    main()
