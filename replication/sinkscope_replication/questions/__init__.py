"""The questions of the study, a short value each, registered with sinkscope when this module is imported.

A new one is a value in a file here, among that file's `QUESTIONS`; a new file is named in `TOPICS`. Nothing here
imports torch, which jobs need, before a job is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

import sinkscope
from sinkscope.experiments import Question, recipe
from sinkscope_replication.questions.variations import training
from sinkscope_replication.records import RECORDS

TOPICS = (  # the files, in the order in which their questions are listed
    "reading",
    "optimization",
    "stability",
    "data",
    "mixture",
    "loss",
    "blocks",
    "grid",
    "biases",
    "key_bias",
    "row_sums",
    "softmaxes",
    "mechanism",
    "purpose",
    "backcopy",
    "trigger",
    "tuning",
    "pilots",
)


def _of_the_study(question: Question) -> Question:
    """A question with the study's readings, where it varies the usual recipe, and its runs."""
    base = training if question.base is recipe else question.base
    return replace(question, base=base, records=RECORDS)


QUESTIONS: Mapping[str, Question] = {
    question.name: _of_the_study(question)
    for topic in TOPICS
    for question in import_module(f"{__name__}.{topic}").QUESTIONS
}

for _question in QUESTIONS.values():
    sinkscope.question(_question)
