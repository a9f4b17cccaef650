"""Packed rows: documents that all attention layers separate, each measured as a sample of its own.

So packed texts equal the same texts alone, array by array. A pass over packed rows is cut before observers see it:
calls, residual stream and watched modules, with rows of equal boundaries together. The documents are known from the
inputs, else from the masks; one layer whose mask crosses documents is enough to read whole rows instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from sinkscope.attention import Context, TokenAxis, Visibility
from sinkscope.hooks import Forward, documents_of, text_config
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import Bound, DenseMask, Rule, VisibleKeys
from sinkscope.measurement.observers.observer import Hidden

Labels = Int[Tensor, "batch position"]  # the number of each column's document, −1 for padding


@dataclass(frozen=True, eq=False)
class PackedDocument:
    """A document in the same columns of some rows.

    `samples`: its number among the documents of the pass, for each row; `start`: its first real token in the row;
    `real`: False for padding inside it, None if all are real.
    """

    rows: Int[Tensor, " row"]
    columns: slice
    samples: tuple[int, ...]
    start: tuple[int, ...]
    real: Bool[Tensor, "row column"] | None = None

    @property
    def length(self) -> int:
        return self.columns.stop - self.columns.start

    def forward(self, whole: Forward) -> Forward:
        """The arguments of a pass over these documents alone."""
        real = {} if self.real is None else {"tokens": self.real}
        return Forward(
            batch=len(self.rows),
            seen=0,
            cache=None,
            ids=None if whole.ids is None else self.of(whole.ids),
            real=real,  # type: ignore[arg-type]
            lengths={"tokens": self.length},
            text_alone=whole.text_alone,
        )

    def of(self, values: Tensor, axis: int = 1) -> Tensor:
        """Their part of (batch, …, position, …)."""
        rows = self.rows.to(values.device)
        return (values if len(values) == 1 < len(rows) else values[rows]).narrow(axis, self.columns.start, self.length)

    def hidden(self, whole: Hidden, before: int) -> Hidden:
        real = None if self.real is None else self.real.to(whole.values.device)
        return Hidden(self.of(whole.values), 0, whole.depth, real, before, real)

    def call(self, whole: AttentionCall, before: int) -> AttentionCall:
        """The call that a pass over these documents alone would have made."""
        device = whole.query.device
        real = None if self.real is None else self.real.to(device)
        mask, causal = self._mask(whole.mask), whole.causal
        ahead = mask.looks_ahead(0, real) if self.length > 1 else None
        return replace(
            whole,
            query=self.of(whole.query, 2),
            key=self.of(whole.key, 2),
            value=self.of(whole.value, 2),
            mask=mask,
            causal=causal if ahead is None else not ahead,
            query_start=0,
            key_start=0,
            own_keys=slice(0, self.length),
            real=real,
            real_keys=real,
            bias=None if whole.bias is None else self._square(whole.bias),
            sink=None if whole.sink is None else self._of_queries(whole.sink),
            context=None if whole.context is None else self._context(whole.context),
            kernel_lse=None if whole.kernel_lse is None else self.of(whole.kernel_lse, 2),
            output=None if whole.output is None else self.of(whole.output, 2),
            collected=None if whole.collected is None else self._square(whole.collected),
            samples_before=before,
        )

    def cut(self, value: Any, batch: int, length: int) -> Any:
        """Their part of a module's argument or output: of tensors over all tokens, flattened or not."""
        if isinstance(value, Tensor):
            if value.ndim > 1 and value.shape[:2] == (batch, length):
                return self.of(value)
            if value.ndim > 1 and value.shape[0] and value.shape[0] % (batch * length) == 0:
                # Tokens may be there n times, as for experts that each read all of them: (n, batch, position, …).
                tokens = value.unflatten(0, (-1, batch, length))[:, self.rows.to(value.device)]
                return tokens[:, :, self.columns].flatten(0, 2)
            return value
        if isinstance(value, Mapping):
            return {name: self.cut(one, batch, length) for name, one in value.items()}
        if isinstance(value, tuple | list) and type(value) in (tuple, list):
            return type(value)(self.cut(one, batch, length) for one in value)
        return value

    def _square(self, values: Tensor) -> Tensor:
        """Their part of (batch | 1, heads, query, key)."""
        rows = values if len(values) == 1 else values[self.rows.to(values.device)]
        return rows[..., self.columns, self.columns]

    def _of_queries(self, sink: Tensor) -> Tensor:
        """Their part of (batch | 1, heads, query | 1)."""
        rows = sink if len(sink) == 1 else sink[self.rows.to(sink.device)]
        return rows if rows.shape[-1] == 1 else rows[..., self.columns]

    def _mask(self, mask: VisibleKeys) -> VisibleKeys:
        if isinstance(mask, DenseMask):
            return DenseMask(self._square(mask.mask))
        if isinstance(mask, Bound):
            return Bound(self._visibility(mask.visibility))
        assert isinstance(mask, Rule)
        padding = None if mask.padding is None else self.of(mask.padding)
        return Rule(self.length, mask.causal, 0, mask.window, padding)

    def _visibility(self, whole: Visibility) -> Visibility:
        key = self._tokens(whole.key)
        return replace(whole, query=key if whole.query is whole.key else self._tokens(whole.query), key=key)

    def _tokens(self, tokens: TokenAxis) -> TokenAxis:
        order, document, valid = (
            None
            if known is None
            else (known if len(known) == 1 else known[self.rows.to(known.device)])[:, self.columns]
            for known in (tokens.order, tokens.document, tokens.valid)
        )
        assert order is not None
        return TokenAxis(order, document, None if valid is None or bool(valid.all()) else valid)

    def _context(self, whole: Context) -> Context:
        return Context(
            self._visibility(whole.visibility),
            whole.scaling,
            None if whole.hidden is None else self.of(whole.hidden),
            None if whole.carried is None else self.of(whole.carried, 2),
            None if whole.bias is None else _PartOfBias(whole.bias, self),
        )


