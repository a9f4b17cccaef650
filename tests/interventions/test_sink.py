"""Arms on a sink against references written out naively: hide, mute, mean, swap, fold, trim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel, StaticCache
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, Invocation, editing, watching
from sinkscope.interventions import (
    Constants,
    FirstTokenView,
    FoldSink,
    ForbidSink,
    HideSink,
    Intervention,
    MeanSink,
    MuteSink,
    OneKeyView,
    SwapSink,
    TrimMass,
    constants,
)
from sinkscope.interventions.inside import Inside, Replacing
from sinkscope.measurement import AttentionReceived, measure
from tests.interventions.conftest import a_model, hooks, logits

AFTER = 3
FAMILIES = ["llama", "gpt2", "gemma2", "gpt_oss"]
HOSTS = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager")]
Change = Callable[[int, Tensor, Tensor, Tensor, int, int], Tensor | None]


def naive(
    change: dict[str, Any],
    layer: int,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    **given: Any,
) -> Tensor:
    """One query of one head after the other: (batch, query, heads, dim)."""
    batch, heads, queries, width = query.shape
    group = heads // key.shape[1]
    scaling = given.get("scaling") or width**-0.5
    out = torch.zeros(batch, queries, heads, value.shape[-1])
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                keys, values = key[b, h // group].clone(), value[b, h // group].clone()
                targets = [p for p in change["on"] if t >= p + change["after"]]
                for p in targets:
                    if "key" in change:
                        keys[p] = change["key"][layer, h // group, p]
                    if "value" in change:
                        values[p] = change["value"][layer, h // group, p]
                    if change["what"] == "mute":
                        values[p] = 0
                scores = scaling * (keys @ query[b, h, t])
                if (cap := given.get("softcap")) is not None:
                    scores = cap * torch.tanh(scores / cap)
                for p in targets if "logit" in change else ():
                    scores[p] = change["logit"][layer, h, p]
                if mask is not None:
                    scores = scores + mask[b if len(mask) > 1 else 0, 0, t, : len(scores)]
                for p in targets if change["what"] == "hide" else ():
                    scores[p] = -torch.inf
                sink = given.get("s_aux")
                row = scores if sink is None else torch.cat([scores, sink[h : h + 1]])
                weights = row.softmax(0)
                if change["what"] in ("sink", "others") and targets:
                    others = [k for k in range(t) if k not in change["on"]]
                    a, o = weights[targets].sum(), weights[others].sum()
                    moved = 0.5 * min(a, o)
                    where, mass = (targets, a) if change["what"] == "sink" else (others, o)
                    weights[where] = weights[where] * (1 - moved / mass) if mass > 0 else weights[where]
                    weights = weights / (1 - moved)
                out[b, t, h] = weights[: len(values)] @ values
    return out


@contextmanager
def referring(model: PreTrainedModel, change: dict[str, Any]) -> Iterator[None]:
    """The model with its attention written out."""
    order = [
        m
        for m in model.modules()
        if hasattr(m, "layer_idx") and any("q_proj" in n or "c_attn" in n for n, _ in m.named_children())
    ]

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any
    ) -> tuple[Tensor, None]:
        return naive(change, order.index(module), module, query, key, value, mask, **given), None

    before = model.config._attn_implementation
    AttentionInterface.register("naive", attend)
    AttentionMaskInterface.register("naive", eager_mask)
    model.set_attn_implementation("naive")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        AttentionInterface._global_mapping.pop("naive", None)
        AttentionMaskInterface._global_mapping.pop("naive", None)


def reference(model: PreTrainedModel, change: dict[str, Any], **inputs: Tensor) -> Tensor:
    with referring(model, {"after": AFTER, **change}):
        return logits(model, **inputs)


def under(model: nn.Module, change: Intervention, **inputs: Any) -> Tensor:
    with change.applied(model):
        return logits(model, **inputs)


def ids(rows: int = 2, tokens: int = 10, seed: int = 1) -> Tensor:
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def made(model: PreTrainedModel, on: tuple[int, ...] = (0,)) -> Constants:
    return constants(model, {"input_ids": ids(3, 12, 7)}, on, AFTER)


@pytest.mark.parametrize(
    ("name", "host", "on"),
    [*((*host, (0,)) for host in HOSTS), ("llama", "sdpa", (0, 2)), ("gpt_oss", "eager", (0, 2))],
    ids=str,
)
@pytest.mark.parametrize("what", ["hide", "mute", "sink", "others", "mean", "logit", "fold", "key", "swap"])
def test_an_arm_is_the_attention_written_out(name: str, host: str, on: tuple[int, ...], what: str) -> None:
    model, inputs = a_model(name, host), {"input_ids": ids()}
    known = made(model, on)
    key, value = known.keys.mean(0), known.values.mean(0)
    changes: dict[str, tuple[Intervention, dict[str, Any]]] = {
        "hide": (HideSink(on, AFTER), {}),
        "mute": (MuteSink(on, AFTER), {}),
        "sink": (TrimMass(on, AFTER, off="sink"), {}),
        "others": (TrimMass(on, AFTER, off="others"), {}),
        "mean": (MeanSink(on, AFTER, constants=known), {"value": value}),
        "logit": (
            FoldSink(on, AFTER, constants=known, form="logit"),
            {"value": torch.zeros_like(value), "logit": joined(known, on)},
        ),
        "fold": (FoldSink(on, AFTER, constants=known), {"value": value, "logit": joined(known, on)}),
        "key": (FoldSink(on, AFTER, constants=known, form="key+value"), {"key": key, "value": value}),
        "swap": (SwapSink(on, AFTER, constants=known, donors=(1,)), {"key": known.keys[1], "value": known.values[1]}),
    }
    change, named = changes[what]
    expected = reference(model, {"what": what, "on": on, **named}, **inputs)
    found = under(model, change, **inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, logits(model, **inputs), atol=1e-4), "nothing was changed"


@pytest.mark.parametrize("what", ["mute", "fold", "swap"])
@pytest.mark.parametrize("sharpness", [1.0, 50.0, -50.0])  # weights on the sink up to 1, and down to 0
def test_the_sum_over_the_other_keys_gives_what_all_weights_do(what: str, sharpness: float, monkeypatch: Any) -> None:
    model = a_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= sharpness
    text, known = ids(3, 11), made(model, (0, 2))
    options = {"constants": known, "on": (0, 2), "after": AFTER}
    change = MuteSink((0, 2), AFTER) if what == "mute" else {"fold": FoldSink, "swap": SwapSink}[what](**options)
    found = under(model, change, input_ids=text)
    monkeypatch.setattr(Replacing, "difference", Inside.difference)
    torch.testing.assert_close(found, under(model, change, input_ids=text), rtol=1e-4, atol=1e-5)


def joined(known: Constants, on: tuple[int, ...]) -> Tensor:
    """The constant logit of each target from the table of its own first query."""
    table = torch.full_like(known.logits[on[0] + AFTER], torch.nan)
    for p in on:
        table[:, :, p] = known.logits[p + AFTER][:, :, p]
    return table


ARMS: list[Callable[[Constants], Intervention]] = [
    lambda known: HideSink((0,), AFTER),
    lambda known: MuteSink((0,), AFTER),
    lambda known: MeanSink((0,), AFTER, constants=known),
    lambda known: FoldSink((0,), AFTER, constants=known),
    lambda known: SwapSink((0,), AFTER, constants=known),
    lambda known: TrimMass((0,), AFTER, off="sink"),
    lambda known: TrimMass((0,), AFTER, off="others"),
]
NAMES = ["hide", "mute", "mean", "fold", "swap", "trim", "others"]


@pytest.mark.parametrize("arm", ARMS, ids=NAMES)
@pytest.mark.parametrize("host", ["eager", "sdpa"])
def test_documents_packed_into_a_row_are_changed_as_documents_alone(arm: Any, host: str) -> None:
    model, text = a_model("llama", host), ids(1, 18)
    change = arm(made(model))
    places = torch.tensor([[*range(7), *range(11)]])
    packed = under(model, change, input_ids=text, position_ids=places, use_cache=False)
    torch.testing.assert_close(packed[:, :7], under(model, change, input_ids=text[:, :7]), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(packed[:, 7:], under(model, change, input_ids=text[:, 7:]), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("what", "arm"), [*zip(NAMES, ARMS, strict=True)], ids=NAMES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_counts_nowhere(what: str, arm: Any, side: str) -> None:
    model, text = a_model("llama"), ids(2, 12)
    change, mask = arm(made(model)), torch.ones(2, 12, dtype=torch.long)
    real = slice(4, 12) if side == "left" else slice(0, 8)
    mask[0] = 0
    mask[0, real] = 1
    if what == "swap" and side == "left":
        with pytest.raises(InputError, match="give position_ids that count real tokens"):
            under(model, change, input_ids=text * mask, attention_mask=mask)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = under(model, change, input_ids=text * mask, attention_mask=mask, position_ids=places)[0, real]
    alone = under(model, change, input_ids=text[:1, real])[0]
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("arm", ARMS, ids=NAMES)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_cached_step_is_changed_as_the_whole_text_is(arm: Any, name: str) -> None:
    model, text = a_model(name, "eager"), ids(2, 10)
    change = arm(made(model))
    whole = under(model, change, input_ids=text)
    with change.applied(model), torch.no_grad():
        start = model(text[:, :6], use_cache=True)
        steps, cache = [start.logits], start.past_key_values
        for column in range(6, 10):
            output = model(text[:, column : column + 1], past_key_values=cache, use_cache=True)
            steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=2e-5)


VIEWS = [HideSink((0,), AFTER), ForbidSink((0,)), FirstTokenView(4), OneKeyView(5, 2)]


@pytest.mark.parametrize("change", VIEWS, ids=["hide", "forbid", "alone", "one"])
def test_a_static_cache_shows_no_query_a_later_token(change: Intervention) -> None:
    """Its prefill has more keys than queries and no mask: SDPA's triangle begins at the first key."""
    model, text = a_model("llama"), ids(2, 10)
    with change.applied(model), torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=16)
        found = torch.cat([model(part, past_key_values=cache).logits for part in text.split([7, 2, 1], 1)], 1)
    torch.testing.assert_close(found, under(model, change, input_ids=text), rtol=1e-4, atol=1e-5)


