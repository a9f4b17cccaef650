"""A quantized cache simulated in one pass: it is the real one, read a token at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import sinkscope as ss
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import stored_steps
from sinkscope.hooks import Invocation, attention_layers, key_projection, watching
from sinkscope.interventions import All
from sinkscope.quantization import Grid, QuantizeCache, fake_quantize, quantized_cache
from sinkscope.quantization.kv.rounding import rounded_states
from sinkscope.quantization.kv.softmax import check_same
from sinkscope.sinks import First, Measured, Positions, Tokens
from sinkscope.trials.changes import changed
from tests.caches.families import slow_but
from tests.families.registry import COLLECTED, FAMILIES
from tests.quantization.kv.test_cache import IDS, lab, read

KIVI = Grid(2, "channel", group=4), Grid(2, "token")
TOKEN = Grid(2, "token"), Grid(3, "token", group=4)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


@torch.no_grad()
def simulated(model: Any, ids: Tensor, how: QuantizeCache, mask: Tensor | None = None) -> Tensor:
    given = {} if mask is None else {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    with how.applied(model):
        return model(ids, **given).logits


@pytest.mark.slow
@pytest.mark.parametrize("host", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["kivi", "token"])
def test_it_is_the_real_cache_read_a_token_at_a_time(name: str, host: Any) -> None:
    grids = {"kivi": KIVI, "token": TOKEN}[name]
    model = FAMILIES["llama"].build(host)
    mask = torch.ones_like(IDS)
    mask[1, :5] = 0
    for protect, window in ((None, 0), (First(2), 3)):
        for padding in (None, mask):
            found = simulated(model, IDS, QuantizeCache(*grids, protect, window), padding)
            wanted = read(model, quantized_cache(model, *grids, protect, window), IDS, padding, prompt=1)
            real = slice(None) if padding is None else padding.bool()
            torch.testing.assert_close(found[real], wanted[real], atol=2e-5, rtol=1e-4)
    plain = read(model, DynamicCache(config=model.config), IDS, prompt=1)
    assert (found - plain)[real].abs().max() > 1e-3


SOFTMAXES = ("gpt_oss", "gemma2", "qwen3_moe", "gpt2", "gpt_neox", "olmo2", "cohere")


@pytest.mark.parametrize("name", slow_but(("gpt_oss", "gemma2"), SOFTMAXES))
def test_learned_sinks_softcaps_and_windows_are_the_models_own(name: str) -> None:
    family = (FAMILIES | COLLECTED)[name]
    model = family.build(family.hosts[0])
    found = simulated(model, IDS, QuantizeCache(*KIVI, Positions(0, 3)))
    wanted = read(model, quantized_cache(model, *KIVI, Positions(0, 3)), IDS, prompt=1)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_a_pass_over_a_cache_goes_on_where_it_was(model: PreTrainedModel) -> None:
    how = QuantizeCache(*KIVI, First(1), window=2)
    whole = simulated(model, IDS, how)
    with how.applied(model):
        for cuts in ((7, 8, 9, 15, 19), (19,), (1, 19)):
            cache, start, parts = DynamicCache(config=model.config), 0, []
            for stop in cuts:
                parts.append(model(IDS[:, start:stop], past_key_values=cache).logits)
                start = stop
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "grid",
    [
        Grid(2, "head"),
        Grid(3, "tensor"),
        Grid(2, "channel"),
        Grid(3, "head", symmetric=True),
        Grid(2, "channel", group=4),
        Grid(2, "token", group=4),
    ],
)
def test_nothing_looks_ahead(model: PreTrainedModel, grid: Grid) -> None:
    """Predictions of the first tokens do not change with what comes later."""
    how, other = QuantizeCache(grid, grid), IDS.clone()
    other[:, 10:] = other[:, 10:].flip(1) + 1
    both = [simulated(model, ids, how) for ids in (IDS, other)]
    assert torch.equal(both[0][:, :10], both[1][:, :10])
    assert not torch.equal(both[0][:, 10:], both[1][:, 10:])


def test_ranges_that_grow_are_those_of_the_text_so_far() -> None:
    """Each token is what the range of everything until it, cut off there, makes of it."""
    x = torch.randn(2, 3, 9, 6, generator=torch.Generator().manual_seed(0))
    left = torch.zeros(2, 9, dtype=torch.bool)
    left[0, [0, 4]] = left[1, 2] = True
    for over in ("head", "channel", "tensor"):
        for symmetric in (False, True):
            grid = Grid(4, over, symmetric=symmetric)  # type: ignore[arg-type]
            found = rounded_states(x, grid, left)
            for t in range(9):
                for row in range(2):
                    text, protect = x[row, :, : t + 1], left[row, : t + 1, None]
                    steps = stored_steps(text, grid, protect)
                    wanted = fake_quantize(text[:, -1:], grid, protect[-1:], steps)
                    assert torch.equal(found[row, :, t : t + 1], wanted)


def test_sixteen_bits_and_everything_protected_change_nothing(model: PreTrainedModel) -> None:
    with torch.no_grad():
        plain = model(IDS).logits
    assert torch.equal(simulated(model, IDS, QuantizeCache(Grid(16), Grid(16))), plain)
    every = Positions(*range(19))
    for grids in (KIVI, TOKEN, (Grid(2, "head"), Grid(2, "head"))):
        torch.testing.assert_close(simulated(model, IDS, QuantizeCache(*grids, every)), plain, atol=1e-6, rtol=1e-4)
    error = [
        float((simulated(model, IDS, QuantizeCache(Grid(b, "head"), Grid(b, "head"))) - plain).abs().mean())
        for b in (2, 4, 8)
    ]
    assert error[0] > error[1] > error[2] > 0


@torch.no_grad()
def test_keys_before_rotation_are_those_of_the_projection(model: PreTrainedModel) -> None:
    """Rounded there as KVQuant does it, per channel over groups of tokens; the rotation is the model's own."""
    given: dict[int, Tensor] = {}
    inputs: dict[int, Tensor] = {}

    class Seen:
        def watches(self, module: Any) -> bool:
            return True

        def attended(self, call: Invocation) -> None:
            given[call.module.layer_idx] = call.arguments["key"]  # type: ignore[index]

    layers = {module.layer_idx: module for module in attention_layers(model)}
    hooks = [
        module.register_forward_pre_hook(
            lambda m, args, kwargs: inputs.update({m.layer_idx: kwargs["hidden_states"]}), with_kwargs=True
        )
        for module in layers.values()
    ]
    grid = Grid(3, "token")
    with QuantizeCache(grid, Grid(16), before_rotation=True).applied(model), watching(Seen()):
        model(IDS)
    for hook in hooks:
        hook.remove()
    rotations = ss.caches.measured_rotations(model)
    for index, module in layers.items():
        made = key_projection(model, module)(inputs[index])
        turn = rotations[index].keys
        assert turn is not None
        wanted = turn.turn(rounded_states(made, grid, torch.zeros(2, 19, dtype=torch.bool)), torch.arange(19))
        torch.testing.assert_close(given[index], wanted, atol=1e-5, rtol=1e-4)
    after = simulated(model, IDS, QuantizeCache(*KIVI))
    before = simulated(model, IDS, QuantizeCache(*KIVI, before_rotation=True))
    assert not torch.allclose(after, before)
    exact = simulated(model, IDS, QuantizeCache(Grid(15, "token"), Grid(16), before_rotation=True))
    torch.testing.assert_close(exact, model(IDS).logits, atol=1e-3, rtol=0)


