"""The questions make the runs that are known: their names, with the hash of all that decides numbers, are made anew.

`runs.texts.json` holds the fingerprints of the two corpora as they were when the runs were made: none is prepared.
"""

from __future__ import annotations

import json

from sinkscope.experiments import key_of, read_rows
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RECORDS

TEXTS = json.loads(RECORDS.with_suffix(".texts.json").read_text())


def test_every_run_is_made_again_under_its_name():
    rows = read_rows(RECORDS)
    made = {}
    for question in QUESTIONS.values():
        for (label, _), first in (question.recipes("nano", [0]) if "nano" not in question.not_at else {}).items():
            key = key_of(first)
            for there, seed in rows:
                if there == key and (key, seed) not in made:
                    job = question.job(label, seed, "nano")
                    corpus = getattr(getattr(job, "data", None), "corpus", None)
                    made[key, seed] = job.folder(TEXTS[corpus] if corpus else job.fingerprint())
    assert made.keys() == rows.keys()
    assert {place: name for place, name in made.items() if name != rows[place].run} == {}
    assert len({run.run for run in rows.values()}) == len(rows)
