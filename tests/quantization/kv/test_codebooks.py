"""KVQuant's levels: exact where few values are, at rest as k-means is, placed where the loss feels errors."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sinkscope.errors import InputError
from sinkscope.grids import Codebooks, LayerCodes, levels_of, on_levels, outlying
from sinkscope.hooks import attention_layers
from sinkscope.quantization import Grid, QuantizeCache, find_codebooks, quantized_cache
from sinkscope.sinks import First
from sinkscope.trials import scheme_trial
from tests.families.registry import FAMILIES
from tests.quantization.kv.test_cache import IDS
from tests.quantization.kv.test_cached import simulated


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_two_values_are_exact_however_rare_one_is() -> None:
    x = torch.where(torch.arange(200) == 7, 1.0, -1.0)
    for count in (2, 4, 8):
        levels = levels_of(x, torch.ones(200), count)
        assert torch.equal(on_levels(x * 3 + 5, torch.tensor(2.0), torch.tensor(8.0), levels), x * 3 + 5)


@pytest.mark.parametrize("seed", range(3))
def test_levels_are_the_best_of_all_ways_to_cut(seed: int) -> None:
    """k-means on a line cuts it into stretches: of 14 points all cuts into 3 are tried."""
    x, w = random(14, seed=seed).sort().values, random(14, seed=seed + 9).abs()

    def cost(cuts: tuple[int, ...]) -> float:
        parts = [slice(a, b) for a, b in zip((0, *cuts), (*cuts, 14), strict=True)]
        return sum(float((w[p] * (x[p] - (w[p] * x[p]).sum() / w[p].sum()) ** 2).sum()) for p in parts)

    costs = [cost(cuts) for cuts in combinations(range(1, 14), 2)]
    levels = levels_of(x, w, 3)
    found = float((w * (x[:, None] - levels).abs().amin(1) ** 2).sum())
    assert min(costs) * 0.999 <= found <= 1.5 * min(costs)  # Lloyd ends in a valley, not always the deepest
    assert found <= sorted(costs)[len(costs) // 10]
    nearest = (x[:, None] - levels).abs().argmin(1)
    for level in range(3):  # each level is the weighted mean of what is nearest to it
        own = nearest == level
        assert float(levels[level]) == pytest.approx(float((w[own] * x[own]).sum() / w[own].sum()), abs=1e-5)


def books(bits: int, outliers: float, *, low: float = -2.0, high: float = 2.0) -> Codebooks:
    levels = torch.linspace(-1, 1, 2**bits)
    ends = torch.full((2, 8), low), torch.full((2, 8), high)
    return Codebooks(bits, outliers, {0: LayerCodes(*ends, levels, levels)})


def test_outliers_stay_and_cost_the_others_nothing() -> None:
    keys, values = random(1, 2, 6, 8).clamp(-1.9, 1.9), random(1, 2, 6, 8, seed=1)
    none = torch.zeros(1, 6, dtype=torch.bool)
    made = books(3, 1 / 16)
    plain = made.rounded_keys(0, keys, none), made.rounded_values(0, values, none)
    far_keys, far_values = keys.clone(), values.clone()
    far_keys[0, 1, 3, 5] = 90.0
    place = outlying(values, 1 / 16)[0, :, 3].nonzero()[0].tolist()  # the one that is aside in token 3 already
    far_values[0, place[0], 3, place[1]] = 90.0
    coarse = made.rounded_keys(0, far_keys, none), made.rounded_values(0, far_values, none)
    assert coarse[0][0, 1, 3, 5] == coarse[1][0, place[0], 3, place[1]] == 90.0
    for mine, theirs, far in zip(coarse, plain, (far_keys, far_values), strict=True):
        others = far != 90.0
        assert torch.equal(mine[others], theirs[others])
        assert not torch.equal(theirs, far)
    without = books(3, 0.0).rounded_values(0, far_values, none)  # without outliers, one number takes its token's range
    error = (without - far_values)[:, :, 3].abs().mean()
    assert error > 5 * (coarse[1] - far_values)[:, :, 3].abs().mean()


def test_even_levels_are_the_grid_of_each_token() -> None:
    values, none = random(2, 1, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    from sinkscope.quantization import fake_quantize

    made = Codebooks(3, 0.0, {0: LayerCodes(*random(2, 1, 8), torch.zeros(8), torch.linspace(-1, 1, 8))})
    torch.testing.assert_close(made.rounded_values(0, values, none), fake_quantize(values, Grid(3, "token")))


def test_sensitivities_are_the_gradients_of_keys_before_rotation(model: PreTrainedModel) -> None:
    """With the levels' weights read off a loop of its own: one level is the weighted mean of the scaled keys."""
    kept: dict[int, Tensor] = {}

    def keep(number: int):
        def hook(module: object, args: object, output: Tensor) -> None:
            output.retain_grad()
            kept[number] = output

        return hook

    layers = list(attention_layers(model))
    hooks = [module.k_proj.register_forward_hook(keep(at)) for at, module in enumerate(layers)]
    logits = model(IDS, use_cache=False).logits
    logits[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None]).sum().neg().backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    found = find_codebooks(model, IDS, 1, outliers=0.0)
    for number, output in kept.items():
        heads = found.layers[number].low.shape[0]
        key, grad = (x.detach().flatten(0, 1).unflatten(-1, (heads, -1)) for x in (output, output.grad))
        low, high = key.amin(0), key.amax(0)
        torch.testing.assert_close(found.layers[number].low, low, atol=1e-5, rtol=1e-4)
        half = (high - low) / 2
        scaled, weight = (key - (high + low) / 2) / half, (grad * half) ** 2
        wanted = levels_of(scaled.flatten(), weight.flatten(), 2)
        torch.testing.assert_close(found.layers[number].keys, wanted, atol=2e-3, rtol=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters())


