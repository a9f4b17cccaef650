"""What each attention layer of a model computed under eager attention, and attention received from it, naively.

No code of the library is used here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

CROSS = re.compile(r"cross|enc_?dec_?att|encoder_attn", re.I)
OWN = {"attentions": "", "encoder_attentions": "encoder", "decoder_attentions": "decoder", "cross_attentions": "cross"}


@dataclass(frozen=True, eq=False)
class Map:
    """The weights of one call: (batch, heads, query, key).

    `said`: whether its module says that it is causal; `visible`: what its mask lets it see, None for everything.
    """

    name: str
    weights: Tensor | None
    said: bool
    crosses: bool
    visible: Tensor | None = None

    def of(self, row: int) -> tuple[Tensor, Bool[Tensor, "query"], Bool[Tensor, "key"]]:
        """A row's weights, zero where the mask hides keys, with its real queries and keys: those that anything sees."""
        assert self.weights is not None
        weights = self.weights[row]
        queries, keys = weights.shape[1:]
        real = torch.ones(keys, dtype=torch.bool)
        if self.visible is not None:
            visible = self.visible[row if len(self.visible) > 1 else 0].expand(-1, queries, -1)[..., :keys]
            weights, real = weights * visible, visible.any(1).any(0)
        square = queries == keys and not self.crosses
        return weights, real if square else torch.ones(queries, dtype=torch.bool), real


Maps = dict[str, Map]


@torch.no_grad()
def recorded(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[Maps, Any]:
    """The maps of all attention functions that transformers' interface hands out, by their modules' paths."""
    paths = {module: path for path, module in model.named_modules()}
    found: Maps = {}

    def keep(module: nn.Module, weights: Tensor | None, mask: Tensor | None) -> None:
        path = paths.get(module, type(module).__name__)
        again = sum(name.partition("#")[0] == path for name in found)
        name = f"{path}#{again}" if again else path
        said = bool(getattr(module, "is_causal", False))
        found[name] = Map(name, weights, said, bool(CROSS.search(path)), _visible(mask))

    torch.manual_seed(0)
    with _recording(keep):
        output = model(**inputs)
    return found, output


@torch.no_grad()
def returned(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[Maps, Any]:
    """The maps that a model with attention of its own returns, by stack and number."""
    torch.manual_seed(0)
    output = model(**inputs, output_attentions=True)
    found: Maps = {}
    for key, stack in OWN.items():
        maps = output.get(key) if hasattr(output, "get") else None
        for index, weights in enumerate(maps or ()):
            name = f"{stack}.{index}"
            weights = weights if isinstance(weights, Tensor) and weights.ndim == 4 else None
            visible = None if weights is None else (weights > 0).any(2, keepdim=True).any(1, keepdim=True)
            found[name] = Map(name, weights, stack != "encoder", stack == "cross", visible)
    return found, output


def received(weights: Float[Tensor, "heads query key"]) -> Float[Tensor, "heads key"]:
    """alpha_k = sum over queries / how many of them give the key any weight in some head."""
    return weights.sum(1) / (weights > 0).any(0).sum(0)


def is_causal(weights: Float[Tensor, "heads query key"], said: bool) -> bool:
    if not bool((weights.triu(1) > 0).any()):
        return True
    following = (weights.diagonal(1, 1, 2) > 0).any(0)
    return False if bool(following.all()) else said


def only(weights: Tensor, queries: Bool[Tensor, "query"], keys: Bool[Tensor, "key"]) -> Tensor:
    """The weights of real queries on real keys."""
    return weights[:, queries][:, :, keys]


def sharpness(weights: Float[Tensor, "batch heads query key"]) -> float:
    """Mean largest weight of a row, over that of uniform attention on the keys with any weight."""
    visible = (weights > 0).any(0, keepdim=True).any(1, keepdim=True).sum(-1).clamp(min=1)
    return float(weights.float().amax(-1).mean() / (1 / visible).mean())


@contextmanager
def _recording(keep: Callable[[nn.Module, Tensor | None, Tensor | None], None]) -> Iterator[None]:
    original = AttentionInterface.get_interface

    def watched(self: Any, name: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            output, weights = function(module, *args, **kwargs)
            sink = kwargs.get("s_aux")
            if weights is not None and sink is not None and bool((weights.sum(-1) > 1 - 1e-4).all()):
                weights = _with_sink(weights, module, args, kwargs, sink)
            mask = args[3] if len(args) > 3 else kwargs.get("attention_mask")
            keep(module, weights.detach().float() if isinstance(weights, Tensor) else None, mask)
            return output, weights

        return run

    AttentionInterface.get_interface = watched
    try:
        yield
    finally:
        AttentionInterface.get_interface = original


def _visible(mask: Any) -> Bool[Tensor, "_ _ query key"] | None:
    """True where a mask of an attention function lets a query see a key."""
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return None
    return mask.clone() if mask.dtype == torch.bool else mask > -9999


def _with_sink(weights: Tensor, module: nn.Module, args: Any, kwargs: Mapping[str, Any], sink: Tensor) -> Tensor:
    """The maps of an eager function that leaves the learned sink out of what it returns, though not of its output."""
    query, key, mask = args[0], args[1], args[3] if len(args) > 3 else kwargs.get("attention_mask")
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT * kwargs["scaling"]
    lse = torch.logsumexp(scores + (0 if mask is None else mask), -1)
    return weights * torch.sigmoid(lse - sink[None, :, None])[..., None]
