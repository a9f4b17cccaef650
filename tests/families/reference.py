"""What a family's own eager attention says: the maps that it returns, and the same statistic from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.hooks.modules import attention_layers, dispatches
from tests.families.family import Family

Maps = dict[str, list[Tensor]]  # by stack, layer after layer: (batch, heads, query, key), of windows another shape
SIDES = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


def eager_maps(family: Family, inputs: Mapping[str, Tensor]) -> Maps:
    """The attention maps that the family's eager attention returns, corrected where they omit a learned sink."""
    model = family.build("eager")
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if family.eager_omits_sink:
            stack.enter_context(_scaled_by_sink(model))
        towers = {name: _reading(model.get_submodule(path), stack) for name, path in family.towers.items()}
        outputs = model(**inputs, output_attentions=True)
    if towers:
        return {name: list(read()) for name, read in towers.items()}
    if model.config.is_encoder_decoder:
        return {name: list(outputs[key]) for name, key in SIDES.items()}
    maps = list(outputs.attentions)
    chosen = maps if family.maps is None else [maps[index] for index in family.maps]
    return {_stack(model): [weights for weights in chosen for _ in range(family.calls)]}


def received(weights: Float[Tensor, "*batch heads query key"]) -> Float[Tensor, "*batch heads key"]:
    """alpha_k from whole attention maps: the mean over the queries that give it any weight in some head.

    Where queries see later keys, in some sample: far keys get weights that are zero only by underflow.
    """
    seen = (weights > 0).any(-3, keepdim=True)
    if seen.ndim == 4 and bool(seen.triu(1).any()):
        seen = seen.any(0, keepdim=True)
    return weights.sum(-2) / seen.sum(-2).clamp(min=1)


def sharpness(weights: Float[Tensor, "batch heads query key"]) -> float:
    """Mean over rows of the largest weight, over the same mean for uniform attention on the keys with any weight."""
    visible = (weights > 0).any(0, keepdim=True).any(1, keepdim=True)
    return float(weights.amax(-1).mean() / (1 / visible.sum(-1)).mean())


def _stack(model: PreTrainedModel) -> str:
    """The one stack of a model; "" where its layers do not say (they dispatch nowhere)."""
    if not any(dispatches(module) for module in model.modules()):
        return ""
    return next(iter(attention_layers(model).values())).stack


def _reading(tower: nn.Module, stack: ExitStack) -> Callable[[], tuple[Tensor, ...]]:
    """Ask a sub-model for its maps while it runs inside the whole model; the function gives what came back."""
    seen: list[tuple[Tensor, ...]] = []

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return args, kwargs | {"output_attentions": True}

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append(output.attentions)

    stack.callback(tower.register_forward_pre_hook(ask, with_kwargs=True).remove)
    stack.callback(tower.register_forward_hook(keep).remove)
    return lambda: seen[0]


@contextmanager
def _scaled_by_sink(model: PreTrainedModel) -> Iterator[None]:
    """Multiply the maps that an eager function returns by sigmoid(lse − sink), as its output already is."""
    home = sys.modules[type(model).__module__]
    original = vars(home)["eager_attention_forward"]

    def corrected(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
        output, weights = original(module, query, key, value, mask, **kwargs)
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        lse = torch.logsumexp(query @ keys.mT * kwargs["scaling"] + mask, -1)
        return output, weights * torch.sigmoid(lse - kwargs["s_aux"][:, None])[..., None]

    vars(home)["eager_attention_forward"] = corrected
    try:
        yield
    finally:
        vars(home)["eager_attention_forward"] = original