@torch.no_grad()
def test_in_a_model_more_bits_cost_less_and_chunks_do_not_matter(model: PreTrainedModel) -> None:
    full = model(IDS).logits
    errors = []
    for bits in (1, 3, 6):
        how = QuantizeCache.of(find_codebooks(model, IDS, bits), First(1))
        found = simulated(model, IDS, how)
        errors.append(float((found - full).abs().mean()))
        cache = DynamicCache(config=model.config)
        with how.applied(model):
            parts = [model(part, past_key_values=cache).logits for part in IDS.split(7, 1)]
        torch.testing.assert_close(torch.cat(parts, 1), found, atol=2e-5, rtol=1e-4)
    assert errors[0] > 2 * errors[1] > 8 * errors[2] > 0


def test_padding_counts_nowhere(model: PreTrainedModel) -> None:
    padded = torch.nn.functional.pad(IDS, (4, 0), value=5)
    mask = torch.nn.functional.pad(torch.ones_like(IDS), (4, 0))
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    plain = find_codebooks(model, IDS, 2)
    left = find_codebooks(model, {"input_ids": padded, "attention_mask": mask, "position_ids": places}, 2)
    for number, codes in plain.layers.items():
        for name in ("low", "high", "keys", "values"):
            mine, theirs = getattr(left.layers[number], name), getattr(codes, name)
            torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)


def test_it_is_a_scheme_by_its_name(model: PreTrainedModel) -> None:
    found = scheme_trial(model, IDS, "kv2-kvquant", First(1), controls=0, context=8, in_sample=True)
    assert found.mean("kv2-kvquant").value > 0
    assert found.record["quantizer"]["codebooks"]["outliers"] == 0.01


def test_what_has_no_meaning_is_refused(model: PreTrainedModel) -> None:
    made = books(2, 0.01)
    with pytest.raises(InputError, match="from 1 to 8"):
        find_codebooks(model, IDS, 9)
    with pytest.raises(InputError, match=r"outliers = 0\.5"):
        find_codebooks(model, IDS, 2, outliers=0.5)
    with pytest.raises(InputError, match="codebooks have their own grids"):
        QuantizeCache(Grid(2), Grid(2), codebooks=made)
    with pytest.raises(InputError, match="no levels for layer"):
        made.rounded_keys(3, random(1, 2, 4, 8), torch.zeros(1, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="before_rotation=True"):
        quantized_cache(model, Grid(2), Grid(2), before_rotation=True)
