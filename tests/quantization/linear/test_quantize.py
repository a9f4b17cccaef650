"""Quantized linear maps against models written by hand, and what is protected, padded, frozen and refused."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import All, SetActivations
from sinkscope.measurement import AttentionReceived, observe
from sinkscope.quantization import (
    GPTQ,
    Grid,
    OutlyingColumns,
    QuantizeLinear,
    RotateInputs,
    calibrated,
    linear_maps,
    random_tokens,
)
from sinkscope.quantization.linear.quantize import TokenRanges
from sinkscope.quantization.schemes import scheme_named
from sinkscope.sinks import First, Outliers, Positions
from sinkscope.trials.changes import changed
from tests.families.registry import FAMILIES
from tests.quantization.linear.conftest import a_model, by_hand, distance, inputs_of, logits, symmetric

W8, T8 = Grid(8, symmetric=True), Grid(8, "tensor", symmetric=True)
W4 = FOUR = Grid(4, symmetric=True)
T4 = Grid(4, "tensor", symmetric=True)


def same(x: Tensor) -> Tensor:
    return x


BLOCKS = {"llama": "layers", "gpt2": "h", "phi3": "layers", "bert": "layer"}


@pytest.mark.parametrize(
    ("name", "which"), [*((name, "by tensor") for name in BLOCKS), ("gpt2", "weights"), ("phi3", "by token")]
)
def test_it_is_what_is_written_by_hand(name: str, which: str) -> None:
    model, inputs = a_model(name), inputs_of(name)
    activations = {"weights": None, "by token": FOUR, "by tensor": T4}[which]
    entering = {"weights": same, "by token": symmetric(4), "by tensor": symmetric(4, (-2, -1))}[which]
    plain = logits(model, **inputs)
    with QuantizeLinear(W4, activations).applied(model):
        found = logits(model, **inputs)
    expected = logits(by_hand(model, symmetric(4), entering, BLOCKS[name]), **inputs)
    assert distance(found, expected) < 1e-5 < 1e-3 < distance(plain, expected)


def test_experts_are_what_is_written_by_hand() -> None:
    model, inputs = a_model("qwen3_moe"), inputs_of("qwen3_moe")
    experts, entered = model.model.layers[0].mlp.experts, {}
    experts.register_forward_pre_hook(lambda module, args: entered.update(args=args))
    experts.register_forward_hook(lambda module, args, output: entered.update(output=output))
    maps = linear_maps(model)
    skip = tuple(path for path in maps if not path.startswith("model.layers.0.mlp.experts"))
    with QuantizeLinear(W4, FOUR, skip=skip).applied(model):
        logits(model, **inputs)
    hidden, index, routing = entered["args"]
    expected = torch.zeros_like(hidden)
    rounded = symmetric(4)
    for token in range(len(hidden)):
        for expert, share in zip(index[token], routing[token], strict=True):
            both = rounded(experts.gate_up_proj[expert]) @ rounded(hidden[token])
            gate, up = both.chunk(2)
            inner = rounded(torch.nn.functional.silu(gate) * up)
            expected[token] += share * (rounded(experts.down_proj[expert]) @ inner)
    torch.testing.assert_close(entered["output"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("grid", [FOUR, T4])
@pytest.mark.parametrize("protected", [None, First(2)])
def test_padding_counts_for_nothing(tiny_llama: LlamaForCausalLM, grid: Grid, protected: First | None) -> None:
    ids = torch.randint(5, 101, (1, 9), generator=torch.Generator().manual_seed(2))
    padded = torch.cat([torch.full((1, 4), 3), ids], 1)
    mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), torch.ones_like(ids)], 1)
    with torch.no_grad():
        tiny_llama.model.embed_tokens.weight[3] *= 50  # a range that counted it would be wide
    try:
        with QuantizeLinear(W8, grid, protect=protected).applied(tiny_llama):
            alone = logits(tiny_llama, input_ids=ids)
            beside = logits(tiny_llama, input_ids=padded, attention_mask=mask)
    finally:
        with torch.no_grad():
            tiny_llama.model.embed_tokens.weight[3] /= 50
    torch.testing.assert_close(beside[:, 4:], alone, rtol=1e-4, atol=1e-5)


def test_padding_counts_for_nothing_among_experts() -> None:
    model = a_model("qwen3_moe")
    ids = inputs_of("qwen3_moe")["input_ids"][:1]
    padded = torch.cat([ids[:, :5], ids], 1)
    mask = torch.cat([torch.zeros(1, 5, dtype=torch.long), torch.ones_like(ids)], 1)
    with QuantizeLinear(W8, T8).applied(model):
        alone, beside = logits(model, input_ids=ids), logits(model, input_ids=padded, attention_mask=mask)
    torch.testing.assert_close(beside[:, 5:], alone, rtol=1e-3, atol=1e-5)


def an_outlier(model: nn.Module) -> nn.Module:
    """Token 2 has a direction of its own, which makes its entry 7 of what enters block 0's last map enormous."""
    layer = model.model.layers[0]
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 31] = 0
        model.model.embed_tokens.weight[2] = 5 * torch.eye(32)[31]
        layer.self_attn.o_proj.weight[31] = 0
        layer.self_attn.v_proj.weight[:, 31] = 0
        for linear in (layer.mlp.up_proj, layer.mlp.gate_proj):
            linear.weight[7] = 8 * torch.eye(32)[31]
        layer.mlp.down_proj.weight *= 100
        layer.mlp.down_proj.weight[:, 7] *= 1e-5
    return model