def test_it_is_an_intervention_as_any_other(model: PreTrainedModel) -> None:
    how = QuantizeCache(*KIVI, Positions(0))
    found = changed(model, IDS, how, controls=2)
    assert found.mean("QuantizeCache").value > 0
    facts = found.record["arms"]
    names = [facts[arm]["protect"]["chosen_by"] for arm in ("QuantizeCache", *found.controls("QuantizeCache"))]
    assert names == ["positions:0", *2 * ["random, as many as positions:0"]]
    with torch.no_grad(), All((how,)).applied(model):
        both = model(IDS).logits
    assert torch.equal(both, simulated(model, IDS, how))
    generator = torch.Generator().manual_seed(0)
    control = how.control(generator, model, {"input_ids": IDS})
    assert isinstance(control.protect, Tokens)
    assert control.protect.any_head().sum(-1).tolist() == [1, 1]
    with pytest.raises(InputError, match="nothing is protected"):
        QuantizeCache(*KIVI).control(generator, model, {"input_ids": IDS})


def test_gradients_pass_straight_through(model: PreTrainedModel) -> None:
    embedded = model.get_input_embeddings()(IDS).detach().requires_grad_()
    for grids in (KIVI, TOKEN):
        with QuantizeCache(*grids).applied(model):
            model(inputs_embeds=embedded).logits.square().sum().backward()
        assert embedded.grad is not None
        assert embedded.grad.abs().sum(-1).min() > 0
        embedded.grad = None


