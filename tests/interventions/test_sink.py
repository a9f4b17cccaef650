"""Arms on a sink against references written out naively: hide, mute, mean, swap, fold, trim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, Invocation, OpenStream, editing, watching
from sinkscope.interventions import (
    Constants,
    FoldSink,
    HideSink,
    Intervention,
    MeanSink,
    MuteSink,
    SwapSink,
    TrimMass,
    constants,
)
from tests.interventions.conftest import a_model, hooks, inputs_of, logits
from tests.probes.conftest import lab_model
from tests.thinning import thinned

AFTER = 3
FAMILIES = ["llama", "gpt2", "gemma2", "gpt_oss"]
HOSTS = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager")]
Change = Callable[[int, Tensor, Tensor, Tensor, int, int], Tensor | None]


def naive(change: dict[str, Any], layer: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any) -> Tensor:
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
    order = [m for m in model.modules() if hasattr(m, "layer_idx") and any("q_proj" in n or "c_attn" in n for n, _ in m.named_children())]

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any) -> tuple[Tensor, None]:
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


def under(model: nn.Module, change: Intervention, **inputs: Tensor) -> Tensor:
    with change.applied(model):
        return logits(model, **inputs)


def ids(rows: int = 2, tokens: int = 10, seed: int = 1) -> Tensor:
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def made(model: PreTrainedModel, on: tuple[int, ...] = (0,)) -> Constants:
    return constants(model, {"input_ids": ids(3, 12, 7)}, on, AFTER)


@pytest.mark.parametrize(("name", "host"), HOSTS)
@pytest.mark.parametrize("what", ["hide", "mute", "sink", "others", "mean", "fold", "key", "swap"])
@pytest.mark.parametrize("on", [(0,), (0, 2)], ids=str)
def test_an_arm_is_the_attention_written_out(name: str, host: str, what: str, on: tuple[int, ...]) -> None:
    model, inputs = a_model(name, host), {"input_ids": ids()}
    known = made(model, on)
    key, value = known.keys.mean(0), known.values.mean(0)
    changes: dict[str, tuple[Intervention, dict[str, Any]]] = {
        "hide": (HideSink(on, AFTER), {}),
        "mute": (MuteSink(on, AFTER), {}),
        "sink": (TrimMass(on, AFTER, off="sink"), {}),
        "others": (TrimMass(on, AFTER, off="others"), {}),
        "mean": (MeanSink(on, AFTER, constants=known), {"value": value}),
        "fold": (FoldSink(on, AFTER, constants=known), {"value": value, "logit": joined(known, on)}),
        "key": (FoldSink(on, AFTER, constants=known, form="key+value"), {"key": key, "value": value}),
        "swap": (SwapSink(on, AFTER, constants=known, donors=(1,)), {"key": known.keys[1], "value": known.values[1]}),
    }
    change, named = changes[what]
    expected = reference(model, {"what": what, "on": on, **named}, **inputs)
    found = under(model, change, **inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, logits(model, **inputs), atol=1e-4), "nothing was changed"


def joined(known: Constants, on: tuple[int, ...]) -> Tensor:
    """The constant logit of each target from the table of its own first query."""
    table = torch.full_like(known.logits[on[0] + AFTER], torch.nan)
    for p in on:
        table[:, :, p] = known.logits[p + AFTER][:, :, p]
    return table