def rows() -> Tensor:
    ids = torch.randint(5, 97, (6, 24), generator=torch.Generator().manual_seed(4))
    ids[:, 0] = 2
    return ids


def test_a_protected_outlier_costs_nothing_and_a_random_token_saves_nothing() -> None:
    model, ids = an_outlier(a_model("llama")), rows()
    plain = logits(model, input_ids=ids)

    def cost(quantizer: QuantizeLinear) -> float:
        with quantizer.applied(model):
            return distance(logits(model, input_ids=ids)[:, 1:], plain[:, 1:])

    first = First(1)
    plainly = QuantizeLinear(Grid(16), T8)
    nothing, protected = cost(plainly), cost(replace(plainly, protect=first))
    random = cost(replace(plainly, protect=random_tokens(first, torch.Generator(), model, {"input_ids": ids})))
    assert protected < 0.1 * nothing
    assert abs(random - nothing) < 0.1 * nothing


def test_everything_protected_is_full_precision() -> None:
    model, ids = a_model("llama"), rows()
    with QuantizeLinear(Grid(16), T4, protect=Positions(*range(24))).applied(model):
        assert torch.equal(logits(model, input_ids=ids), logits(a_model("llama"), input_ids=ids))


def test_protected_tokens_are_theirs_in_a_cache_too() -> None:
    model, ids = an_outlier(a_model("llama")), rows()
    with QuantizeLinear(W8, Grid(4), protect=Positions(0, 9, 13)).applied(model), torch.no_grad():
        whole = model(ids).logits
        cache = DynamicCache(config=model.config)
        parts = [
            model(ids[:, part], past_key_values=cache).logits for part in (slice(0, 8), slice(8, 14), slice(14, 24))
        ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-3, atol=1e-5)


def test_frozen_ranges_are_those_of_what_they_were_calibrated_on() -> None:
    model, ids = an_outlier(a_model("llama")), rows()
    static = calibrated(model, ids, T8, batch_size=6)
    batches = calibrated(model, ids, T8, batch_size=1)
    assert {path: float(one.step) for path, one in static.steps.items()} == pytest.approx(
        {path: float(one.step) for path, one in batches.steps.items()}
    )
    with QuantizeLinear(Grid(16), T8, static=static).applied(model):
        frozen = logits(model, input_ids=ids)
    plain = logits(model, input_ids=ids)
    seen: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for path, one in linear_maps(model).items():
            one.edit_input(lambda x, routing, path=path: seen.setdefault(path, x), stack)
        logits(model, input_ids=ids)
    for path, one in static.steps.items():
        assert float(one.step) == pytest.approx(float(seen[path].abs().max()) / 127)
    assert distance(frozen, plain) > 1e-3
    without = calibrated(model, ids, T8, protect=First(1))
    path = "model.layers.0.mlp.down_proj"
    assert float(without.of(path).step) < 0.1 * float(static.of(path).step)
    assert without.describe()["protect"] == {"chosen_by": "first:1"}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
