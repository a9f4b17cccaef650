"""Keys that stand for several tokens, or for another stack's: what they receive, beside tokens and the learned sink."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import AttentionEntropy, AttentionReceived, EntriesReceived, SlotReceived, measure
from sinkscope.measurement.calls import masks
from tests.families.registry import ENTRIES

OBSERVERS = [AttentionReceived(), SlotReceived(), EntriesReceived(), AttentionEntropy()]


def maps(inputs: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return list(ENTRIES["deepseek_v4"].build("eager")(**inputs, output_attentions=True).attentions)


def padded(side: str) -> dict[str, Tensor]:
    inputs = ENTRIES["deepseek_v4"].inputs()
    mask = torch.ones_like(inputs["input_ids"])
    hidden = slice(0, 8) if side == "left" else slice(16, None)
    mask[1, hidden] = 0
    return {**inputs, "attention_mask": mask}


def test_tokens_entries_and_the_sink_share_the_mass_of_the_models_own_maps() -> None:
    family = ENTRIES["deepseek_v4"]
    inputs = family.inputs()
    tokens = inputs["input_ids"].shape[1]
    data = measure(family.build(), inputs, OBSERVERS).data
    sizes = set()
    for layer, weights in enumerate(maps(inputs)):
        own, entries = weights[..., :tokens], weights[..., tokens:]
        sizes.add(entries.shape[-1])
        received = torch.from_numpy(data["attention_received"].values[:, layer])
        torch.testing.assert_close(received, own.sum(-2) / (own > 0).sum(-2), atol=1e-5, rtol=0)
        found = torch.from_numpy(data["entry_received"].values[:, layer, :, : entries.shape[-1]])
        torch.testing.assert_close(found, entries.mean(-2), atol=1e-5, rtol=0)
        slot = torch.from_numpy(data["slot_received"].values[:, layer])
        torch.testing.assert_close(slot, 1 - weights.sum(-1).mean(-1), atol=1e-5, rtol=0)
        every = torch.cat([weights, (1 - weights.sum(-1, keepdim=True)).clamp(min=0)], -1)
        entropy = torch.from_numpy(data["attention_entropy"].values[:, layer])
        torch.testing.assert_close(entropy, torch.special.entr(every).sum(-1).mean(-1), atol=2e-4, rtol=0)
    assert sizes == {3, 6}, "two rates of compression"
    assert float(data["entry_received"].sum("entry").min()) > 0.01, "entries must matter for this to mean something"


def test_right_padding_changes_no_real_row() -> None:
    family = ENTRIES["deepseek_v4"]
    model, inputs = family.build(), padded("right")
    both = measure(model, inputs, OBSERVERS).data
    alone = measure(model, {"input_ids": inputs["input_ids"][1:2, :16]}, OBSERVERS).data
    assert both["tokens"].values[1].tolist() == [16, 16]
    found = torch.from_numpy(both["attention_received"].values[1, ..., :16])
    torch.testing.assert_close(found, torch.from_numpy(alone["attention_received"].values[0]), atol=1e-5, rtol=0)


def test_entries_of_which_the_mask_does_not_tell_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks.DenseMask, "sees_itself", lambda self, real: False)
    family = ENTRIES["deepseek_v4"]
    with pytest.raises(UnsupportedModelError, match="attends to 27 keys for 24 tokens, and its mask does not tell"):
        measure(family.build(), family.inputs(), OBSERVERS)
