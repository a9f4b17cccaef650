"""`python -m sinkscope_replication.order [NAME …] [--hours H] [--workers N] [--plan]`: make the runs that are missing.

Questions in the order of what an hour decides, each with the runs that its seeds name and no record has. It can be
killed at any moment: the same command goes on. A run is registered for every question that names it, and trained
compiled, which changes numbers by rounding alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from sinkscope.errors import InputError, unknown
from sinkscope.experiments import RESULTS, Question, expected, known, labels_read, run, verdicts
from sinkscope_replication.questions import QUESTIONS

ORDER = (
    *("abstract", "fresh-equal-loss", "fresh-fixed-positions", "fresh-data-shares", "fresh-equal-product"),
    *("no-op", "window", "weight-decay", "biases-without-bos", "sink-token", "biases", "post-norm"),
    *("heads", "normalised-kernel", "data-amount", "tuning", "moved-positions", "short-documents", "faster-learning"),
    *("learning-rates", "equal-product", "batch-size", "scaled", "powers", "fixed-values", "low-rank-key"),
    *("key-value-biases", "windows", "rotary-without-bos", "random-tokens-longer", "prefix-after-random"),
    *("weight-decays", "failing", "sigmoid-settings", "remedies"),
)  # without `prefix-longer`, whose base has no sink that could move


def missing(
    order: Sequence[str] = ORDER, results: Path = RESULTS
) -> Iterator[tuple[Question, dict[str, tuple[int, ...]]]]:
    """Each question that lacks a run, with the seeds that each of its variations lacks; of those that a claim reads
    which they can still decide.

    Raises `InputError` where the order names a question that there is not.
    """
    for name in order:
        if name not in QUESTIONS:
            raise InputError(f"the order names '{name}', which is not a question")
        question = QUESTIONS[name]
        findings = known(question, results=results)
        there = findings.runs if findings is not None else {}
        graded = zip(question.assertions, verdicts(question, findings), strict=True)
        undecided = [assertion for assertion, verdict in graded if not verdict.undecidable]
        read = {label for assertion in undecided for label in labels_read(question, assertion)}
        lacking = {
            label: tuple(seed for seed in question.seeds_of(label) if seed not in there.get(label, {}))
            for label in question.labels
            if label in read
        }
        if any(lacking.values()):
            yield question, {label: seeds for label, seeds in lacking.items() if seeds}


def main(argv: Sequence[str] | None = None) -> None:
    """Make, or with --plan list, what is missing."""
    parser = argparse.ArgumentParser(prog="python -m sinkscope_replication.order")
    parser.add_argument("names", nargs="*", default=ORDER, metavar="NAME", help="questions; default: all")
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin no further question after so many")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the parent folder of runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--plan", action="store_true", help="list what would be run; run nothing")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in QUESTIONS:
            parser.error(str(unknown("question", name, QUESTIONS)))
    try:
        _make(options)
    except InputError as error:
        parser.error(str(error))


def _make(options: argparse.Namespace) -> None:
    end, total = time.monotonic() + 3600 * options.hours, 0.0
    for question, lacking in missing(options.names, options.results):
        variations = tuple(
            replace(variation, seeds=lacking[variation.label])
            for variation in question.variations
            if variation.label in lacking
        )
        asked = tuple(assertion for assertion in question.assertions if assertion.among.keys() <= lacking.keys())
        part = replace(question, variations=variations, assertions=asked or question.assertions)
        cost = hours(part, options.results)
        total += cost
        print(f"{question.name}, {cost:.1f} h:", flush=True)
        for label, seeds in lacking.items():
            print(f"  {label}; seeds {', '.join(map(str, seeds))}", flush=True)
        if options.plan:
            continue
        if time.monotonic() >= end:
            return
        also = tuple(QUESTIONS.values())
        run(part, out=options.out, results=options.results, workers=options.workers, also=also, compiled=True)
    if options.plan:
        print(f"at most {total:.0f} core-hours; runs that questions share count for each of them")


def hours(question: Question, results: Path = RESULTS) -> float:
    """Core-hours of a question's missing runs: by its own records, else by those of the base that all others vary."""
    whole = QUESTIONS[question.name]  # where no record is like the runs of a part
    seconds = (expected(each, "nano", known(each, results=results), reuse=True).seconds for each in (question, whole))
    return (next(filter(None, seconds), 0.0) or _at_the_pace_of_the_base(question, results)) / 3600


def _at_the_pace_of_the_base(question: Question, results: Path) -> float:
    """The seconds that all steps of a question would take if each took as long as one of the base."""
    base = known(QUESTIONS["abstract"], results=results)
    made = [run.seconds / run.steps[-1] for run in base.runs["softmax"].values()] if base is not None else []
    steps = sum(getattr(job, "steps", 0) for job in question.recipes("nano").values())
    return steps * median(made) if made else 0.0


if __name__ == "__main__":
    main()
