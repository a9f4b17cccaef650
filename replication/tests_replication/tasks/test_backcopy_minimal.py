"""The minimal model of the Bigram-Backcopy task: its equations, a solution made by hand, its runs."""

from __future__ import annotations

import math

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.experiments.sweep.store import observed
from sinkscope.training import TrainingDiverged
from sinkscope_replication.tasks.backcopy_minimal import Minimal, MinimalModel, Reading

from .conftest import drawn

TINY = {"steps": 6, "batch_size": 4, "context": 12, "eval_every": 2}


@pytest.fixture
def model(small) -> MinimalModel:
    """One whose numbers are all different."""
    made = MinimalModel(small, torch.randn(small.tokens, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        made.bos_logits.copy_(torch.linspace(-1, 1, small.tokens))
        made.previous_logit.fill_(0.7)
        made.value.fill_(1.3)
    return made


@pytest.fixture
def solved(small) -> MinimalModel:
    """One that copies at triggers, and elsewhere looks at a BOS that holds nothing."""
    made = MinimalModel(small, torch.zeros(small.tokens))
    with torch.no_grad():
        made.bos_logits.fill_(40.0)
        made.bos_logits[small.is_trigger(torch.arange(small.tokens))] = -40.0
        made.previous_logit.fill_(40.0)
        made.value.fill_(40.0)
    return made


@torch.no_grad()
def by_hand(model: MinimalModel, law, ids: list[int], t: int) -> tuple[list[float], list[float]]:
    """Weights and logits of one query, in loops over numbers."""
    token = ids[t]
    trigger = 0 < token <= law.triggers
    scores = [0.0] * (t + 1)
    scores[0] += float(model.bos_logits[token])
    if trigger:
        scores[t - 1] += float(model.previous_logit)
    whole = math.fsum(map(math.exp, scores))
    weights = [math.exp(score) / whole for score in scores]
    logits = []
    for x in range(law.tokens):
        copied = math.fsum(weights[j] for j in range(1, t + 1) if ids[j] == x)
        bigram = 0.0 if trigger else math.log(max(float(law.transition[token, x]), 1e-6))
        logits.append(bigram + weights[0] * float(model.bos_value[x]) + float(model.value) * copied)
    return weights, logits


def test_equations(model, small):
    ids = drawn(small, 6, 9)
    logits, weights = model(ids)
    assert logits.shape == (6, 7, small.tokens)
    for n in range(6):
        for t in range(1, 8):
            expected_weights, expected_logits = by_hand(model, small, ids[n].tolist(), t)
            torch.testing.assert_close(weights[n, t, : t + 1], torch.tensor(expected_weights))
            assert not weights[n, t, t + 1 :].any()
            torch.testing.assert_close(logits[n, t - 1], torch.tensor(expected_logits))


def test_readings_are_means_over_queries(model, small):
    ids = drawn(small, 20, 9)
    found = Reading(small, ids).read(model)
    sums: dict[str, list[float]] = {name: [] for name in (*found, "least")}
    for row in ids.tolist():
        for t in range(1, 9):
            weights, logits = by_hand(model, small, row, t)
            trigger = 0 < row[t] <= small.triggers
            sums["bos_attention/triggers" if trigger else "bos_attention"].append(weights[0])
            if trigger:
                sums["copy_attention"].append(weights[t - 1])
            else:
                sums["logit_gap"].append(model.bos_logits[row[t]].item())
            if t == 8:
                continue
            loss = math.log(math.fsum(map(math.exp, logits))) - logits[row[t + 1]]
            least = 0.0 if trigger else -math.log(float(small.transition[row[t], row[t + 1]]))
            sums["loss"].append(loss)
            sums["excess_triggers" if trigger else "excess_others"].append(loss - least)
    for name, values in sums.items():
        if values:
            assert found[name] == pytest.approx(math.fsum(values) / len(values), abs=1e-5), name


def test_a_solution_has_no_excess(solved, small):
    found = Reading(small, drawn(small, 40, 12)).read(solved)
    assert found["excess_triggers"] == pytest.approx(0, abs=1e-4)
    assert found["excess_others"] == pytest.approx(0, abs=1e-4)
    assert found["bos_attention"] == pytest.approx(1)
    assert found["bos_attention/triggers"] == pytest.approx(0)
    assert found["copy_attention"] == pytest.approx(1)
    assert found["value_ratio"] == 0


def test_a_length_that_no_prediction_sees_does_not_count(solved):
    with torch.no_grad():
        solved.bos_value.fill_(5.0)
    assert solved.value_ratio == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        solved.bos_value[2] += 40.0
    assert solved.value_ratio == pytest.approx(1)


def test_what_is_frozen_stays(runs):
    """After a step of AdamW with a rate of 0.01 every trained number has moved by about as much."""
    shared = TINY | {"steps": 1, "lr": 0.01, "eval_every": 1}
    logs = {
        frozen: Minimal(**shared, frozen=frozen).train(runs).log for frozen in ("nothing", "bos_logits", "bos_value")
    }
    moved = {frozen: log.iloc[1] - log.iloc[0] for frozen, log in logs.items()}
    assert moved["bos_logits"]["task/logit_gap"] == 0
    assert abs(moved["bos_value"]["task/logit_gap"]) > 1e-4
    assert abs(moved["nothing"]["task/logit_gap"]) > 1e-4
    ratio = {frozen: log["task/value_ratio"] for frozen, log in logs.items()}
    assert ratio["bos_value"][0] / ratio["bos_value"][1] == pytest.approx(1.01, abs=2e-3)  # ξ alone went from 1 to 1.01
    assert ratio["nothing"][1] != pytest.approx(ratio["bos_value"][1], rel=1e-4)


def test_a_run_is_made_once_and_seeds_differ(runs, tmp_path):
    run = Minimal(**TINY).train(runs)
    assert (run.record["status"], run.record["step"]) == ("finished", 6)
    assert run.path.name.endswith(run.record["hash"])
    assert run.log["step"].tolist() == [0, 2, 4, 6]
    before = (run.path / "record.json").read_bytes()
    Minimal(**TINY).train(runs)
    assert (run.path / "record.json").read_bytes() == before
    found = observed(run, Minimal)
    assert found.curves["task/bos_attention"][-1] == found["bos_attention"]
    again = Minimal(**TINY).train(tmp_path / "again").record["results"]
    other = Minimal(**TINY, seed=1).train(runs).record["results"]
    assert again == run.record["results"] != other


def test_learning_lowers_the_loss(runs):
    log = Minimal(**TINY | {"steps": 60, "batch_size": 32, "eval_every": 60}).train(runs).log
    assert log["validation_loss"][1] < log["validation_loss"][0] - 0.1


def test_divergence_is_a_result(runs):
    with pytest.raises(TrainingDiverged, match="diverged"):
        Minimal(**TINY | {"lr": 1e30}).train(runs)


def test_the_text_names_a_run(text):
    jobs = [
        Minimal.at_scale("nano", changes) for changes in ({}, {"source": text}, {"frozen": "bos_value"}, {"seed": 1})
    ]
    assert len({job.folder({"law": index == 1}) for index, job in enumerate(jobs)}) == 4
    assert Minimal.at_scale("nano", {}).folder({"law_sha256": "a"}) != Minimal.at_scale("nano", {}).folder(
        {"law_sha256": "b"}
    )
    assert Minimal.at_scale("nano", {}).folder({}) == Minimal.at_scale("nano", {"eval_every": 7}).folder({})


def test_bad_input():
    with pytest.raises(InputError, match="did you mean 'nano'"):
        Minimal.at_scale("nanoo", {})
    with pytest.raises(InputError, match="bigram_backcopy_minimal field 'triggers' = 63: leave at least 2"):
        Minimal.at_scale("nano", {"triggers": 63})
    with pytest.raises(InputError, match="did you mean 'frozen'"):
        Minimal.at_scale("nano", {"frosen": "bos_value"})