def test_ranges_of_tokens_are_the_ranges_of_any_choice(padded: bool, rotated: bool) -> None:
    model, ids = an_outlier(a_model("llama")), rows()
    texts: dict[str, Tensor] = {"input_ids": ids}
    if padded:
        texts["attention_mask"] = torch.ones_like(ids)
        texts["attention_mask"][0, :5] = 0
    transform = RotateInputs() if rotated else None
    ranges = TokenRanges.of(model, texts, T8, transform=transform, batch_size=2)
    assert ranges is not None
    for protect in (None, First(1), First(3), ss.find_tokens(model, texts, Outliers())):
        fast = ranges.static(protect)
        slow = calibrated(model, texts, T8, protect=protect, transform=transform, batch_size=2)
        assert fast.steps.keys() == slow.steps.keys()
        assert all(torch.equal(fast.of(path).step, slow.of(path).step) for path in slow.steps)
        assert (fast.grid, fast.protect, fast.transform) == (slow.grid, slow.protect, slow.transform)
    with pytest.raises(InputError, match="no token of the calibration inputs"):
        ranges.static(First(ids.shape[1]))


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "bert", "t5", "bart", "qwen3_moe"])
@pytest.mark.parametrize("alike", [False, True], ids=["", "as many rows as tokens"])
def test_ranges_that_choices_share_are_those_of_each_choice_in_other_families(name: str, alike: bool) -> None:
    model, inputs = a_model(name), inputs_of(name)
    if alike and "decoder_input_ids" in inputs:
        inputs |= {"input_ids": inputs["decoder_input_ids"].flip(1)}
        inputs.pop("attention_mask", None)
    for module in model.modules() if alike else ():
        if hasattr(module, "top_k"):
            module.top_k = 1
    shared = scheme_named("w8a8-static").on(model, inputs)
    for protect in (None, First(2), First(17)):  # of 19 tokens or 24, so that most ranges change
        fast, slow = shared(protect), scheme_named("w8a8-static").make(model, inputs, protect)
        steps = [{path: float(one.step) for path, one in made.static.steps.items()} for made in (fast, slow)]  # type: ignore[attr-defined]
        assert steps[0] == steps[1]


def test_maps_with_other_rows_than_tokens_have_no_ranges_of_tokens() -> None:
    assert TokenRanges.of(a_model("qwen3_moe"), inputs_of("qwen3_moe"), T8) is None
    assert TokenRanges.of(a_model("t5"), inputs_of("t5"), T8) is None


def test_an_asymmetric_frozen_range_holds_its_ends() -> None:
    model, ids = a_model("llama"), rows()
    static = calibrated(model, ids, Grid(8, "tensor"), batch_size=2)
    with QuantizeLinear(Grid(16), Grid(8, "tensor"), static=static).applied(model):
        frozen = logits(model, input_ids=ids)
    with QuantizeLinear(Grid(16), Grid(8, "tensor")).applied(model):
        dynamic = logits(model, input_ids=ids)
    assert distance(frozen, dynamic) < 0.05


