"""What starts closed is closed on a model whose log-sum-exps go far below zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as ss

pytestmark = pytest.mark.slow
TEXTS = [Path(ss.__file__).read_text(), (Path(ss.__file__).parents[1] / "LICENSE").read_text()]


@pytest.fixture
def ids(smollm2) -> torch.Tensor:
    _, tokenizer = smollm2
    return torch.tensor([tokenizer(text[start:])["input_ids"][:64] for text in TEXTS for start in (0, 1000)])


@pytest.mark.release
def test_closed_slots_leave_the_logits(smollm2, ids: torch.Tensor) -> None:
    model, _ = smollm2
    with torch.no_grad():
        before = model(ids).logits
        attached = ss.attach(model, "sink_logit", inputs=ids, seed=0)
        try:
            after = model(ids).logits
            lowest = min(layer.self_attn.operation.slot_modules[0].logit.min() for layer in model.model.layers)
        finally:
            ss.detach(model)
        assert torch.equal(model(ids).logits, before)
    assert float((after - before).abs().max()) < 0.015, "22 with slots at -8; logits have a standard deviation of 6"
    assert float(lowest) < -12, "heads of layers 10 and 11 would be open at -8"
    assert (attached.changes, attached.shift.small) == ((), True)


@pytest.mark.release
def test_random_inputs_close_them_for_text_too(smollm2, ids: torch.Tensor) -> None:
    model, _ = smollm2
    with torch.no_grad():
        before = model(ids).logits.log_softmax(-1)
        ss.attach(model, "sink_logit")
        try:
            after = model(ids).logits.log_softmax(-1)
        finally:
            ss.detach(model)
    assert float((before.exp() * (before - after)).sum(-1).max()) < 1e-3
