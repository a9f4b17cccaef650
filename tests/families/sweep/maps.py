"""What each attention layer of a model computed under eager attention, and attention received from it, naively.

No code of the library is used here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.families.recording import Softmaxes, recording, visible_by

CROSS = re.compile(r"cross|enc_?dec_?att|encoder_attn", re.I)
OWN = {"attentions": "", "encoder_attentions": "encoder", "decoder_attentions": "decoder", "cross_attentions": "cross"}


@dataclass(frozen=True, eq=False)
class Seen:
    """The weights of a row, and what its mask lets each of its queries see."""

    weights: Float[Tensor, "heads query key"]
    visible: Bool[Tensor, "heads query key"]

    def only(self, queries: Bool[Tensor, "query"], keys: Bool[Tensor, "key"]) -> Seen:
        """Real queries on real keys."""
        return Seen(self.weights[:, queries][:, :, keys], self.visible[:, queries][:, :, keys])

    @property
    def received(self) -> Float[Tensor, "heads key"]:
        """alpha_k = sum over queries / how many of them see the key; NaN where none does."""
        return self.weights.sum(1) / self.visible.sum(1)


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

    def of(self, row: int) -> tuple[Seen, Bool[Tensor, "query"], Bool[Tensor, "key"]]:
        """A row's weights, zero where the mask hides keys, with its real queries and keys: those that anything sees."""
        assert self.weights is not None
        weights = self.weights[row]
        queries, keys = weights.shape[1:]
        visible = torch.ones_like(weights, dtype=torch.bool)
        if self.visible is not None:
            visible = self.visible[row if len(self.visible) > 1 else 0][..., :keys].expand(weights.shape)
        real = visible.any(1).any(0)
        square = queries == keys and not self.crosses
        return Seen(weights * visible, visible), real if square else torch.ones(queries, dtype=torch.bool), real

    @property
    def sharpness(self) -> float:
        """Mean largest weight of a row, over that of uniform attention on the keys that it sees."""
        assert self.weights is not None
        rows = [self.of(row)[0] for row in range(len(self.weights))]
        largest = torch.stack([row.weights.float().amax(-1) for row in rows])
        uniform = torch.stack([1 / row.visible.sum(-1).clamp(min=1) for row in rows])
        return float(largest.mean() / uniform.mean())


Maps = dict[str, Map]


@torch.no_grad()
def recorded(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[Maps, Any]:
    """The maps of all attention functions that transformers' interface hands out, by their modules' paths."""
    paths = {module: path for path, module in model.named_modules()}
    found: Maps = {}

    def keep(module: nn.Module, weights: Tensor | None, arguments: dict[str, Any]) -> None:
        if type(module).__name__.endswith("AttentionResidual"):  # of a token to what earlier blocks made of it
            return
        sink = arguments.get("s_aux")
        if weights is not None and sink is not None and bool((weights.sum(-1) > 1 - 1e-4).all()):
            weights = _with_sink(weights, arguments, sink)
        weights = weights.detach().float() if isinstance(weights, Tensor) else None
        path = paths.get(module, type(module).__name__)
        again = sum(name.partition("#")[0] == path for name in found)
        name = f"{path}#{again}" if again else path
        said = bool(getattr(module, "is_causal", False))
        found[name] = Map(name, weights, said, bool(CROSS.search(path)), visible_by(arguments.get("attention_mask")))

    torch.manual_seed(0)
    with recording(keep):
        output = model(**inputs)
    return found, output


@torch.no_grad()
def returned(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[Maps, Any]:
    """The maps that a model with attention of its own returns, by stack and number."""
    torch.manual_seed(0)
    with Softmaxes() as softmaxes:
        output = model(**inputs, output_attentions=True)
    found: Maps = {}
    for key, stack in OWN.items():
        maps = output.get(key) if hasattr(output, "get") else None
        for index, weights in enumerate(maps or ()):
            name = f"{stack}.{index}"
            weights = weights if isinstance(weights, Tensor) and weights.ndim == 4 else None
            visible = None if weights is None else softmaxes.visible(weights)
            if weights is not None and visible is None:  # code of its own, without a softmax of torch
                visible = (weights > 0).any(1, keepdim=True)
            found[name] = Map(name, weights, stack != "encoder", stack == "cross", visible)
    return found, output


def _with_sink(weights: Tensor, arguments: Mapping[str, Any], sink: Tensor) -> Tensor:
    """The maps of an eager function that leaves the learned sink out of what it returns, though not of its output."""
    query, key, mask = arguments["query"], arguments["key"], arguments.get("attention_mask")
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT * arguments["scaling"]
    lse = torch.logsumexp(scores + (0 if mask is None else mask), -1)
    return weights * torch.sigmoid(lse - sink[None, :, None])[..., None]
