"""Peaks of experts, against each family's own formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import every, measure
from sinkscope.measurement.observers.experts import ExpertPeaks, _of_routed
from sinkscope.measurement.observers.observer import ModuleCall
from tests.measurement.conftest import build

IDS = torch.randint(3, 97, (3, 12), generator=torch.Generator().manual_seed(5))


def mixtral_peaks(model: torch.nn.Module, ids: torch.Tensor, real: torch.Tensor) -> np.ndarray:
    """max over a sample's routed real tokens of |W_down (silu(W_gate x) * W_up x)|, an expert at a time."""
    seen: list[tuple[torch.nn.Module, tuple]] = []
    blocks = [layer.mlp.experts for layer in model.model.layers]
    hooks = [block.register_forward_pre_hook(lambda module, args: seen.append((module, args))) for block in blocks]
    with torch.no_grad():
        model(input_ids=ids, attention_mask=real.long())
    for hook in hooks:
        hook.remove()
    peaks = np.full((len(ids), len(seen), len(blocks[0].down_proj)), np.nan)
    for layer, (experts, (hidden, index, _)) in enumerate(seen):
        for row, chosen in enumerate(index.tolist()):
            sample, position = divmod(row, ids.shape[1])
            for expert in chosen if real[sample, position] else ():
                gate, up = (experts.gate_up_proj[expert] @ hidden[row]).chunk(2)
                value = float((experts.down_proj[expert] @ (F.silu(gate) * up)).detach().abs().max())
                peaks[sample, layer, expert] = np.nanmax([peaks[sample, layer, expert], value])
    return peaks


def test_peaks_follow_the_formula_and_leave_padding_out() -> None:
    model, real = build("mixtral"), torch.ones_like(IDS).bool()
    real[0, :4] = False
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.experts.down_proj.mul_(50)
    measured = measure(model, {"input_ids": IDS, "attention_mask": real.long()}, [ExpertPeaks()])
    assert measured.data["expert_peak"].dims == ("sample", "moe_layer", "expert")
    np.testing.assert_allclose(
        measured.data["expert_peak"].values, mixtral_peaks(model, IDS, real), rtol=1e-4, atol=1e-6
    )


def test_a_planted_super_expert_is_found() -> None:
    model = build("mixtral")
    with torch.no_grad():
        model.model.layers[1].mlp.experts.down_proj[0].mul_(1000)
    table = measure(model, IDS, [ExpertPeaks()]).super_experts()
    assert table[["layer", "expert"]].values.tolist() == [["model.layers.1.mlp.experts", 0]]
    assert float(table["times_median"].iloc[0]) > 100


@pytest.mark.parametrize("name", ["gpt_oss", "llama4", "jamba", "qwen3_next"])
def test_other_families_and_batches(name: str) -> None:
    model = build(name, "eager")
    whole = measure(model, IDS, [ExpertPeaks()]).data["expert_peak"]
    single = measure(model, IDS, [ExpertPeaks()], batch_size=1).data["expert_peak"]
    assert float(whole.max()) > 0
    np.testing.assert_allclose(whole.values, single.values, rtol=1e-4, atol=1e-7)


def test_a_dense_model_has_none() -> None:
    model = build("llama")
    with pytest.raises(UnsupportedModelError, match="'llama' has no experts"):
        measure(model, IDS, [ExpertPeaks()])
    assert ExpertPeaks() in every()
    assert "no experts" in measure(model, IDS, "all").record["not_applicable"]["ExpertPeaks"]


def test_experts_of_other_tokens_than_those_of_the_mask_say_nothing() -> None:
    """Such as those of a canvas that a model writes on beside its text."""
    experts = next(module for name, module in build("mixtral").named_modules() if name.endswith("experts"))
    real = torch.ones(2, 6, dtype=torch.bool)
    hidden, chosen = torch.randn(2 * 6, 32), torch.zeros(2 * 6, 1, dtype=torch.long)
    [piece] = _of_routed(ModuleCall(2, 0, real, 0), experts, (hidden, chosen))
    assert piece.values.shape[0] == 2
    other = (torch.randn(2 * 10, 32), torch.zeros(2 * 10, 1, dtype=torch.long))
    assert list(_of_routed(ModuleCall(2, 0, real, 0), experts, other)) == []
