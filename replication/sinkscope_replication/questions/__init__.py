"""The questions of the study, a short value each, registered with sinkscope when this module is imported.

A new one is a value in a file here, among that file's `QUESTIONS`; a new file is named in `TOPICS`. Each file imports
the standard library and `sinkscope.experiments` alone, so that its hash covers margins, seeds and rules. Nothing here
imports torch, which jobs need, before a job is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import sinkscope
from sinkscope.experiments import Question, Registration
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
    "softmaxes",
    "remedies",
    "mechanism",
    "purpose",
    "backcopy",
    "trigger",
    "tuning",
    "pilots",
)


def registered() -> Iterator[Question]:
    """Every question with the hash of its file and the study's runs."""
    for topic in TOPICS:
        module = import_module(f"{__name__}.{topic}")
        registration, _ = Registration.read(Path(str(module.__file__)))
        for question in module.QUESTIONS:
            yield replace(question, records=RECORDS, registration=registration)


QUESTIONS: Mapping[str, Question] = {question.name: question for question in registered()}

for _question in QUESTIONS.values():
    sinkscope.question(_question)
