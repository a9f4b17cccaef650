"""What is kept of a run: its masses and heads at each evaluation, and no rate of a text that is too short."""

from __future__ import annotations

import json
import math

import pytest

from sinkscope.experiments import Findings, Observed, run, verdicts
from sinkscope.experiments.jobs import LabTraining
from sinkscope.experiments.observed import RATES
from sinkscope.experiments.sweep.store import known, observed
from sinkscope.training import LOG, RECORD, Run
from tests.experiments.helpers import Here

LAYERS, HEADS = 2, 2


@pytest.fixture(scope="module")
def kept(small, tmp_path_factory) -> dict[int, Observed]:
    """Runs on windows of 32 and of 16 tokens."""
    place = tmp_path_factory.mktemp("kept")
    question = small()
    found = {}
    for context in (32, 16):
        asked = small(changes={"context": context}, name=f"of-{context}")
        made = run(asked, seeds=1, backend=Here(), out=place / "runs", results=place / "results")
        found[context] = made.runs["two"][0]
        assert question.name != asked.name
    return found


@pytest.mark.release
def test_every_evaluation_has_masses_and_a_number_of_every_head(kept):
    one = kept[32]
    assert {len(one.curves[name]) for name in ("sink/mass", "sink/lift", "sink/position_0")} == {len(one.steps)}
    assert not any(map(math.isnan, one.curves["sink/mass"]))
    assert one["sink_mass"] == pytest.approx(one.curves["sink/mass"][-1], abs=1e-3)
    for name in ("alpha", "alpha/first", "value_norm/others", "cosine", "queries_above", "prefix_matching"):
        assert [len(row) for row in one.heads[name]] == [LAYERS * HEADS] * len(one.steps)
    assert [len(row) for row in one.heads["hidden_norm"]] == [LAYERS + 1] * len(one.steps)
    assert one["top_head/alpha"] == max(one.heads["alpha"][-1])
    assert one.started[:2] == "20"


@pytest.mark.slow
def test_a_record_gives_back_what_was_kept(kept):
    again = Observed.from_dict(json.loads(json.dumps(kept[32].to_dict(), allow_nan=False)))
    assert repr(again) == repr(kept[32])


@pytest.mark.slow
def test_of_windows_of_16_tokens_no_rate_is_kept_and_the_reason_is_told(kept, small):
    short = kept[16]
    assert all(math.isnan(value) for name in RATES if name in short.curves for value in short.curves[name])
    assert {name for name in RATES if name in short.curves} == set(RATES)
    assert math.isnan(short["sink_0"])
    assert math.isnan(short["sink_mass"])
    assert not any(map(math.isnan, short.curves["validation_loss"]))
    assert short.reason == "no sink rate is read on 16 tokens: at least 32"
    question = small()
    findings = Findings("small", "nano", 1, {"one": {0: short}, "two": {0: kept[32]}})
    (verdict, _) = verdicts(question, findings)
    assert verdict.grade == "open"


def test_a_run_names_its_text_also_where_an_earlier_version_observed_it(tmp_path):
    class Trained(LabTraining):
        @classmethod
        def rated_on(cls, run: Run) -> None:
            return None

    record = {"status": "diverged", "seed": 0, "seconds": 1.0, "reason": "no number", "data": {"text_sha256": "a" * 64}}
    (tmp_path / RECORD).write_text(json.dumps(record))
    (tmp_path / LOG).write_text("")
    assert observed(Run(tmp_path), Trained).text == "a" * 64
    path = tmp_path / Trained.observed
    kept = json.loads(path.read_text())
    assert kept.pop("text") == "a" * 64
    path.write_text(json.dumps(kept))
    again = known(Run(tmp_path), Trained)
    assert again is not None
    assert again.text == "a" * 64
