"""Entropy and its bound, and maximal logits, against whole attention maps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sinkscope.measurement import measure
from sinkscope.measurement.observers.entropy import AttentionEntropy, entropy_bound
from sinkscope.measurement.observers.logits import MaximalLogits
from tests.measurement.conftest import build
from tests.measurement.observers.naive import ALL, close, look
from tests.planted.factory import null_model, planted_ids, planted_model

BOTH = (AttentionEntropy(), MaximalLogits())


@pytest.mark.parametrize(
    ("spread", "bound"), [(0, 4.158883), (1, 4.143699), (2, 4.041087), (4, 2.878547), (8, 0.176499), (16, 0.000107)]
)
def test_golden_values_of_the_bound(spread: float, bound: float) -> None:
    assert float(entropy_bound(torch.tensor(float(spread)), torch.tensor(64.0))) == pytest.approx(bound, abs=2e-6)


@pytest.mark.parametrize("count", [2, 3, 10, 200])
@pytest.mark.parametrize("gap", [0.1, 1.0, 5.0])
def test_one_logit_above_equal_others_reaches_the_bound(count: int, gap: float) -> None:
    logits = torch.zeros(count, dtype=torch.double)
    logits[0] = gap
    spread = (logits - logits.mean()).norm()
    entropy = torch.special.entr(torch.softmax(logits, 0)).sum()
    assert float(entropy_bound(spread, torch.tensor(float(count)))) == pytest.approx(float(entropy), abs=1e-6)


def test_the_bound_of_one_logit_is_nothing() -> None:
    assert float(entropy_bound(torch.tensor(0.0), torch.tensor(1.0))) == 0


def test_no_random_logits_violate_the_bound() -> None:
    logits = torch.randn(500, 30, dtype=torch.double) * torch.logspace(-2, 2, 500)[:, None]
    entropy = torch.special.entr(torch.softmax(logits, 1)).sum(1)
    spread = (logits - logits.mean(1, keepdim=True)).norm(dim=1)
    assert bool((entropy_bound(spread, torch.tensor(30.0)) <= entropy + 1e-9).all())


@pytest.mark.parametrize("name", ALL)
def test_entropy_is_that_of_the_whole_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, AttentionEntropy())
    for index, layer in enumerate(layers):
        if name == "lab:sigmoid":
            outcomes = layer.weights / layer.weights.sum(-1, keepdim=True)
        else:
            outcomes = torch.cat([layer.weights, layer.slot.clamp(min=0)[..., None]], -1)
        wanted = -(outcomes * torch.where(outcomes > 0, outcomes, 1).log()).sum(-1).mean(-1)
        # Learned sinks leave 1 − Σ A, which fp32 maps round; the entropy of a remnant of 1e-7 is 2e-6.
        close(data["attention_entropy"][:, index], wanted, 2e-5)


@pytest.mark.parametrize("name", [name for name in ALL if name != "lab:sigmoid"])
def test_the_bound_is_that_of_each_rows_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, AttentionEntropy())
    assert bool((data["attention_entropy"] >= data["entropy_bound"] - 1e-5).all())
    for index, layer in enumerate(layers):
        scores, visible, call = layer.scores, layer.visible, layer.call
        sink = None if call.sink is None else call.sink.double().expand(scores.shape[:3])
        for head in range(scores.shape[1]):
            bounds = []
            for query in range(scores.shape[2]):
                row = scores[1, head, query][visible[query]]
                row = row if sink is None else torch.cat([row, sink[1, head, query, None]])
                spread, count = float((row - row.mean()).norm()), len(row)
                if count == 1:
                    bounds.append(0.0)
                    continue
                small = math.exp(-spread * math.sqrt(count / (count - 1)))
                whole = 1 + (count - 1) * small
                bounds.append(math.log(whole) + spread * math.sqrt(count * (count - 1)) * small / whole)
            assert float(data["entropy_bound"][1, index, head]) == pytest.approx(np.mean(bounds), abs=2e-5)


@pytest.mark.parametrize("name", ALL)
def test_maximal_logits_are_those_of_visible_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, *BOTH)
    for index, layer in enumerate(layers):
        sizes = layer.scores.abs().masked_fill(~layer.visible, 0)
        close(data["max_logit"][:, index], sizes.amax((-2, -1)))
        if name == "gemma2":
            assert bool((data["max_logit"][:, index] <= 5).all())


def test_both_are_the_same_alone_and_together(ids: torch.Tensor) -> None:
    model = build("gpt_oss")
    together = measure(model, ids, BOTH).data
    for observer in BOTH:
        for name, values in measure(model, ids, [observer]).data.data_vars.items():
            close(together[name], values, 0)


def test_padding_has_no_logits_and_no_entropy(ids: torch.Tensor) -> None:
    model = build("llama")
    mask = torch.ones_like(ids)
    mask[:, :11] = 0
    padded = measure(model, {"input_ids": ids, "attention_mask": mask}, BOTH).data
    alone = measure(model, ids[:, 11:], BOTH).data
    for name in ("attention_entropy", "entropy_bound", "max_logit"):
        close(padded[name], alone[name], 2e-5)


def test_uniform_attention_has_the_entropy_of_its_keys_and_meets_the_bound(ids: torch.Tensor) -> None:
    model = build("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    data = measure(model, ids, BOTH).data
    wanted = np.log(np.arange(1, 25)).mean()
    close(data["attention_entropy"], np.full((3, 2, 4), wanted))
    close(data["entropy_bound"], np.full((3, 2, 4), wanted))
    assert float(data["max_logit"].max()) == 0


def test_hotter_logits_mean_less_entropy(ids: torch.Tensor) -> None:
    model, found = build("llama"), []
    for _ in range(4):
        found.append(float(measure(model, ids, [AttentionEntropy()]).data["attention_entropy"][:, 0].mean()))
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.6 * found[0]


def test_a_planted_sink_lowers_the_entropy_and_the_null_model_keeps_it() -> None:
    ids = planted_ids()
    planted, null = (
        measure(model, ids, [AttentionEntropy()]).data["attention_entropy"] for model in (planted_model(), null_model())
    )
    uniform = np.log(np.arange(1, 33)).mean()
    assert float(planted[:, 1:].max()) < 0.1 * uniform
    assert float(null.min()) > 0.9 * uniform
