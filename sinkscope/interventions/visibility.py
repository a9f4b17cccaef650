"""Interventions on visible keys: hide the sink, or give another position the first token's view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.attention import Alone, Full, Kept, Mask, TokenAxis, Visibility, Without
from sinkscope.attention.functional import DenseVisibility
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import IMPLEMENTATION, Editor, OpenStream, masked, row_length
from sinkscope.interventions.inside import OnKeys, opened_layers
from sinkscope.interventions.intervention import Intervention, draw, whole
from sinkscope.interventions.residual import other_positions
from sinkscope.interventions.targets import Places, Targets, document_starts


@dataclass(frozen=True)
class ForbidSink(Intervention):
    """A[t, k] = 0 for the keys k at `positions` and all queries t ≠ k; the other weights of a row are renormalized.

    In all self-attention layers of the changed stack. A query still sees its own key, and a query without any other key
    keeps what it saw. Masks are written out, (batch, 1, query, key). Control: as many other keys, among those that at
    least half of the queries see.
    """

    positions: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", whole("positions", self.positions))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _restrict(model, Without(self.positions_named), stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> ForbidSink:
        half = (row_length(model, inputs) + 1) // 2
        return ForbidSink(other_positions(generator, model, inputs, self.positions_named, stop=half))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(self.positions)


@dataclass(frozen=True)
class FirstTokenView(Intervention):
    """A[t, t] = 1 for the query t at `position`: it only sees itself, as the first token does.

    If being alone makes a sink, the sink moves there. In all self-attention layers of the changed stack. Control:
    another position.
    """

    position: int

    def __post_init__(self) -> None:
        whole("position", (self.position,))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _restrict(model, Alone((self.position,)), stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> FirstTokenView:
        # As many are drawn as are excluded, two; one is needed.
        return FirstTokenView(*other_positions(generator, model, inputs, (0, self.position))[:1])

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)


@dataclass(frozen=True)
class OneKeyView(Intervention):
    """A[position, key] = 1: the query sees one other token only, and not itself.

    As narrow a view as `FirstTokenView`, of something else: its control in the question of whether being alone makes a
    sink. In all self-attention layers of the changed stack. Control: another key before it.
    """

    position: int
    key: int

    def __post_init__(self) -> None:
        whole("positions", (self.position, self.key))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        _restrict(model, _OneKey(self.position, self.key), stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> OneKeyView:
        (key,) = draw(generator, [key for key in range(self.position) if key != self.key], 1, "keys before it")
        return OneKeyView(self.position, key)

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.position, self.key


@dataclass(frozen=True)
class _OneKey:
    """The query at `position` of a row sees `only` this key. No piece of a spec: it is written out."""

    position: int
    only: int

    def visible(self, query: TokenAxis, key: TokenAxis) -> Bool[Tensor, "batch query key"]:
        return (query.order != self.position)[:, :, None] | (key.order == self.only)[:, None, :]


@dataclass(frozen=True)
class HideSink(OnKeys):
    """Logit −∞ on the keys p in `on` for queries t ≥ p + `after`; the other weights of a row are renormalized.

    Queries before keep the sink: hidden from all of them, it would only be replaced by the next token, which then sees
    itself alone. `on`: positions of a document, `Tokens` of a choice, or `Targets`; `layers`: running numbers, None for
    all of the changed stack. By the mask, so what is measured meanwhile are the weights without it. Packed documents
    are told apart by each layer's mask. A query for which nothing else would be left keeps what it saw. Control: as
    many other keys, hidden from the same queries.
    """

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened, chosen = opened_layers(model, self.layers, stack)
        opened.edit_attention(_Restriction(opened, self.targets, tuple(chosen)))


def _restrict(model: nn.Module, mask: Mask | _OneKey, stack: ExitStack) -> None:
    """Give every self-attention layer of the changed stack this mask as well."""
    opened = OpenStream(model, stack)
    opened.require(opened.stream.attention(model))
    opened.edit_attention(_Restriction(opened, mask, opened.stream.layers))


@dataclass(frozen=True, eq=False)
class _Restriction(Editor):
    """Adds a mask to the arguments of the attention layers of a stack."""

    masks: ClassVar[bool] = True
    opened: OpenStream
    mask: Mask | Targets | _OneKey
    layers: tuple[nn.Module, ...]

    def edits(self, module: nn.Module) -> bool:
        return module in self.layers

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        self.opened.edited(module)
        mask = arguments.get("attention_mask")
        if isinstance(mask, Visibility):
            return arguments | {"attention_mask": self._narrowed(module, mask)}
        return arguments | {"attention_mask": self._written(module, implementation or "eager", arguments, mask)}

    def _written(self, module: nn.Module, name: str, arguments: Mapping[str, Any], mask: Any) -> Tensor:
        """The mask (batch | 1, heads | 1, query, key) with the restriction, in the form that the layer got."""
        written = mask is None or (isinstance(mask, Tensor) and mask.ndim == 4)
        if name not in ("eager", "sdpa", IMPLEMENTATION) or not written:
            raise UnsupportedModelError(
                f"family '{self.opened.stream.family}': attn_implementation='{name}' takes no written mask, so "
                "visibility cannot be changed; load the model with attn_implementation='sdpa' or 'eager'"
            )
        query, keys = arguments["query"], arguments["key"].shape[2]
        allowed = self._allowed(module, query.shape[2], keys, query.device, mask)
        if mask is None:
            mask = self._unwritten(module, name, arguments, allowed)
        mask = mask[..., :keys].expand(-1, -1, query.shape[2], -1)
        is_bool = mask.dtype == torch.bool
        # Half of the minimum: where a bias was added, a hidden score is not the minimum itself.
        visible = mask if is_bool else mask > torch.finfo(mask.dtype).min / 2
        hidden = visible & ~allowed[:, None]
        hidden = hidden & (visible & ~hidden).any(-1, keepdim=True)  # a query that would see nothing keeps what it saw
        return mask & ~hidden if is_bool else mask.masked_fill(hidden, torch.finfo(mask.dtype).min)

    def _narrowed(self, module: nn.Module, visibility: Visibility) -> Visibility:
        """The mask value of a lab model with the restriction: as a rule if it is one, otherwise written out."""
        if not isinstance(self.mask, Targets | _OneKey):
            return visibility.narrowed(self.mask)
        if isinstance(visibility, Kept):
            raise self._dropped(module)
        visible = visibility.dense()
        queries, keys = visible.shape[2:]
        hidden = visible & ~self._allowed(module, queries, keys, visible.device, visibility)[:, None]
        hidden = hidden & (visible & ~hidden).any(-1, keepdim=True)
        return DenseVisibility(Full(), visibility.query, visibility.key, visible & ~hidden, visibility)

    def _allowed(
        self, module: nn.Module, queries: int, keys: int, device: torch.device, mask: Any
    ) -> Bool[Tensor, "_ query key"]:
        start = self.opened.seen
        total = start + queries
        first = max(0, total - keys)  # a sliding cache holds the last keys only
        cache = self.opened.passes.now.forward.cache
        # Keys are missing although no layer has a window: they were dropped, and columns give no positions.
        if first and cache is not None and not any(cache.is_sliding):
            raise self._dropped(module)
        if not isinstance(self.mask, Targets):
            query, key = self.opened.tokens(start, total, device), self.opened.tokens(first, first + keys, device)
            return self.mask.visible(query, key)
        self.mask.check_rows(self.opened.passes.now.forward.batch)
        held = min(keys, total)  # a static cache hands out its whole buffer
        starts = document_starts(mask, queries, held, masked(module, self))
        keys_at = Places.of(self.opened.tokens(first, first + held, device), starts)
        hit = self.mask.hit(keys_at.part(slice(start - first, total - first)), keys_at)
        return functional.pad(~hit, (0, keys - held), value=True)

    def _dropped(self, module: nn.Module) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"family '{self.opened.stream.family}', {type(module).__name__}: its cache dropped keys, so visibility "
            "cannot be changed further: use a cache that keeps all"
        )

    def _unwritten(self, module: nn.Module, name: str, arguments: Mapping[str, Any], like: Tensor) -> Tensor:
        """The meaning of no mask: the causal triangle for SDPA of a causal layer, otherwise everything."""
        argument, queries = arguments.get("is_causal"), like.shape[1]
        causal = bool(getattr(module, "is_causal", True) if argument is None else argument)
        everything = torch.ones(1, 1, *like.shape[1:], dtype=torch.bool, device=like.device)
        # Eager attention adds the mask that it gets: without one, even a causal layer sees everything.
        if name == "eager":
            return torch.zeros_like(everything, dtype=arguments["query"].dtype)
        # transformers lets SDPA be causal for several queries only, aligned with the first key: those that begin a row.
        # A static cache has empty places after their keys.
        return everything.tril() if causal and queries > 1 else everything
