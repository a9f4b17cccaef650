"""Where positions are counted from. The origin moves along a long text, because fp32 angles lose accuracy.

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
from sinkscope.hooks import arguments, family, given_cache, parameters, sink_tokens, text_config

FARTHEST = 32_768  # beyond 39,000 rad, sines take several times as long on a CPU
TABLES = ("gptj", "codegen")  # their sines come from a table with one row per position
BY_PLACE = ("ministral3", "mistral4")  # scale queries by position (Llama 4: by the tokens seen)


@dataclass(eq=False)
class Origin:
    """Positions given to the model are places minus `base`, which moves on before positions reach `limit`.

    `limit` is None for a model whose positions mean more than distances, or that takes none: it counts from 0.
    """

    rotations: Mapping[int, LayerRotation]
    limit: int | None
    sinks: int = 0
    base: int = 0

    @classmethod
    def of(cls, model: nn.Module, rotations: Mapping[int, LayerRotation], sinks: int) -> Origin:
        takes = "position_ids" in parameters(model).parameters
        turns = any(rotation.keys or rotation.values for rotation in rotations.values())
        if not takes or not turns or family(model) in BY_PLACE or sink_tokens(model):
            return cls(rotations, None, sinks)
        rows = getattr(text_config(model), "max_position_embeddings", FARTHEST)
        return cls(rotations, min(FARTHEST, rows) if family(model) in TABLES else FARTHEST, sinks)

    def moved(self, seen: Sequence[int], queries: int) -> int:
        """By how much the origin moves before a pass of rows that have seen so many real tokens."""
        if self.limit is None or max(seen) + queries - self.base <= self.limit:
            return 0
        # To the shortest row, so that no later token gets a negative position. Kept keys may: only distances count.
        step = min(seen) - self.base
        # Not for a small step: rows that are far apart, or a pass beyond the limit. And only once sinks are cached.
        if step < self.limit // 2 or min(seen) < self.sinks:
            return 0
        self.base += step
        return step

    def turn(self, cache: DynamicCache, by: int) -> None:
        """Rotate what all layers keep."""
        for index, rotation in self.rotations.items():
            layer = cache.layers[index]
            if hasattr(layer, "turn"):
                layer.turn(by)
            elif layer.is_initialized and isinstance(layer.keys, Tensor):
                # A layer with transformers' own window: the model gives it positions from the new origin too.
                moved = torch.tensor(by, device=layer.keys.device)
                layer.keys = layer.keys if rotation.keys is None else rotation.keys.turn(layer.keys, moved)
                layer.values = layer.values if rotation.values is None else rotation.values.turn(layer.values, moved)

    def counted(self, positions: Tensor | None) -> dict[str, Any]:
        """The argument that replaces these positions; empty if they are counted from the beginning."""
        if positions is None or self.base == 0:
            return {}
        return {"position_ids": (positions - self.base).clamp(min=0)}

    def reset(self) -> None:
        self.base = 0


class Streams(Protocol):
    """A cache for which a mask is cut."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]: ...
    @property
    def followed(self) -> Sequence[Any]: ...


def bias_by_mask(model: nn.Module) -> nn.Module | None:
    """BLOOM's module that makes ALiBi as wide as the attention mask, which includes dropped keys; else None."""
    return maker_of_alibi(model, "build_alibi_tensor") if family(model) == "bloom" else None


def maker_of_alibi(model: nn.Module, method: str) -> nn.Module:
    """The module that makes a family's ALiBi. Raises `UnsupportedModelError` if this transformers has none."""
    for module in model.modules():
        if hasattr(module, method):
            return module
    raise UnsupportedModelError(
        f"family '{family(model)}': its ALiBi comes from '{method}', which this version of transformers does not have"
    )


def with_kept_columns(cache: Streams, model: nn.Module) -> None:
    """Give that module only the mask columns of keys in the cache, while `cache` lives and is passed to it.

    The cache reports mask sizes as if these columns were the whole text. The kept tokens are always the last ones,
    because a row's first tokens are written there only once none of the last is padding. ALiBi counts, per row, the
    real tokens before a key.
    """
    module, reference = bias_by_mask(model), weakref.ref(cache)
    if module is None:
        return

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        follower, inputs = reference(), arguments(module, args, kwargs)
        passed_cache: object = given_cache(inputs)
        if follower is None or passed_cache is not follower:
            return None
        ids = inputs.get("input_ids")
        embedded: Tensor = inputs["inputs_embeds"] if ids is None else ids
        rows, queries = embedded.shape[:2]
        length, _ = follower.get_mask_sizes(queries, 0)
        mask = inputs.get("attention_mask")
        if mask is None:  # transformers 5.17 makes one for all tokens seen
            mask = torch.ones(rows, length, dtype=torch.long, device=embedded.device)
        return (), inputs | {"attention_mask": mask[:, -length:] if isinstance(mask, Tensor) else mask}

    weakref.finalize(cache, module.register_forward_pre_hook(before, with_kwargs=True).remove)