def test_it_stands_among_interventions_and_observers() -> None:
    model, ids = an_outlier(a_model("llama")), rows()
    quantizer = QuantizeLinear(Grid(16), T8, protect=First(1))
    found = changed(model, ids, quantizer, controls=2, batch_size=6)
    controls = found.controls("QuantizeLinear")
    assert found.mean("QuantizeLinear").value < 0.2 * min(found.mean(name).value for name in controls)
    assert found.record["arms"][controls[0]]["protect"]["chosen_by"] == "random, as many as first:1"
    both = All((quantizer, SetActivations(((1, 3, 2),))))
    with both.applied(model), observe(model, AttentionReceived("all")) as seen:
        logits(model, input_ids=ids)
    with quantizer.applied(model), observe(model, AttentionReceived("all")) as other:
        logits(model, input_ids=ids)
    assert not torch.equal(*(torch.tensor(m.measurement().data["attention_received"].values) for m in (seen, other)))


def test_two_quantizers_may_share_a_model_but_no_map() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    attention, others = ("lm_head", "self_attn"), ("lm_head", "mlp")
    with All((QuantizeLinear(Grid(3), skip=attention), QuantizeLinear(Grid(5), skip=others))).applied(model):
        found = logits(model, **inputs)
        layer = model.model.layers[1]
        assert len(layer.mlp.up_proj.weight[0].unique()) <= 8 < len(layer.self_attn.q_proj.weight[0].unique()) <= 32
    assert distance(found, logits(model, **inputs)) > 1e-3
    with (
        pytest.raises(InputError, match="already quantized"),
        All((QuantizeLinear(W8), QuantizeLinear(W4))).applied(model),
    ):
        pass
    rotated = All((RotateInputs(), QuantizeLinear(W8)))
    with pytest.raises(InputError, match="give a transform to the quantizer"), rotated.applied(model):
        pass


def test_gradients_pass_straight_through() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    model.requires_grad_(True)
    with QuantizeLinear(Grid(15), Grid(15)).applied(model):
        model(**inputs).logits.square().mean().backward()
    found = model.model.layers[0].mlp.down_proj.weight.grad.clone()
    model.zero_grad()
    model(**inputs).logits.square().mean().backward()
    expected = model.model.layers[0].mlp.down_proj.weight.grad
    assert distance(found, expected) < 1e-2


FAST = ["llama", "deepseek_v3", "gpt_oss", "qwen3_moe", "bart"]
REFUSED = {"llama4", "longcat_flash"}  # experts whose code is all their own
REFUSED |= {"zamba", "recurrent_gemma", "longt5"}  # matrices that are no linear maps
REFUSED |= {"jamba", "zamba2"}  # maps that are not called


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_fine_grids_change_nothing_in_any_family(name: str) -> None:
    if not FAMILIES[name].exists:
        pytest.skip("the installed transformers lacks this family")
    model, inputs = a_model(name), inputs_of(name)
    quantizer = QuantizeLinear(Grid(15, symmetric=True), Grid(15, symmetric=True))
    if name in REFUSED:
        with pytest.raises(UnsupportedModelError), quantizer.applied(model):
            logits(model, **inputs)
        return
    plain = logits(model, **inputs)
    with quantizer.applied(model):
        assert distance(logits(model, **inputs), plain) < 0.02
    with replace(quantizer, weights=Grid(16), activations=Grid(2)).applied(model):
        assert distance(logits(model, **inputs), plain) > 1e-4
    torch.testing.assert_close(logits(model, **inputs), plain, rtol=0, atol=0)


def test_a_map_whose_weight_is_read_directly_is_refused() -> None:
    model = a_model("llama")
    layer = model.model.layers[1].mlp
    layer.forward = lambda x: layer.down_proj(layer.gate_proj(x) * (x @ layer.up_proj.weight.T))
    with QuantizeLinear(W8).applied(model):
        logits(model, **inputs_of("llama"))
    with QuantizeLinear(W8, T8).applied(model), pytest.raises(UnsupportedModelError, match=r"1\.mlp\.up_proj' was not"):
        logits(model, **inputs_of("llama"))
    with RotateInputs().applied(model), pytest.raises(UnsupportedModelError, match=r"1\.mlp\.up_proj' was not"):
        logits(model, **inputs_of("llama"))


