"""Where positions are counted from: not from the beginning of the text for ever, since fp32 angles lose accuracy.

ALiBi counts the keys that are kept, so its bias is made for those.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from sinkscope.caches.rotation import LayerRotation
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import arguments, family, parameters, sink_tokens, text_config

FARTHEST = 32_768  # beyond 39,000 rad the sines of a CPU take several times as long
TABLES = ("gptj", "codegen")  # their sines are a table of as many rows as the model has positions
BY_PLACE = ("ministral3", "mistral4")  # queries are scaled by their position (in Llama 4 by the tokens seen)


@dataclass(eq=False)
class Origin:
    """Positions given to the model are places less `base`, which moves on before positions reach `limit`.

    `limit` is None for a model whose positions mean more than distances, or that takes none: it counts from 0.
    """

    rotations: Mapping[int, LayerRotation]
    limit: int | None
    sinks: int = 0
    base: int = 0

    @classmethod
    def of(cls, model: nn.Module, rotations: Mapping[int, LayerRotation], sinks: int) -> Origin:
        takes = "position_ids" in parameters(model).parameters
        turns = any(part for rotation in rotations.values() for part in (rotation.keys, rotation.values))
        if not takes or not turns or family(model) in BY_PLACE or sink_tokens(model):
            return cls(rotations, None, sinks)
        rows = getattr(text_config(model), "max_position_embeddings", FARTHEST)
        return cls(rotations, min(FARTHEST, rows) if family(model) in TABLES else FARTHEST, sinks)

    def moved(self, seen: Sequence[int], queries: int) -> int:
        """By how much the origin moves before a pass of rows that have seen so many real tokens."""
        if self.limit is None or max(seen) + queries - self.base <= self.limit:
            return 0
        step = min(seen) - self.base
        # Not for little: rows that are far apart, or a pass beyond the limit. And sinks are cached before it moves.
        if step < self.limit // 2 or min(seen) < self.sinks:
            return 0
        self.base += step
        return step

    def turn(self, cache: DynamicCache, by: int) -> None:
        """Turn what all layers keep."""
        for index, rotation in self.rotations.items():
            layer = cache.layers[index]
            if hasattr(layer, "turn"):
                layer.turn(by)
            elif layer.is_initialized and isinstance(layer.keys, Tensor):
                moved = torch.tensor(by, device=layer.keys.device)
                layer.keys = layer.keys if rotation.keys is None else rotation.keys.turn(layer.keys, moved)
                layer.values = layer.values if rotation.values is None else rotation.values.turn(layer.values, moved)

    def counted(self, positions: Tensor | None) -> dict[str, Any]:
        """The argument to give in place of these positions; nothing where they are counted from the beginning."""
        if positions is None or self.base == 0:
            return {}
        return {"position_ids": (positions - self.base).clamp(min=0)}

    def reset(self) -> None:
        self.base = 0


class Streams(Protocol):
    """A cache that a mask is cut for."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]: ...
    @property
    def followed(self) -> Sequence[Any]: ...


def bias_by_mask(model: nn.Module) -> nn.Module | None:
    """The module of BLOOM that makes ALiBi as wide as the attention mask, which covers what is gone; else None."""
    return maker_of_alibi(model, "build_alibi_tensor") if family(model) == "bloom" else None


def maker_of_alibi(model: nn.Module, method: str) -> nn.Module:
    """The module that makes a family's ALiBi. Raises `UnsupportedModelError` where this transformers has it no more."""
    for module in model.modules():
        if hasattr(module, method):
            return module
    raise UnsupportedModelError(
        f"family '{family(model)}': its ALiBi comes from '{method}', which no module of this transformers has"
    )


def with_kept_columns(cache: Streams, model: nn.Module) -> None:
    """Give that module the columns of the mask that belong to keys at hand, while `cache` lives and is passed to it.

    The cache answers for its masks as if these columns were the whole text: what is kept are always the last ones, as
    the first tokens of a row stand there only once the row has no padding among the last. Row by row, ALiBi counts the
    real tokens in front of a key.
    """
    module, follower = bias_by_mask(model), weakref.ref(cache)
    if module is None:
        return

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        follows, given = follower(), arguments(module, args, kwargs)
        passed: object = given.get("past_key_values")
        if follows is None or passed is not follows:
            return None
        ids = given.get("input_ids")
        embedded: Tensor = given["inputs_embeds"] if ids is None else ids
        rows, queries = embedded.shape[:2]
        length, _ = follows.get_mask_sizes(queries, 0)
        mask = given.get("attention_mask")
        if mask is None:  # transformers 5.17 makes one for all that was seen
            mask = torch.ones(rows, length, dtype=torch.long, device=embedded.device)
        return (), given | {"attention_mask": mask[:, -length:] if isinstance(mask, Tensor) else mask}

    weakref.finalize(cache, module.register_forward_pre_hook(before, with_kwargs=True).remove)
