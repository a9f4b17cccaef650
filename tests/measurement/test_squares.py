"""Prefixes beside padding, whose mask a kernel gets as squares: what is measured is what the reference writes out."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from sinkscope.attention import CATALOG, Causal, VisiblePrefix
from sinkscope.attention.paths import flash
from sinkscope.measurement import AttentionReceived, SlotReceived, measure
from tests.measurement.conftest import lab_model

LENGTH, AHEAD = 131, 9
PADS = {"none": (0,), "one row": (33,), "several rows": (0, 40), "rows that add up to a whole one": (65, 66)}


@pytest.mark.slow
@pytest.mark.parametrize("watched", ["as one call", "as two calls"])
@pytest.mark.parametrize("name", ["softmax", "sink_logit", "kv_bias"])
@pytest.mark.parametrize("pads", PADS)
def test_attention_under_a_prefix_and_padding_is_that_of_the_reference(
    pads: str, name: str, watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "ROWS", 64)  # as if the text were four times as long
    if watched == "as two calls":  # in a torch that cannot run the second one unseen
        monkeypatch.setattr(flash, "unwatched", nullcontext)
    found = []
    forward = flash._forward_squares
    monkeypatch.setattr(flash, "_forward_squares", lambda *given: found.append(given) or forward(*given))
    model = lab_model(replace(CATALOG[name], mask=Causal() | VisiblePrefix(AHEAD)), max_position_embeddings=256)
    real = (torch.arange(LENGTH) >= torch.tensor(PADS[pads])[:, None]).long()
    ids = torch.randint(0, 97, real.shape, generator=torch.Generator().manual_seed(1))
    data = measure(model, {"input_ids": ids, "attention_mask": real}, [AttentionReceived(), SlotReceived()]).data
    assert found, "this mask is to be read from squares"
    with torch.no_grad():
        maps = model(ids, attention_mask=real, output_attentions=True).attentions
    for row, pad in enumerate(PADS[pads]):
        tokens = LENGTH - pad
        assert int(data["tokens"][row].max()) == tokens
        for layer, weights in enumerate(maps):
            own = weights[row, :, pad:, pad:]
            received = own.sum(1) / (own > 0).any(0).sum(0)
            measured = torch.from_numpy(data["attention_received"].values[row, layer])
            torch.testing.assert_close(measured[:, :tokens], received, atol=2e-6, rtol=1e-5)
            assert bool(measured[:, tokens:].isnan().all())
            if "slot_received" in data:
                slot = torch.from_numpy(data["slot_received"].values[row, layer])
                torch.testing.assert_close(slot, 1 - own.sum(-1).mean(-1), atol=2e-6, rtol=1e-5)
    assert ("slot_received" in data) == (name != "softmax")
