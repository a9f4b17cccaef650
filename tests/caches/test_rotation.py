"""What a model turns, how fast and which way round, measured and held against what the model itself does elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.caches import LayerRotation, Rotation, measured_rotations
from sinkscope.errors import UnsupportedModelError
from tests.caches.families import slow_but
from tests.families.registry import COLLECTED, ENTRIES, FAMILIES, REFUSED, Family

EVERY = FAMILIES | COLLECTED | ENTRIES | REFUSED
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}

# What is known of a family's code: where the pairs are, how many channels, which part of the cache.
KNOWN = {
    "llama": ("half", 0, 8, "keys"),
    "cohere": ("interleaved", 0, 8, "keys"),
    "glm4": ("interleaved", 0, 4, "keys"),
    "gptj": ("interleaved", 0, 4, "keys"),
    "phi": ("half", 0, 4, "keys"),
    "nanochat": ("half", 0, 8, "keys"),
    "deepseek_v2": ("interleaved", 0, 8, "values"),
    "deepseek_v3": ("half", 0, 8, "values"),
    "falcon_h1": ("half", 0, 8, "keys"),
}
TURNED = (*KNOWN, "gemma3", "gemma2", "bamba", "codegen", "gpt_oss", "modernbert_decoder", "exaone4", "deepseek_v4")
STILL = ("jamba", "bloom", "mpt", "nemotron_h", "flint", "granitemoehybrid")
REFUSALS = {
    "gpt2": "absolute positions",
    "opt": "absolute positions",
    "bert_decoder": "absolute positions",
    "gpt_neo": "absolute positions",
    "trocr": "no position_ids",
    "xlnet": "no position_ids",
    "inkling2": "bias by distance",
    "falcon_alibi": "tokens seen",
    "minimax": "cache of its own",
    "recurrent_gemma": "cache of its own",
    "openai_gpt": "does not keep its keys",
    "minimax_m3": "does not run on single tokens",
}


def cached_at(model: Any, token: int, place: int) -> dict[int, tuple[Tensor, Tensor]]:
    """What a model caches of one token alone at a place."""
    cache = DynamicCache(config=model.config.get_text_config())
    with torch.no_grad():
        model(torch.tensor([[token]]), position_ids=torch.tensor([[place]]), past_key_values=cache, use_cache=True)
    layers = [(index, layer) for index, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is not None]
    return {index: (layer.keys, layer.values) for index, layer in layers}


def check_turned(model: Any, tolerance: float = 2e-5) -> None:
    """Other tokens at other places than those of the measurement are turned into one another."""
    rotations = measured_rotations(model)
    for token, here, there in ((33, 7, 29), (60, 55, 12)):
        before, after = cached_at(model, token, here), cached_at(model, token, there)
        assert before.keys() == rotations.keys()
        for layer, rotation in rotations.items():
            turns = (rotation.keys, rotation.values)
            for turn, old, new in zip(turns, before[layer], after[layer], strict=True):
                made = old if turn is None else turn.turn(old, torch.tensor(there - here))
                assert (made - new).abs().max() <= tolerance * new.abs().max()


def test_turning_is_a_rotation() -> None:
    rotation = Rotation(2, (1.0, 0.25), "interleaved")
    x = torch.randn(3, 2, 5, 8)
    by = torch.tensor([0.0, 3.0, -4.0])[:, None, None]
    turned = rotation.turn(x, by)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotation.turn(turned, -by), x)
    torch.testing.assert_close(turned[0], x[0], rtol=0, atol=0)
    assert torch.equal(turned[..., [0, 1, 6, 7]], x[..., [0, 1, 6, 7]])
    first = torch.view_as_complex(x[2, ..., 2:4].contiguous()) * torch.exp(torch.tensor(-4j))
    torch.testing.assert_close(torch.view_as_complex(turned[2, ..., 2:4].contiguous()), first)


def test_angles_are_exact_far_out() -> None:
    rotation = Rotation(0, (2 * math.pi / 1000, -2 * math.pi / 64), "half")  # whole turns after 8,000 positions
    x = torch.randn(3, 4)
    assert (rotation.turn(x, torch.tensor([8_000, 80_000_000, -9_992_000])) - x).abs().max() < 1e-6


@pytest.mark.parametrize("name", slow_but(("cohere", "nanochat", "deepseek_v3"), KNOWN))
def test_the_layout_of_a_family_is_found(name: str) -> None:
    layout, start, width, part = KNOWN[name]
    for rotation in measured_rotations(EVERY[name].build(EVERY[name].hosts[0])).values():
        turned = getattr(rotation, part)
        assert (turned.layout, turned.start, turned.width) == (layout, start, width)
        assert LayerRotation(rotation.keys, rotation.values) == LayerRotation(
            **{"keys": None, "values": None, part: turned}
        )
        assert (turned.frequencies[0] < 0) == (name == "nanochat")


@pytest.mark.parametrize("name", slow_but(("llama", "phi", "gptj"), TURNED))
def test_what_is_measured_turns_other_tokens_to_other_places(name: str) -> None:
    check_turned(EVERY[name].build(EVERY[name].hosts[0]))


@pytest.mark.parametrize("name", slow_but(("mpt", "flint"), STILL))
def test_models_without_a_rotation_are_told(name: str) -> None:
    family = EVERY[name]
    found = measured_rotations(family.build(family.hosts[0]))
    assert set(found.values()) == {LayerRotation(None, None)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", slow_but(("llama",), ("llama", "gemma3", "cohere", "minicpm3")))
def test_the_type_of_the_weights_does_not_change_what_is_found(name: str, dtype: torch.dtype) -> None:
    family = EVERY[name]
    plain, found = (measured_rotations(family.build("sdpa", dtype=one)) for one in (torch.float32, dtype))

    def shape(rotation: Rotation | None) -> tuple | None:
        return rotation and (rotation.layout, rotation.start, rotation.width)

    for layer, rotation in found.items():
        assert shape(rotation.keys) == shape(plain[layer].keys)
        assert shape(rotation.values) == shape(plain[layer].values)


def test_kinds_of_layers_have_frequencies_of_their_own() -> None:
    found = measured_rotations(FAMILIES["gemma3"].build())
    local, full = found[0].keys, found[1].keys
    assert local is not None
    assert full is not None
    assert local.frequencies[1] > 2 * full.frequencies[1]


SCALED = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
}


def scaled(kind: str, **options: Any) -> Any:
    rope = {"rope_type": kind, "rope_theta": 10000.0, **options}
    options = {**FAMILIES["llama"].options, "rope_parameters": rope, "max_position_embeddings": 256}
    return Family("LlamaConfig", options).build()


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_frequencies_are_those_of_the_model(kind: str) -> None:
    check_turned(scaled(kind, **SCALED[kind]))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_change_with_the_length_are_refused(kind: str) -> None:
    more = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
    model = scaled(kind, factor=4.0, **(more if kind == "longrope" else {}))
    with pytest.raises(UnsupportedModelError, match=f"rope_type '{kind}'"):
        measured_rotations(model)


@pytest.mark.parametrize("name", slow_but(("gpt2", "trocr", "inkling2", "minimax"), REFUSALS))
def test_what_cannot_be_turned_is_refused_by_name(name: str) -> None:
    model = EVERY[name].build(EVERY[name].hosts[0])
    with pytest.raises(UnsupportedModelError, match=f"family '{model.config.model_type}'.*{REFUSALS[name]}"):
        measured_rotations(model)


def test_the_model_stays_as_it_was() -> None:
    model = FAMILIES["llama"].build()
    model.train()
    measured_rotations(model)
    assert model.training
    assert not model._forward_pre_hooks