@dataclass(frozen=True, eq=False)
class _PartOfBias:
    whole: Any
    part: PackedDocument

    def rows(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(self.part.length)
        first = self.part.columns.start
        bias = self.whole.rows(slice(first + start, first + stop))
        return (bias if len(bias) == 1 else bias[self.part.rows.to(bias.device)])[..., self.part.columns]


def documents_in(model: nn.Module, forward: Forward, arguments: Mapping[str, Any]) -> Labels | None:
    """Documents that the inputs separate, by column; None if each row is one document or continues a cache.

    Read from the lab model's `document_ids`, restarting positions, `cu_seq_lens`, or a 4-D mask.
    """
    total = forward.lengths.get("tokens")
    if (
        forward.cache is not None
        or forward.seen
        or forward.prefix
        or total is None
        or forward.lengths.keys() != {"tokens"}
    ):
        return None
    labels = documents_of(model, forward, arguments, total)
    if labels is None:
        masks = arguments.get("attention_mask")
        masks = list(masks.values()) if isinstance(masks, Mapping) else [masks]
        first = next((mask for mask in masks if isinstance(mask, Tensor) and mask.ndim == 4), None)
        if first is not None and first.shape[-2:] == (total, total):
            labels = documents_of_mask(DenseMask(first))
    if labels is None:
        return None
    labels = labels.expand(forward.batch, -1)
    real = forward.real.get("tokens")
    return labels if real is None else labels.masked_fill(~real.to(labels.device), -1)


def documents_of_mask(mask: DenseMask) -> Labels | None:
    """Documents that a square mask separates; None if each row is one document."""
    visible = mask.visible(slice(None), slice(None), slice(0, mask.keys))
    queries, keys = visible.shape[-2:]
    if queries != keys or keys < 2 or bool(visible.diagonal(-1, 2, 3).any(1).all()):
        return None  # the usual case, known in O(T): each token sees the one before it
    # Over heads: one that crosses a border is enough to remove it.
    seen = visible.any(1)
    column, awake = torch.arange(keys, device=seen.device), seen.any(-1)
    # A document begins at column c if no query from c on sees a key before c (earliest ≥ c), and no query before c sees
    # c or later (latest < c). Queries that see nothing get limits that forbid no border.
    first = seen.int().argmax(-1).where(awake, keys)
    last = (keys - 1 - seen.flip(-1).int().argmax(-1)).where(awake, -1)
    earliest = first.flip(-1).cummin(-1).values.flip(-1)
    latest = functional.pad(last.cummax(-1).values, (1, -1), value=-1)
    labels = ((earliest >= column) & (latest < column)).cumsum(-1)
    # Padding sees nothing, or nothing sees it.
    labels = labels.masked_fill(~(seen.any(-2) & awake), -1)
    spans = [_spans(row) for row in labels.cpu()]
    several = any(len(row) > 1 for row in spans)
    # A mask that shows each token only itself separates no documents.
    long = any(stop - start > 1 for row in spans for start, stop in row)
    return labels if several and long else None


def parts_of(labels: Labels) -> list[PackedDocument]:
    """The documents of a pass, rows with equal boundaries together; empty if no row holds two."""
    labels = labels.cpu()
    real = labels >= 0
    rows = [_spans(row) for row in labels]
    if all(len(spans) < 2 for spans in rows):
        return []
    first = [sum(map(len, rows[:row])) for row in range(len(rows))]
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for row, spans in enumerate(rows):
        alike.setdefault(tuple(spans), []).append(row)
    parts = []
    for borders, members in alike.items():
        for number, (start, stop) in enumerate(borders):
            valid = real[members, start:stop]
            samples = tuple(first[row] + number for row in members)
            starts = tuple(real[members, :start].sum(-1).tolist())
            padding = None if bool(valid.all()) else valid
            parts.append(PackedDocument(torch.tensor(members), slice(start, stop), samples, starts, padding))
    return parts


def shows_across(call: AttentionCall, labels: Labels) -> bool:
    """Whether the mask of a self-attention call lets a real query see a token of another document."""
    labels = labels.to(call.query.device)
    if call.query.shape[2] != labels.shape[1] or call.key.shape[2] != labels.shape[1] or call.entries is not None:
        return True
    for samples, rows in call.parts():
        visible = call.mask.visible(samples, rows, slice(0, call.mask.keys)).to(call.query.device)
        query, key = labels[samples, rows, None], labels[samples, None, :]
        other = (query != key) & (query >= 0) & (key >= 0)
        if bool((visible & other[:, None]).any()):
            return True
    return False


def recurrent_layers(model: nn.Module) -> list[int]:
    """Layers that carry a state from token to token, across documents as well: recurrences and convolutions.

    They are known from the cache that transformers makes for the configuration.
    """
    config = text_config(model)
    layers = [] if config is None else DynamicCache(config=config).layers
    return [index for index, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]


def _spans(labels: Int[Tensor, " position"]) -> list[tuple[int, int]]:
    """Start and stop of each run of one label among the real columns, in order."""
    places = (labels >= 0).nonzero()[:, 0].tolist()
    numbers: Sequence[int] = labels[labels >= 0].tolist()
    spans: list[tuple[int, int]] = []
    for index, (place, number) in enumerate(zip(places, numbers, strict=True)):
        if index and number == numbers[index - 1]:
            spans[-1] = spans[-1][0], place + 1
        else:
            spans.append((place, place + 1))
    return spans
