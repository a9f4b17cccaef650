"""Heads are told apart by what few queries ask and by what cutting them does: planted ones are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.caches import HeadClasses, head_effects
from sinkscope.errors import InputError
from sinkscope.measurement import WindowMass, measure

LENGTH, SINKS, RECENT = 48, 2, 8
IDS = torch.randint(3, 90, (3, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, num_key_value_heads=2, **sizes)).eval()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, 32:] = 0  # nobody reads the second group of layer 1
    return model


def window_by_loops(maps: Tensor, pads: list[int]) -> Tensor:
    found = torch.full(maps.shape[:3], torch.nan)
    for row, pad in enumerate(pads):
        for t in range(pad, maps.shape[2]):
            keys = {k for k in range(pad, t + 1) if k < pad + SINKS or k > t - RECENT}
            found[row, :, t - pad] = maps[row, :, t, sorted(keys)].sum(-1)
    return found


@torch.no_grad()
def test_window_mass_is_that_of_loops(model: LlamaForCausalLM) -> None:
    mask = torch.ones_like(IDS)
    mask[1, :5] = 0
    measured = measure(model, {"input_ids": IDS, "attention_mask": mask}, observers=[WindowMass(SINKS, RECENT)])
    model.set_attn_implementation("eager")
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    maps = model(IDS, attention_mask=mask, position_ids=positions, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    found = measured.data["window_mass"].values
    for layer, weights in enumerate(maps):
        np.testing.assert_allclose(found[:, layer], window_by_loops(weights, [0, 5, 0]).numpy(), atol=1e-5)


def planted(low: dict[tuple[int, int], int]) -> Any:
    """A measurement in which, in some heads, so many of 300 queries look elsewhere."""
    import xarray as xr

    from sinkscope.measurement import Measurement

    mass = np.full((3, 2, 4, 100), 0.99)
    for (layer, head), queries in low.items():
        mass[0, layer, head, :queries] = 0.0
    return Measurement(
        xr.Dataset(
            {"window_mass": (("sample", "layer", "head", "position"), mass)},
            coords={"stack": ("layer", ["decoder", "decoder"])},
        )
    )


def test_a_head_of_which_nothing_is_known_has_no_class() -> None:
    """NaN is below no threshold: such a head would stream, and what it retrieves would be lost."""
    measured = planted({(0, 1): 15})
    measured.data["window_mass"][:, 1, 2] = np.nan
    with pytest.raises(InputError, match=r"^HeadClasses.of: head 1.2 has no window_mass, so its class is unknown"):
        HeadClasses.of(measured, 8)


def test_a_head_that_retrieves_once_in_a_while_retrieves() -> None:
    classes = HeadClasses.of(planted({(0, 1): 15, (1, 2): 1}), 8, quantile=0.02)
    assert classes.retrieves.tolist() == [[False, True, False, False], [False] * 4]
    kept = classes.of_heads(torch.zeros(1, 2, 50), torch.tensor([8]), 0)
    assert (kept[0] > 1000).tolist() == [True, False]


def test_what_nobody_reads_has_no_effect(model: LlamaForCausalLM) -> None:
    mask = torch.ones_like(IDS)
    mask[2, :3] = 0
    for host in ("eager", "sdpa"):
        model.set_attn_implementation(host)
        found = head_effects(model, {"input_ids": IDS, "attention_mask": mask}, SINKS, RECENT)
        assert found.shape == (2, 2)
        assert abs(found[1, 1]) < 1e-6
        assert all(abs(found[layer, head]) > 1e-6 for layer, head in ((0, 0), (0, 1), (1, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("host", ["eager", "sdpa"])
def test_padding_on_either_side_changes_nothing(model: LlamaForCausalLM, host: str) -> None:
    model.set_attn_implementation(host)
    alone = head_effects(model, {"input_ids": IDS}, SINKS, RECENT)
    assert np.abs(alone).max() > 1e-4
    for pads in ((5, 0), (0, 5), (2, 3)):
        inputs = {"input_ids": F.pad(IDS, pads), "attention_mask": F.pad(torch.ones_like(IDS), pads)}
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        np.testing.assert_allclose(head_effects(model, inputs, SINKS, RECENT), alone, atol=3e-6)


def test_sinks_and_window_stay(model: LlamaForCausalLM) -> None:
    inputs = {"input_ids": IDS}
    but_one = head_effects(model, inputs, LENGTH - 1 - RECENT, RECENT)  # the last query alone misses a key: not scored
    np.testing.assert_allclose(but_one, 0, atol=1e-6)
    assert np.abs(head_effects(model, inputs, 0, RECENT)).max() > 1e-4
    assert np.abs(head_effects(model, inputs, 0, LENGTH - 2)).max() < np.abs(head_effects(model, inputs, 0, 1)).max()


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"input_ids": IDS[:, :10]}, "give longer texts"),
        ({"input_ids": IDS, "attention_mask": (torch.arange(LENGTH) < 10).expand(3, -1)}, "texts of 10 tokens"),
        ({"inputs_embeds": torch.zeros(1, 9, 64)}, "need input_ids"),
    ],
)
def test_bad_input_is_refused(model: LlamaForCausalLM, inputs: dict[str, Tensor], says: str) -> None:
    with pytest.raises(InputError, match=says):
        head_effects(model, inputs, SINKS, RECENT)