@torch.no_grad()
def test_in_bfloat16_rounding_is_no_other_attention() -> None:
    model = FAMILIES["llama"].build("sdpa", torch.bfloat16)
    found = simulated(model, IDS, QuantizeCache(*KIVI)).float()
    wanted = read(model, quantized_cache(model, *KIVI), IDS, prompt=1).float()
    plain = model(IDS).logits.float()
    assert (found - wanted).norm() < 0.5 * (plain - wanted).norm()
    output = torch.randn(1, 4, 2, 8, generator=torch.Generator().manual_seed(0))
    for dtype, off in ((torch.bfloat16, 1.05), (torch.float32, 1.002)):
        with pytest.raises(UnsupportedModelError, match="its output differs"):
            check_same(model, output.to(dtype), (off * output).to(dtype), torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.slow
def test_lab_models_and_operations(model: PreTrainedModel) -> None:
    softmax = lab("softmax")
    found = simulated(softmax, IDS, QuantizeCache(*KIVI, First(1)))
    wanted = read(softmax, quantized_cache(softmax, *KIVI, First(1)), IDS, prompt=1)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    sigmoid = lab("sigmoid")
    at_once = simulated(sigmoid, IDS, QuantizeCache(*TOKEN))
    wanted = read(sigmoid, quantized_cache(sigmoid, *TOKEN), IDS, prompt=1)
    torch.testing.assert_close(at_once, wanted, atol=2e-5, rtol=1e-4)
    with pytest.raises(UnsupportedModelError, match=r"attention 'sigmoid' is not a plain softmax"):
        simulated(sigmoid, IDS, QuantizeCache(*KIVI))


def test_what_cannot_be_simulated_is_refused(model: PreTrainedModel) -> None:
    with pytest.raises(InputError, match="find_tokens"):
        simulated(model, IDS, QuantizeCache(*KIVI, Measured()))
    with pytest.raises(InputError, match="one must divide"):
        QuantizeCache(Grid(2, "channel", group=4), Grid(2, "channel", group=6))
    with ss.evicting(model, "streaming", 8) as cache, torch.no_grad():
        model(IDS, past_key_values=cache)
        with QuantizeCache(*TOKEN).applied(model), pytest.raises(InputError, match="keys for 20 tokens"):
            model(IDS[:, :1], past_key_values=cache)
    packed = torch.cat([torch.arange(10), torch.arange(9)])[None].expand(2, -1)
    with QuantizeCache(*KIVI, before_rotation=True).applied(model), pytest.raises(InputError, match="packed"):
        model(IDS, position_ids=packed)


@pytest.mark.parametrize(
    ("name", "says"),
    [("deepseek_v3", "caches a latent"), ("bert", "no layer|no cache"), ("mistral", "no layer of plain")],
)
def test_models_are_refused_by_name(name: str, says: str) -> None:
    family = (FAMILIES | COLLECTED)[name]
    with pytest.raises(UnsupportedModelError, match=says), QuantizeCache(*TOKEN).applied(family.build(family.hosts[0])):
        pass
