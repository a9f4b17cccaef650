"""The runs that come first, as a list of values.

`python -m sinkscope_replication.order [--hours H] [--workers N] [--results FOLDER] [--plan]` makes those that are not
known yet, one entry after another. It can be killed at any moment: the same command goes on.

The order was written down before any of these runs existed. A run that is known already is passed over. Moved up later,
before their runs: two of the abstract's statements, which three seeds had left undecided, and what the abstract and the
introduction say of little data and of the place of norms; then what else the introduction says, of weight decay,
windows, heads, feed-forwards and position embeddings; and the pilots, on which hangs what else can be asked in nano;
and, of what was left then, the statements of the paper that no run had answered yet: first the sink without a fixed
BOS, the amount of text, and sigmoid at softmax's loss. Added at the end, before their runs: its other statements that
wait for runs, those first that answer the most statements in an hour; before these what the pilot without a BOS, which
has a faint sink, lets be asked of prefixes and of random tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.experiments import RESULTS, Question, known, run
from sinkscope_replication.questions import QUESTIONS

FURTHER = (3, 4, 5, 6, 7, 8, 9)
FRESH = FURTHER[:3]  # what decides by the sink mass, which was chosen when lower seeds had been seen
ONE = FURTHER[:1]


@dataclass(frozen=True)
class Wanted:
    """Runs of one question: those of `labels`, for each of `seeds`; all variations where no label is given."""

    question: str
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    why: str


ORDER = (
    Wanted("learning-rate", ("lr / 4",), (2,), "completes the learning rates"),
    Wanted("emergence", ("softmax",), FURTHER, "the control of most questions deserves more seeds"),
    Wanted("fixed-positions", ("token at 1",), FRESH, "where the fixed token stands"),
    Wanted("normalisation", ("sigmoid",), FRESH, "in the abstract, and undecided on three seeds"),
    Wanted("biases", ("k_bias",), FRESH, "in the abstract, and undecided on three seeds"),
    Wanted("gated-by-channel", ("gated_elementwise",), (1, 2), "one seed is there"),
    Wanted("tuning", ("before", "tuned"), FRESH, "instruction tuning"),
    Wanted("data-amount", ("1/700",), FRESH, "in the abstract, and not asked yet"),
    Wanted("post-norm", ("post-norm",), FRESH, "in the introduction, and not asked yet"),
    Wanted("weight-decay", ("0", "0.5", "2"), FRESH, "in the introduction, and not asked yet"),
    Wanted("window", ("causal", "window of 32", "window of 64"), FRESH, "in the introduction, and not asked yet"),
    Wanted("heads", ("8 heads", "2 heads", "1 head"), FRESH, "in the introduction, and not asked yet"),
    Wanted("feed-forward", ("relu", "gelu", "swish", "reglu", "geglu"), FRESH, "in the introduction, not asked yet"),
    Wanted("positions", ("none", "sinusoidal", "learned", "relative_paper", "alibi"), FRESH, "in the introduction too"),
    Wanted("moved-positions", ("learned positions",), FRESH, "pilot: learned positions without a BOS"),
    Wanted("rotary-without-bos", ("6,000 steps",), ONE, "pilot: rotary positions without a BOS"),
    Wanted("micro-pilot", (), ONE, "pilot: more heads"),
    Wanted("biases-without-bos", ("softmax", "k_bias", "kv_bias"), FRESH, "biases where nothing else is constant"),
    Wanted("sink-token", ("sink token",), FRESH, "a learned token where nothing else is constant"),
    Wanted("biases-without-bos", ("v_bias",), FRESH, "a value bias changes nothing"),
    Wanted("normalised-kernel", ("kernel_elu_normalized",), FRESH, "a normalized kernel of Table 6"),
    Wanted("unnormalised", (), FRESH, "similarities of Table 6"),
    Wanted("fixed-token", ("token at 2",), FRESH, "Table 10 has three positions"),
    Wanted("data-amount", ("1/100",), FRESH, "whether overfitting keeps the sink away"),
    Wanted("biases", ("kv_bias",), FRESH, "a key alone takes more"),
    Wanted("normalisation", ("sigmoid_normalized",), FRESH, "decided by rates of three seeds so far"),
    Wanted("fixed-values", ("1 first", "5 first", "20 first"), FRESH, "how long the value behind a sink may be"),
    Wanted("rotary-without-bos", ("6,000 steps",), FRESH, "one seed has a sink, and one is no interval"),
    Wanted("data-amount", ("1/20",), FRESH, "how much text there is"),
    Wanted("micro-pilot", ("6 layers of 8 heads",), FURTHER[1:2], "whether it is adopted asks for its spread"),
    Wanted(
        "sigmoid-at-equal-loss",
        ("sigmoid, bias, twice", "sigmoid, bias, twice, lr x 2.5"),
        FRESH,
        "sigmoid at softmax's loss",
    ),
    Wanted("exclusive", ("exclusive",), FRESH, "outputs without their token's own value"),
    Wanted("gated-truncated", ("reads 12", "alpha 0.5"), FRESH, "gates that read twelve channels"),
    Wanted("fixed-values", ("1 uniform", "5 uniform", "20 uniform"), FRESH, "and whether its direction matters"),
    Wanted("learning-rate", ("lr / 8", "lr / 4"), FRESH, "decided by rates of three seeds so far"),
    Wanted("off-by-one-without-bos", ("softmax_off_by_one",), FRESH, "a key of zeros where nothing else is constant"),
    Wanted("softpick", ("softpick",), FRESH, "decided by rates of three seeds so far"),
    Wanted("off-by-one", ("softmax_off_by_one",), FRESH, "decided by rates of three seeds so far"),
    Wanted("fixed-token", ("no fixed token",), FRESH, "decided by rates of three seeds so far"),
    Wanted("micro-pilot", ("6 layers of 8 heads", "k_bias, no BOS"), FRESH, "its claims ask for three seeds"),
    Wanted("prefix-longer", ("prefix of 5",), FRESH, "in the abstract, and the pilot has a sink"),
    Wanted("random-tokens-longer", ("two random",), FRESH, "whether random tokens move the pilot's sink"),
    Wanted(
        "no-op",
        ("softmax",),
        (10, 11, 12),
        "two measures came after the control's runs",
    ),
    Wanted("key-value-biases", ("k_bias_shared", "kv_bias_shared"), FRESH, "a learned key that all heads share"),
    Wanted("powers", ("p = 2", "p = 1/2", "sigmoid, p = 2"), FRESH, "what p-normalized rows do"),
    Wanted("window", ("window of 64",), (6, 7), "where its sink stands: three seeds agree, five are asked for"),
    Wanted("low-rank-key", ("1 channel", "11 channels"), FRESH, "how many channels of a key are learned"),
    Wanted("heads", ("4 heads, added",), FRESH, "heads that are added"),
    Wanted("gated-by-channel", ("gated_elementwise",), FRESH, "its mass has no seed that nobody had seen"),
    Wanted("powers", ("p = 1/3", "p = 1/4", "sigmoid, p = 3", "sigmoid, p = 4"), FRESH, "which powers train"),
    Wanted("weight-decays", ("0.001", "0.01", "5"), FRESH, "Table 2 has seven decays"),
    Wanted("scaled", ("alpha 2", "alpha 0.2", "alpha 0.1"), FRESH, "rows that sum to another number"),
    Wanted("random-tokens-longer", ("first random",), FRESH, "and whether they make it stronger"),
    Wanted("batch-size", ("a quarter", "half", "twice"), FRESH, "Table 10 has four batch sizes"),
)


def missing(
    order: Sequence[Wanted] = ORDER, results: Path = RESULTS
) -> Iterator[tuple[Wanted, Question, tuple[int, ...]]]:
    """Each entry of which a run is not known, its question with those variations alone, and the seeds that lack one.

    Raises `InputError` where the order names a question or a variation that there is not.
    """
    for wanted in order:
        question = QUESTIONS[wanted.question]
        labels = wanted.labels or tuple(variation.label for variation in question.variations)
        for label in labels:
            if label not in {variation.label for variation in question.variations}:
                raise InputError(f"the order names '{label}', which is no variation of '{wanted.question}'")
        found = known(question, results=results)
        there = found.runs if found is not None else {}
        lacking = {label: [seed for seed in wanted.seeds if seed not in there.get(label, {})] for label in labels}
        some = tuple(variation for variation in question.variations if lacking.get(variation.label))
        if some:
            seeds = tuple(sorted({seed for each in lacking.values() for seed in each}))
            yield wanted, replace(question, variations=some), seeds


def main(argv: Sequence[str] | None = None) -> None:
    """Make, or with --plan list, what is missing."""
    parser = argparse.ArgumentParser(prog="python -m sinkscope_replication.order")
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin no further entry after so many")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the parent folder of runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--plan", action="store_true", help="list what would be run; run nothing")
    given = parser.parse_args(argv)
    end = time.monotonic() + 3600 * given.hours
    for wanted, question, seeds in missing(results=given.results):
        labels = ", ".join(variation.label for variation in question.variations)
        print(f"{question.name}: {labels}; seeds {', '.join(map(str, seeds))} ({wanted.why})", flush=True)
        if given.plan:
            continue
        if time.monotonic() >= end:
            return
        run(question, seeds=seeds, out=given.out, results=given.results, workers=given.workers)


if __name__ == "__main__":
    main()
