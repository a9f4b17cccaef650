"""Caches as engines have them: rotated, in formats of single vectors, with ends left alone, and planted traps."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import sinkscope as ss
from sinkscope.caches import Coming
from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError
from sinkscope.grids import Fp8, Grid, LloydMax, MinMax, NvFp4, Rotated, RowFormat, lloyd_max
from sinkscope.hooks.dispatch import _editors
from sinkscope.quantization import SCHEMES, QuantizeCache, quantized_cache, rounded_layers, scheme_named
from sinkscope.quantization.kv import CacheScheme, calibrated_scales
from sinkscope.quantization.kv.rotated import plain_readers
from sinkscope.sinks import First
from tests.families.registry import FAMILIES
from tests.quantization.kv.test_cache import IDS, OPTIONS, read
from tests.quantization.kv.test_cached import simulated

EXACT = Rotated(Grid(16))
PADDED = torch.ones_like(IDS)
PADDED[1, :5] = 0


def llama(layers: int = 6, dim: int = 32, **options: Any) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=4 * dim,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        max_position_embeddings=128,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama()


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "falcon_h1", "deepseek_v3", "diffllama", "nano"])
def test_rotation_without_rounding_changes_nothing(name: str) -> None:
    """Grouped queries, learned sinks, softcaps, states, latents, an attention of its own, and a lab model."""
    model = ss.load("nano") if name == "nano" else FAMILIES[name].build(FAMILIES[name].hosts[0])
    cache = quantized_cache(model, EXACT, EXACT)
    turned = read(model, cache, IDS, PADDED if name == "llama" else None)
    plain = read(model, quantized_cache(model, Grid(16), Grid(16)), IDS, PADDED if name == "llama" else None)
    real = PADDED.bool() if name == "llama" else slice(None)
    torch.testing.assert_close(turned[real], plain[real], atol=2e-5, rtol=1e-4)
    if name in ("llama", "gpt_oss", "gemma2", "falcon_h1"):
        assert all(layer.stays_turned for layer in cache.quantized)  # the query is rotated, not every cached key
    assert not _editors


@torch.no_grad()
def test_attached_operations_get_keys_that_are_rotated_back() -> None:
    attached = llama(2)
    plain_readers(attached)  # known before something is attached
    ss.attach(attached, "sigmoid")
    cache = quantized_cache(attached, EXACT, EXACT)
    assert not any(layer.stays_turned for layer in cache.quantized)
    torch.testing.assert_close(
        read(attached, cache, IDS),
        read(attached, quantized_cache(attached, Grid(16), Grid(16)), IDS),
        atol=2e-5,
        rtol=1e-4,
    )


@torch.no_grad()
def test_a_copy_a_new_text_and_an_error_leave_nothing_behind(model: LlamaForCausalLM) -> None:
    numbers = Rotated(Grid(4))
    cache = quantized_cache(model, numbers, numbers, First(1))
    model(IDS[:, :9], past_key_values=cache)
    twin = deepcopy(cache)
    one, two = (model(IDS[:, 9:11], past_key_values=each).logits for each in (cache, twin))
    torch.testing.assert_close(one, two)
    with pytest.raises(IndexError):
        model(IDS[:, 11:] + 1000, past_key_values=cache)
    assert not _editors
    cache.reset()
    torch.testing.assert_close(
        read(model, cache, IDS), read(model, quantized_cache(model, numbers, numbers, First(1)), IDS)
    )


def test_where_the_query_is_not_rotated_the_keys_are_rotated_back(model: LlamaForCausalLM) -> None:
    wanted = read(model, quantized_cache(model, Rotated(Grid(4)), Rotated(Grid(3)), First(2)), IDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkscope.quantization.kv.cache.plain_readers", lambda model: frozenset())
        slow = quantized_cache(model, Rotated(Grid(4)), Rotated(Grid(3)), First(2))
    assert not any(layer.stays_turned for layer in slow.quantized)
    torch.testing.assert_close(read(model, slow, IDS), wanted, atol=1e-3, rtol=1e-3)


STORED = [name for name, scheme in SCHEMES.items() if scheme.caches and scheme.store is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STORED if not name.startswith("kv")])
def test_a_cache_returns_what_its_simulation_returns(model: LlamaForCausalLM, name: str) -> None:
    scheme = scheme_named(name)
    assert scheme.store is not None
    how: Any = scheme.make(model, {}, First(1))
    ids, mask = IDS[:, :12], PADDED[:, :12]
    wanted = simulated(model, ids, how, mask)
    found = read(model, scheme.store(model, First(1)), ids, mask, prompt=1)
    close = ((found - wanted).abs().amax(-1) < 1e-3)[mask.bool()]
    assert float(close.float().mean()) > 0.8  # a number on the border of two codes may fall to either
    whole = read(model, DynamicCache(config=model.config), ids, mask, prompt=1)
    assert float((found - whole)[mask.bool()].abs().max()) > 1e-3


@torch.no_grad()
def test_half_precision_and_generate(model: LlamaForCausalLM) -> None:
    half = deepcopy(model).to(torch.bfloat16)
    for name in ("turboquant_4bit_nc", "nvfp4_4over6", "q8_0"):
        scheme = scheme_named(name)
        assert scheme.store is not None
        written = half.generate(IDS, past_key_values=scheme.store(half, None), **OPTIONS)
        assert written.shape == (2, IDS.shape[1] + 8)
    exact = half.generate(IDS, past_key_values=quantized_cache(half, EXACT, EXACT), **OPTIONS)
    whole = half.generate(IDS, past_key_values=DynamicCache(config=half.config), **OPTIONS)
    assert float((exact == whole).float().mean()) > 0.9


def attended(cache: DynamicCache, states: tuple[Tensor, Tensor], layer: int) -> tuple[Tensor, Tensor]:
    """What a layer of a cache returns for the second of two tokens, in the model's own basis."""
    first, second = ([x[:, :, at] for x in states] for at in (slice(0, -1), slice(-1, None)))
    own: Any = cache.layers[layer]
    own.stays_turned = False
    for seen, (keys, values) in ((0, first), (first[0].shape[2], second)):
        own.expect(Coming(seen, keys.shape[2], len(keys)))
        found = own.update(keys, values)
    return found