def test_documents_packed_by_a_mask_are_told_apart_in_a_static_cache() -> None:
    model, text, change = a_model("llama"), ids(2, 10), HideSink((0,), AFTER)
    mask = torch.nn.functional.pad(torch.ones(10, 10, dtype=torch.bool).tril(), (0, 6))  # six empty places
    mask[4:, :4] = False
    packed = {"input_ids": text, "position_ids": torch.tensor([[*range(4), *range(6)]])}
    cache = StaticCache(config=model.config, max_cache_len=16)
    found = under(model, change, **packed, attention_mask=mask.expand(2, 1, -1, -1), past_key_values=cache)
    expected = under(model, change, **packed, attention_mask=mask[:, :10].expand(2, 1, -1, -1), use_cache=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


OPERATIONS = ["softmax", "softmax_off_by_one", "sigmoid_bias", "kv_bias", "gated_elementwise", "differential"]


@pytest.mark.parametrize("name", [f"lab:{name}" for name in OPERATIONS] + ["llama", "gpt_oss"])
@pytest.mark.parametrize("what", ["mute", "mean", "swap", "key"])
def test_a_layer_gives_what_its_own_function_gives_on_the_changed_keys_and_values(name: str, what: str) -> None:
    """Whatever the operation: the layer's function runs once more on other keys and values, for these queries."""
    model, text = a_model(name, "eager"), ids(2, 9)
    known = made(model)
    softmax = name not in ("lab:sigmoid_bias", "lab:differential")
    change: Any = {
        "mute": MuteSink((0,), AFTER, layers=(0,)),
        "mean": MeanSink((0,), AFTER, layers=(0,), constants=known),
        "swap": SwapSink((0,), AFTER, layers=(0,), constants=known, donors=(2, 1)),
        "key": FoldSink((0,), AFTER, layers=(0,), constants=known, form="key+value") if softmax else None,
    }[what]
    if what in ("swap", "key") and not softmax:
        with pytest.raises(UnsupportedModelError, match="not a plain softmax"):
            under(model, SwapSink((0,), AFTER, constants=known), input_ids=text)
        return
    called: list[Invocation] = []
    left: list[Tensor] = []
    with (
        OpenedForTest(model) as layer,
        change.applied(model),
        editing(Taking(layer, left)),
        watching(Showing(layer, called)),
    ):
        logits(model, input_ids=text)
        own = called[0].arguments
        key, value = own["key"].clone(), own["value"].clone()
        if what == "mute":
            value[:, :, 0] = 0
        elif what == "mean":
            value[:, :, 0] = known.values[:, 0, :, 0].mean(0)
        elif what == "swap":
            key[:, :, 0], value[:, :, 0] = known.keys[[2, 1], 0, :, 0], known.values[[2, 1], 0, :, 0]
        else:
            key[:, :, 0], value[:, :, 0] = known.keys[:, 0, :, 0].mean(0), known.values[:, 0, :, 0].mean(0)
        with torch.no_grad():
            again = called[0].again(key=key, value=value)
    torch.testing.assert_close(left[0][:, AFTER:], again[:, AFTER:], rtol=1e-4, atol=1e-5)
    assert torch.equal(left[0][:, :AFTER], called[0].output[:, :AFTER]), "queries before are left to the last bit"
    assert not torch.allclose(left[0][:, AFTER:], called[0].output[:, AFTER:], atol=1e-4), "nothing was changed"


class OpenedForTest:
    """The first attention layer of a model."""

    def __init__(self, model: nn.Module) -> None:
        from sinkscope.hooks import Stream

        self.layer = Stream.of(model).layers[0]

    def __enter__(self) -> nn.Module:
        return self.layer

    def __exit__(self, *error: object) -> None:
        pass


class Taking(Editor):
    """Takes what a layer's editors left."""

    def __init__(self, layer: nn.Module, left: list[Tensor]) -> None:
        self.layer, self.left = layer, left

    def edits(self, module: nn.Module) -> bool:
        return module is self.layer

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        self.left.append(output.clone())
        return output


class Showing:
    """Keeps the calls of a layer."""

    def __init__(self, layer: nn.Module, called: list[Invocation]) -> None:
        self.layer, self.called = layer, called

    def watches(self, module: nn.Module) -> bool:
        return module is self.layer

    def attended(self, invocation: Invocation) -> None:
        self.called.append(invocation)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_oss", "lab:kv_bias"])
def test_a_texts_own_key_and_value_change_nothing(name: str) -> None:
    model, text = a_model(name, "eager"), ids(1, 12)
    own = constants(model, {"input_ids": text}, (0, 1), AFTER)
    change = FoldSink((0, 1), AFTER, constants=own, form="key+value")
    torch.testing.assert_close(
        under(model, change, input_ids=text), logits(model, input_ids=text), rtol=1e-4, atol=1e-5
    )


def test_behind_a_constant_first_token_key_and_value_are_those_of_any_text() -> None:
    model, text, others = a_model("llama"), ids(2, 12), ids(3, 12, 5)
    text[:, 0] = others[:, 0] = 1
    known = constants(model, {"input_ids": others}, (0,), AFTER)
    assert not known.differ(0)
    assert known.differ(1)
    plain = logits(model, input_ids=text)
    for change in (FoldSink(constants=known, after=AFTER, form="key+value"), MeanSink(constants=known, after=AFTER)):
        torch.testing.assert_close(under(model, change, input_ids=text), plain, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(under(model, FoldSink(constants=known, after=AFTER), input_ids=text), plain, atol=1e-4)


def test_hidden_is_what_a_written_mask_hides() -> None:
    model, text = a_model("llama"), ids(2, 10)
    mask = torch.ones(10, 10, dtype=torch.bool).tril()
    mask[AFTER:, 0] = False
    expected = logits(model, input_ids=text, attention_mask=mask.expand(2, 1, -1, -1))
    torch.testing.assert_close(under(model, HideSink((0,), AFTER), input_ids=text), expected, rtol=1e-4, atol=1e-5)


def test_equal_mass_is_equal_on_both_sides() -> None:
    model, text = a_model("gpt_oss", "eager"), ids(2, 12)
    sides = TrimMass((0,), AFTER, layers=(0,)), TrimMass((0,), AFTER, layers=(0,), off="others")
    for side in sides:
        under(model, side, input_ids=text)
    assert sides[0].mass.count == sides[1].mass.count == 2 * 4 * 9
    assert sides[0].mass.mean == pytest.approx(sides[1].mass.mean)
    assert 0 < sides[0].mass.mean <= 0.25


def test_each_row_may_have_targets_of_its_own() -> None:
    import numpy as np

    from sinkscope.interventions import Targets
    from sinkscope.interventions.targets import NEVER

    model, text = a_model("llama"), ids(2, 10)
    first = np.full((2, 4), NEVER)
    first[0, 0], first[1, 3] = 4, 6
    both = under(model, MuteSink(Targets(first)), input_ids=text)
    for row in range(2):
        alone = under(model, MuteSink(Targets(first[row : row + 1])), input_ids=text[row : row + 1])
        torch.testing.assert_close(both[row], alone[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="targets of 2 rows: the model was called with 3"):
        under(model, MuteSink(Targets(first)), input_ids=ids(3, 10))
    with pytest.raises(InputError, match="choose by position"):
        constants(model, {"input_ids": text}, Targets(first))


def test_everything_is_undone_and_nothing_silent() -> None:
    model, text = a_model("llama"), ids(2, 10)
    before, plain = hooks(model), logits(model, input_ids=text)
    for change in (HideSink(), MuteSink(), TrimMass()):
        with pytest.raises(InputError), change.applied(model):
            raise InputError("in between")
    assert hooks(model) == before
    assert torch.equal(plain, logits(model, input_ids=text))
    with pytest.raises(UnsupportedModelError, match="passes no gradients"), MuteSink().applied(model):
        model(text)
    with pytest.raises(InputError, match="after = 0"):
        MuteSink(after=0)
    with pytest.raises(InputError, match="layer 9 does not exist"), MuteSink(layers=(9,)).applied(model):
        pass


@pytest.mark.parametrize("change", [ForbidSink((0,)), HideSink((0,), 1)], ids=["forbid", "hide"])
def test_a_hidden_key_is_no_document_to_a_measurement(change: Intervention) -> None:
    model, text = a_model("llama"), ids(2, 12)
    with change.applied(model):
        data = measure(model, text, [AttentionReceived()]).data
    assert data.sizes["sample"] == 2
    assert data.sizes["position"] == 12
    assert data["visible_queries"].isel(sample=0, layer=0).values.tolist() == [1, *range(11, 0, -1)]


def test_interventions_on_other_tokens_nest_unless_documents_could_not_be_told() -> None:
    model, text = a_model("llama"), ids(2, 12)
    with HideSink((0,), AFTER).applied(model):
        both = under(model, MuteSink((2,), AFTER), input_ids=text)
    with MuteSink((2,), AFTER).applied(model):
        turned = under(model, HideSink((0,), AFTER), input_ids=text)
    torch.testing.assert_close(both, turned, rtol=1e-4, atol=1e-5)
    with ForbidSink((0,)).applied(model), pytest.raises(InputError, match="another intervention hides"):
        under(model, MuteSink((2,), AFTER), input_ids=text)