def test_what_is_refused_when_it_is_made() -> None:
    model, ids = a_model("llama"), rows()
    with pytest.raises(InputError, match="kernels have no scale"):
        QuantizeLinear(W8, Grid(8, "channel"))
    with pytest.raises(InputError, match="give activations"):
        QuantizeLinear(W8, protect=First(1))
    with pytest.raises(InputError, match="shared by all tokens"):
        calibrated(model, ids, W8)
    with pytest.raises(InputError, match="static was calibrated for"):
        QuantizeLinear(W8, T4, static=calibrated(model, ids, T8))
    with pytest.raises(InputError, match="nothing is protected"):
        QuantizeLinear(W8, T8).control(torch.Generator(), model, {"input_ids": ids})
    rotation = RotateInputs()
    with pytest.raises(InputError, match="under another transform"):
        QuantizeLinear(W8, T8, static=calibrated(model, ids, T8), transform=rotation)
    with pytest.raises(InputError, match="under another transform"):
        QuantizeLinear(W8, rounding=GPTQ.of(model, ids, transform=rotation))
    static = calibrated(model, ids, T8, skip=("up_proj",))
    with (
        pytest.raises(InputError, match="no range was calibrated"),
        QuantizeLinear(W8, T8, static=static).applied(model),
    ):
        pass
    broken = a_model("llama")
    with torch.no_grad():
        broken.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite"), QuantizeLinear(W8).applied(broken):
        pass


def ragged() -> tuple[Tensor, Tensor]:
    """Nine rows of which three are shorter, padded on the right; every other one has an outlier."""
    ids = torch.randint(5, 97, (9, 16), generator=torch.Generator().manual_seed(8))
    mask = torch.ones_like(ids)
    for row, pads in ((2, 5), (4, 1), (7, 9)):
        ids[row, 16 - pads :], mask[row, 16 - pads :] = 2, 0
    ids[::2, 3] = 2
    return ids, mask


PER_ROW = {
    "asymmetric": QuantizeLinear(Grid(16), Grid(6, "tensor")),
    "symmetric": QuantizeLinear(W8, Grid(6, "tensor", symmetric=True)),
    "columns": OutlyingColumns(3.0),
}


@pytest.mark.parametrize("quantizer", PER_ROW.values(), ids=PER_ROW)
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_what_a_text_gets_does_not_depend_on_its_batch(name: str, quantizer: QuantizeLinear | OutlyingColumns) -> None:
    if name == "qwen3_moe" and isinstance(quantizer, OutlyingColumns):
        quantizer = replace(quantizer, skip=("lm_head", "experts"))
    model = a_model(name, torch.float64)
    model = an_outlier(model) if name == "llama" else model
    ids, mask = ragged()
    with quantizer.applied(model):
        whole = logits(model, input_ids=ids, attention_mask=mask)
        for size in (1, 3, 8):
            for start in range(0, len(ids), size):
                part = slice(start, start + size)
                found = logits(model, input_ids=ids[part], attention_mask=mask[part])
                real = mask[part].bool()
                torch.testing.assert_close(found[real], whole[part][real], rtol=1e-5, atol=1e-6)
        for row in (2, 4, 7):
            alone = logits(model, input_ids=ids[row : row + 1][:, mask[row].bool()])
            torch.testing.assert_close(alone[0], whole[row][mask[row].bool()], rtol=1e-5, atol=1e-6)


def test_a_range_for_a_whole_call_is_asked_for() -> None:
    model = an_outlier(a_model("llama"))
    ids, _ = ragged()
    quantizer = QuantizeLinear(Grid(16), Grid(6, "tensor"), per_call=True)
    with quantizer.applied(model):
        alone, among = logits(model, input_ids=ids[3:4]), logits(model, input_ids=ids)[3:4]
    assert distance(alone, among) > 1e-3  # row 3 has no outlier, others have one
    for wrong in (None, Grid(8)):
        with pytest.raises(InputError, match="per_call"):
            QuantizeLinear(Grid(8), wrong, per_call=True)