def test_turboquant_is_its_steps_and_its_bytes(model: LlamaForCausalLM) -> None:
    """Norm, rotation, levels, renormalized; values from their minimum; 16 + 2 and 16 + 4 bytes for 32 channels."""
    scheme = scheme_named("turboquant_4bit_nc")
    assert scheme.store is not None
    cache = scheme.store(model, None)
    states = torch.randn(2, 1, 2, 5, 32, generator=torch.Generator().manual_seed(0)).unbind(0)
    keys, values = attended(cache, states, 2)
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(32)] for i in range(32)]) / 32**0.5
    norms = states[0].norm(dim=-1, keepdim=True)
    levels = lloyd_max(32, 4)
    nearest = levels[((states[0] / norms) @ signs)[..., None].sub(levels).abs().argmin(-1)]
    wanted = nearest / nearest.norm(dim=-1, keepdim=True) @ signs * norms.half().float()
    torch.testing.assert_close(keys, wanted, atol=2e-5, rtol=1e-4)
    low, high = states[1].amin(-1, keepdim=True), states[1].amax(-1, keepdim=True)
    step = (high - low) / 15
    codes = ((states[1] - low) / step + 0.5).floor()
    torch.testing.assert_close(values, codes * step.half().float() + low.half().float(), atol=1e-5, rtol=1e-5)
    assert held_bytes(cache.layers[2]) == 2 * 5 * (32 * 4 // 8 + 2 + 32 * 4 // 8 + 4)


def test_ends_stay_whole_except_in_hybrids_and_where_they_are_everything(model: LlamaForCausalLM) -> None:
    numbers = Rotated(LloydMax(3))
    assert rounded_layers(model, CacheScheme(numbers, MinMax(3), ends=2)) == [2, 3]
    cache = quantized_cache(model, numbers, MinMax(3), ends=2)
    assert cache.left_alone == [0, 1, 4, 5]
    hybrid = FAMILIES["falcon_h1"].build(FAMILIES["falcon_h1"].hosts[0])
    assert rounded_layers(hybrid, CacheScheme(numbers, MinMax(3), ends=2)) == [0, 1]
    with pytest.raises(InputError, match="all 4 of this model"):
        quantized_cache(ss.load("nano"), numbers, MinMax(3), ends=2)
    with pytest.raises(InputError, match="ends = -1: expected a number of layers"):
        CacheScheme(numbers, numbers, ends=-1)


def test_calibrated_scales_are_the_largest_numbers_of_the_tokens_that_count(model: LlamaForCausalLM) -> None:
    kept: Any = DynamicCache(config=model.config)
    with torch.no_grad():
        model(IDS, past_key_values=kept)
    keys, values = calibrated_scales(model, IDS, 448.0, protect=First(1))
    for index, layer in enumerate(kept.layers):
        assert keys[index] == pytest.approx(float(layer.keys[:, :, 1:].abs().max()) / 448)
        assert values[index] == pytest.approx(float(layer.values[:, :, 1:].abs().max()) / 448)
    how: Any = scheme_named("fp8-calibrated").make(model, {"input_ids": IDS}, First(1))
    assert how.keys == Fp8(keys)
    four: Any = scheme_named("nvfp4-calibrated").make(model, {"input_ids": IDS}, None)
    assert isinstance(four.values, NvFp4)
    wanted = simulated(model, IDS, QuantizeCache(Grid(16), Grid(16)))
    assert float((simulated(model, IDS, how) - wanted).abs().mean()) < 0.2 * float(wanted.std())


class Biased(nn.Module):
    """Keys with a constant, in the pair of channels that turns slowest: a token's position hardly changes it."""

    def __init__(self, keys: nn.Linear, bias: Tensor) -> None:
        super().__init__()
        self.keys, self.bias = keys, bias

    def forward(self, x: Tensor) -> Tensor:
        return self.keys(x) + self.bias


def kl(model: PreTrainedModel, keys: Any, ids: Tensor = IDS) -> float:
    with torch.no_grad():
        exact = model(ids).logits.log_softmax(-1)
        rounded = simulated(model, ids, QuantizeCache(keys, Grid(16))).log_softmax(-1)
    return float((exact.exp() * (exact - rounded)).sum(-1).mean())


def test_a_key_bias_of_the_first_layer_is_paid_for_by_ranges_of_tokens_rotated_or_not() -> None:
    """‖b‖ = 600 at layer 0, as in Qwen2: softmax ignores it, ranges of channels subtract it, rotation spreads it."""
    model, dim = llama(2, 32, rope_parameters={"rope_type": "default", "rope_theta": 1e9}), 32
    plain = {name: kl(model, numbers) for name, numbers in KEYS.items()}
    before = model(IDS).logits
    bias = torch.zeros(2, dim)
    bias[:, [dim // 2 - 1, dim - 1]] = 600 / 2**0.5
    attention = model.model.layers[0].self_attn
    attention.k_proj = Biased(attention.k_proj, bias.flatten())  # type: ignore[assignment]
    torch.testing.assert_close(model(IDS).logits, before, atol=0.05, rtol=0.02)
    biased = {name: kl(model, numbers) for name, numbers in KEYS.items()}
    for name in ("token", "rotated", "turboquant"):
        assert biased[name] > 20 * plain[name], name
    assert biased["channel"] < 3 * plain["channel"]


KEYS: dict[str, Grid | RowFormat | Rotated] = {
    "token": Grid(4),
    "rotated": Rotated(Grid(4)),
    "turboquant": Rotated(LloydMax(4)),
    "channel": Grid(4, "channel", group=4),
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("turboquant_4bit", "did you mean 'turboquant_4bit_nc'"),
        ("q8_0-rotated", "unknown scheme"),
        ("nvfp4-all", "unknown scheme"),
        ("kv3-kvquant-rotated", "leave out -rotated"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        scheme_named(name)
