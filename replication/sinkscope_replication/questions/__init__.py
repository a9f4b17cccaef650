"""The questions of the study, a file each, registered with sinkscope when this module is imported.

A new one is a file here that holds one `Question`, and its name among `NAMES`. It imports the standard library and
`sinkscope.experiments` alone, so that its hash covers margins, seeds and rules. Nothing here imports torch, which jobs
need, before a job is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import sinkscope
from sinkscope.experiments import Question, Registration
from sinkscope_replication.records import RECORDS

NAMES = (  # in the order in which they are listed; the file of a question has its name, with underscores
    "abstract",
    "fresh-equal-loss",
    "fresh-fixed-positions",
    "fresh-equal-product",
    "fresh-data-shares",
    "metric",
    "inputs",
    "emergence",
    "learning-rate",
    "learning-rates",
    "equal-product",
    "batch-size",
    "optimisers",
    "entropy-collapse",
    "sigma-reparam",
    "logit-growth",
    "fixed-token",
    "fixed-positions",
    "random-tokens",
    "random-tokens-longer",
    "data-amount",
    "domains",
    "mixture",
    "short-documents",
    "faster-learning",
    "context",
    "weight-decay",
    "weight-decays",
    "prefix",
    "prefix-longer",
    "prefix-after-random",
    "window",
    "windows",
    "positions",
    "rotary-without-bos",
    "post-norm",
    "feed-forward",
    "heads",
    "outlier-protected",
    "normalisation",
    "sigmoid-at-equal-loss",
    "unnormalised",
    "normalised-kernel",
    "failing",
    "sigmoid-settings",
    "sink-token",
    "biases",
    "biases-without-bos",
    "key-value-biases",
    "fixed-values",
    "low-rank-key",
    "off-by-one",
    "off-by-one-without-bos",
    "off-by-one-and-orthoadam",
    "softpick",
    "clipped",
    "stable-mask",
    "gated",
    "gated-by-channel",
    "gated-truncated",
    "exclusive",
    "scaled",
    "powers",
    "remedies",
    "no-op",
    "sink-head",
    "moved-positions",
    "over-mixing",
    "collapse",
    "streaming",
    "backcopy",
    "backcopy-dynamics",
    "backcopy-depth",
    "backcopy-norms",
    "backcopy-feed-forward",
    "backcopy-optimiser",
    "backcopy-relu",
    "backcopy-minimal",
    "trigger-conditional",
    "tuning",
    "micro-pilot",
)


def registered() -> Iterator[Question]:
    """Every question with the hash of its file and the study's runs."""
    for name in NAMES:
        module = import_module(f"{__name__}.{name.replace('-', '_')}")
        (question,) = (value for value in vars(module).values() if isinstance(value, Question))
        registration, _ = Registration.read(Path(str(module.__file__)))
        yield replace(question, records=RECORDS, registration=registration)


QUESTIONS: Mapping[str, Question] = {question.name: question for question in registered()}

for _question in QUESTIONS.values():
    sinkscope.question(_question)
