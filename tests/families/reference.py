"""What a family's own eager attention says: the maps that it returns, and the same statistic from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.hooks.modules import attention_layers, dispatches
from tests.families.family import Family
from tests.families.recording import Softmaxes, recording, visible_by

Maps = dict[str, list["Map"]]  # by stack, layer after layer
SIDES = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


@dataclass(frozen=True, eq=False)
class Map:
    """The weights of a layer, and what the mask that made them lets each query see."""

    weights: Float[Tensor, "batch heads query key"]
    visible: Bool[Tensor, "batch heads query key"]

    @property
    def received(self) -> Float[Tensor, "batch heads key"]:
        """alpha_k: the mean over the queries that the mask lets see k; NaN where there is none.

        A weight of 0 does not tell: a softmax underflows, and some operations give exact zeros.
        """
        return self.weights.sum(-2) / self.visible.sum(-2)

    @property
    def sharpness(self) -> float:
        """Mean over rows of the largest weight, over the same mean for uniform attention on the visible keys."""
        return float(self.weights.amax(-1).mean() / (1 / self.visible.sum(-1)).mean())


def eager_attention(family: Family, inputs: Mapping[str, Tensor]) -> Maps:
    """The attention maps that the family's eager attention returns, corrected where they omit a learned sink.

    Each with the mask that its attention function was given, or, where a family has attention of its own, with what
    no mask had hidden from its softmax.
    """
    model = family.build("eager")
    given: list[tuple[Tensor, Tensor | None]] = []

    def keep(module: nn.Module, weights: Tensor | None, arguments: Mapping[str, Any]) -> None:
        if weights is not None:
            given.append((weights, visible_by(arguments.get("attention_mask"))))

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if family.eager_omits_sink:
            stack.enter_context(_scaled_by_sink(model))
        towers = {name: _reading(model.get_submodule(path), stack) for name, path in family.towers.items()}
        stack.enter_context(recording(keep))
        softmaxes = stack.enter_context(Softmaxes())
        outputs = model(**inputs, output_attentions=True)

    def mapped(weights: Tensor) -> Map:
        for other, visible in given:
            if other.shape == weights.shape and torch.equal(other, weights):
                seen = torch.ones_like(weights, dtype=torch.bool) if visible is None else visible
                return Map(weights, seen[..., : weights.shape[-1]].expand(weights.shape))
        seen = softmaxes.visible(weights)
        assert seen is not None, "a map that no attention function and no softmax made"
        return Map(weights, seen)

    if towers:
        return {name: list(map(mapped, read())) for name, read in towers.items()}
    if model.config.is_encoder_decoder:
        return {name: list(map(mapped, outputs[key])) for name, key in SIDES.items()}
    maps = list(outputs.attentions)
    chosen = maps if family.maps is None else [maps[index] for index in family.maps]
    return {_stack(model): [mapped(weights) for weights in chosen for _ in range(family.calls)]}


def eager_maps(family: Family, inputs: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """The weights alone of `eager_attention`."""
    return {stack: [found.weights for found in maps] for stack, maps in eager_attention(family, inputs).items()}


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
