"""A sink as constants: the logit that queries give it, its key and its value, measured on other texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import (
    Invocation,
    Stream,
    batches,
    checked_inputs,
    evaluating,
    head_count,
    row_length,
    unwrapped,
    watching,
    without_logits,
)
from sinkscope.interventions.heads import head_pairs
from sinkscope.interventions.inside import CallReader, Calls, QueryRows, Replacing, check_places, opened_layers
from sinkscope.interventions.targets import AFTER, Places, Targets, acted_on, check_after
from sinkscope.measurement import find_tokens
from sinkscope.sinks import Choice

Form = Literal["logit", "logit+value", "key+value"]
FORMS = ("logit", "logit+value", "key+value")
SAME = 1e-3  # keys and values within this share of their length count as equal


@dataclass(frozen=True, eq=False)
class Constants:
    """Keys, values and logits at the first positions of texts, in the changed stack. Made by `constants`.

    `keys`, `values` (text, layer, kv_head, position, dim), fp32, after rotation; `logits[first]` (layer, head,
    position): the logit on each position, averaged over texts and queries t ≥ `first`, NaN if no query sees it or the
    layer's weights are not a softmax. Layers with fewer or narrower heads are padded with 0, logits with NaN. `texts`:
    a hash of the texts.
    """

    keys: Float[Tensor, "text layer kv_heads position dim"]
    values: Float[Tensor, "text layer kv_heads position value_dim"]
    logits: dict[int, Float[Tensor, "layer heads position"]]
    texts: str = ""

    def vectors(self, rows: QueryRows, donors: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """The keys and values of a call with the constants at the known positions.

        They are means over the texts, or those of one donor per sample.
        """
        call = rows.call
        of_layer = self.keys[:, rows.layer], self.values[:, rows.layer]
        if donors is None:
            chosen = [each.mean(0, keepdim=True) for each in of_layer]
        else:
            if len(donors) not in (1, len(call.query)):
                raise InputError(f"{len(donors)} donors for {len(call.query)} rows: expected one per row")
            chosen = [each[list(donors)] for each in of_layer]
        # Clamped for `gather` alone: left padding is negative, and later tokens have no constants (`covered`).
        position = rows.key.position.clamp(0, self.keys.shape[3] - 1)
        covered = (rows.key.real & (rows.key.position < self.keys.shape[3]))[:, None, :, None]
        vectors = []
        for measured, constant in zip((call.wide_key, call.wide_value), chosen, strict=True):
            constant = constant.to(measured.device)
            # Without padding, one row of positions stands for all texts.
            batch = max(len(measured), len(position))
            index = position.expand(batch, -1)[:, None, :, None].expand(-1, measured.shape[1], -1, measured.shape[3])
            vectors.append(torch.where(covered, constant.expand(batch, -1, -1, -1).gather(2, index), measured))
        return vectors[0], vectors[1]

    def logit(self, rows: QueryRows, targets: Targets) -> Float[Tensor, "_ heads 1 key"]:
        """The constant logit of each target key, 0 elsewhere. Raises `InputError` if a query sees one that is NaN."""
        starts, heads = targets.starts(rows.key), rows.call.heads
        logits = starts.new_zeros(len(starts), heads, starts.shape[1], dtype=torch.float32)
        for first, table in self.logits.items():
            table_of_layer = table[rows.layer][:heads].to(logits.device)
            position = rows.key.position.clamp(0, table_of_layer.shape[1] - 1)
            values = table_of_layer[:, position].transpose(0, 1)  # (heads, batch, key) → (batch, heads, key)
            # Means depend on the first query, so each target reads the table of its own first query.
            logits = torch.where((starts == first)[:, None, :], values, logits)
        logits = logits[:, :, None, :]
        unknown = logits.isnan()
        if bool(unknown.any()) and bool((unknown & rows.hit & (rows.logits > -torch.inf)).any()):
            raise InputError(
                f"layer '{rows.call.layer.name}': a query sees a token that no query of the constants' texts saw, so "
                "its logit is unknown: make the constants from texts like these"
            )
        return logits

    def check(self, targets: Targets) -> None:
        """Raises `InputError` for targets that these constants do not cover."""
        for key, first in targets.all_pairs():
            if key >= self.keys.shape[3] or first not in self.logits:
                raise InputError(
                    f"position {key} for queries from {first} on: these constants cover positions 0 to "
                    f"{self.keys.shape[3] - 1} and queries from {', '.join(map(str, self.logits))} on"
                )

    def differ(self, position: int) -> bool:
        """Whether key or value at a position differ between the texts, in some head by more than a thousandth."""
        for table in (self.keys, self.values):
            states = table[:, :, :, position]
            spread = (states - states.mean(0, keepdim=True)).norm(dim=-1).amax(0)
            if bool((spread > SAME * states.norm(dim=-1).mean(0)).any()):
                return True
        return False

    def describe(self) -> dict[str, Any]:
        return {"texts": len(self.keys), "hash": self.texts, "positions": self.keys.shape[3]}

    def __repr__(self) -> str:
        return f"Constants({self.describe()})"


@dataclass(frozen=True, kw_only=True)
class FoldSink(Replacing):
    """The sink as constants per head, from *other* texts, for queries t ≥ p + `after` of the keys p in `on`.

    | form | logit of p | value of p |
    |---|---|---|
    | `logit` | b_h, the mean of q_t·k_p over texts and queries | 0 (a learned sink, as in gpt-oss) |
    | `logit+value` | b_h | the mean of v_p over texts, per key-value head |
    | `key+value` | q_t · the mean of k_p over texts: it still depends on the query | the mean of v_p |

    With a text's own key and value, `key+value` changes nothing; if the first token is the same in all texts, its key
    and value are constants, and folding them is exact across texts. Queries before p + `after` keep the sink: hidden
    from all of them, it would be replaced by the next token. Made by `fold`. Source: Gu et al. 2025, section 5 (key
    biases with v = 0 trained in place of a sink); folding a trained model's is ours.

    Args:
        constants: What keys become; from `constants`.
        form: A row of the table.
        heads: Only these (layer, head); None for all of `layers`.
        gone: Queries that no longer see p, since a window left it behind or a cache dropped it, get the constants too;
            then no cache needs to keep p. Not for `key+value`, whose key has a position.
    """

    constants: Constants
    form: Form = "logit+value"
    heads: Sequence[tuple[int, int]] | None = None
    gone: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise unknown("form", self.form, FORMS)
        if self.gone and self.form == "key+value":
            raise InputError("gone with form 'key+value': a key has a position, from which a stream moves away")
        self.constants.check(self.targets)
        for p, first in sorted(self.targets.all_pairs()) if self.form != "key+value" else ():
            logits = self.constants.logits[first]
            if logits.numel() and not logits[..., p].isfinite().any():
                raise InputError(
                    f"no query of the constants' texts sees position {p} from position {first} on, so its logit is "
                    "unknown: give longer texts, or a smaller after"
                )
        if self.heads is not None:
            heads = head_pairs(self.heads)
            object.__setattr__(self, "heads", heads)
            layers = tuple(sorted({layer for layer, _ in heads}))
            if self.layers is not None and tuple(sorted(self.layers)) != layers:
                raise InputError(f"layers = {self.layers}, and heads of layers {layers}: give one of the two")
            object.__setattr__(self, "layers", layers)

    @property
    def beyond(self) -> bool:
        return self.gone

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        if self.form == "key+value":
            check_places(model, stack)
        layers = Stream.of(model).layers
        for layer, head in self.heads or ():
            # A layer that does not exist is refused by `opened_layers`.
            if layer < len(layers) and head >= (count := head_count(model, layers[layer])):
                raise InputError(f"head {head} does not exist: layer {layer} has heads 0 to {count - 1}")
        super().attach(model, stack)

    def instead(
        self, rows: QueryRows, columns: slice
    ) -> tuple[Float[Tensor, "_ heads _ key"], Float[Tensor, "batch kv_heads key value_dim"]]:
        key, value = self.constants.vectors(rows)
        value = value[:, :, columns]
        if self.form == "key+value":
            return rows.scores_on(key, columns), value
        logit = self.constants.logit(rows, self.targets)[..., columns]
        return logit, torch.zeros_like(value) if self.form == "logit" else value

    def changed(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        output = self._beyond(rows) if self.gone else super().changed(rows)
        return output if self.heads is None else torch.where(self._chosen(rows), output, rows.output(*rows.weights))

    def difference(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        difference = self.changed(rows) - rows.output(*rows.weights) if self.gone else super().difference(rows)
        return difference if self.heads is None else difference.where(self._chosen(rows), 0.0)

    def _chosen(self, rows: QueryRows) -> Bool[Tensor, "heads 1 1"]:
        """Which heads of the layer are changed."""
        chosen = torch.zeros(rows.call.heads, dtype=torch.bool, device=rows.hit.device)
        chosen[[head for layer, head in self.heads or () if layer == rows.layer]] = True
        return chosen[:, None, None]

    def describe(self) -> dict[str, Any]:
        heads = None if self.heads is None else [list(pair) for pair in self.heads]
        more = {"form": self.form, "heads": heads, "gone": self.gone, "constants": self.constants.describe()}
        return super().describe() | more

    def _beyond(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        """p hidden, and after the keys one column per target, with its logit and value, whether p is there or not.

        For queries that see p this is what `Replacing` computes, since a softmax has no order. A layer whose window
        never reached p in the constants' texts has no logit for it, and no column.
        """
        pairs, scores = self.targets.pairs(), rows.logits.masked_fill(rows.hit, -torch.inf)
        self.constants.logit(rows, self.targets)  # raises if p is seen here and its logit is unknown
        tables = self.constants.logits
        # (heads, target), and for which queries a target is folded: (batch, 1, query, target).
        logits = torch.stack([tables[first][rows.layer, : scores.shape[1], p] for p, first in pairs], -1)
        logits = logits.to(scores.device)
        logits = logits.nan_to_num(nan=-torch.inf)
        late = torch.stack([rows.query.position >= first for _, first in pairs], -1)[:, None]
        columns = torch.where(late, logits[None, :, None, :], -torch.inf).expand(*scores.shape[:3], -1)
        weights = torch.cat([scores, rows.rest, columns], -1).softmax(-1).nan_to_num(0.0)
        token, slot, folded = weights.split([scores.shape[-1], rows.rest.shape[-1], len(pairs)], -1)
        if self.form == "logit":
            return rows.output(token, slot)
        _, heads, _, width = rows.call.wide_value.shape
        value = self.constants.values[:, rows.layer, :heads, :, :width].mean(0)[:, [p for p, _ in pairs]]
        # (kv_heads, target, dim) → (heads, target, dim)
        value = value.to(scores.device).repeat_interleave(scores.shape[1] // heads, 0)
        return rows.output(token, slot, more=torch.einsum("bhqp,hpd->bhqd", folded, value))


def fold(
    model: nn.Module,
    inputs: Any,
    form: Form = "logit+value",
    *,
    on: Any = None,
    after: int = AFTER,
    layers: Sequence[int] | None = None,
    heads: Sequence[tuple[int, int]] | None = None,
    gone: bool = False,
    batch_size: int = 8,
) -> FoldSink:
    """The sinks of `model` as constants per head, measured over `inputs`; apply them to other texts.

        folded = ss.fold(model, texts, form="logit+value")
        with folded.applied(model):
            model(other_texts)

    Costs one pass over the texts, and one more where `on` must be measured.

    Args:
        model: Any transformers model whose weights are a softmax.
        inputs: Texts to measure the constants on, as `measure` takes them.
        form: `logit`, `logit+value` or `key+value`; the table is in `FoldSink`.
        on: Which tokens: positions, a choice or its words, `Tokens`. Default: the sinks, as measured in `inputs`.
        after: Queries at least this many tokens after a sink are changed.
        layers: Running numbers of layers, None for all.
        heads: Only these (layer, head).
        gone: Also for queries that no longer see the sink.
        batch_size: Texts that go through the model at once.

    Raises `InputError` for an unknown form, `NothingChosenError` where there is no sink, and as `constants` does.
    """
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    check_after(after)
    choice = acted_on(on)
    tokens = find_tokens(model, inputs, choice, batch_size=batch_size) if isinstance(choice, Choice) else choice
    targets = Targets.of(tokens, after)
    measured = constants(model, inputs, targets, after, batch_size=batch_size)
    return FoldSink(targets, after, layers, constants=measured, form=form, heads=heads, gone=gone)


def constants(
    model: nn.Module,
    inputs: Any,
    on: Any = (0,),
    after: int = AFTER,
    *,
    positions: int | None = None,
    batch_size: int = 8,
) -> Constants:
    """Keys, values and mean logits at the first positions of texts, in one pass.

    Logits are averaged over the queries for which each target of `on` is changed.

    Args:
        model: Any transformers model; layers whose weights are not a softmax get NaN logits.
        inputs: As in `measure`.
        on: Targets, positions, or `Tokens`: the sinks.
        after: Queries from this many tokens after each position on are changed.
        positions: How many; None: up to the last target's first query.
        batch_size: Samples per pass.

    Raises `InputError` for shorter rows, and as `measure` does.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    targets = Targets.of(on, after)
    length = row_length(model, checked)
    starts = sorted({first for _, first in targets.pairs()})
    wanted = min(max(starts), length) if positions is None else positions
    if not max(targets.positions) < wanted <= length:
        raise InputError(
            f"the texts for constants have {length} tokens, but need at least {max(targets.positions) + 1}"
        )
    tables: dict[str, dict[int, list[Tensor]]] = {"keys": {}, "values": {}}
    sums = {first: {} for first in starts}  # type: dict[int, dict[int, tuple[Tensor, Tensor]]]

    def show(invocation: Invocation) -> None:
        call, query, key = calls.of(invocation)
        layer = chosen[invocation.module]
        # (batch, wanted): the first tokens of a row are in later columns where it is padded on the left.
        column = _first_columns(key, wanted).expand(len(call.query), -1)
        for name, whole in (("keys", call.wide_key), ("values", call.wide_value)):
            index = column[:, None, :, None].expand(len(whole), whole.shape[1], -1, whole.shape[3])
            tables[name].setdefault(layer, []).append(whole.gather(2, index).cpu())
        if not call.is_softmax:
            return
        for rows in call.row_parts():
            scores = call.scores(slice(0, len(call.query)), rows, slice(0, call.key.shape[2]))
            at = scores.gather(-1, column[:, None, None, :].expand(*scores.shape[:3], -1))
            asking = query.part(rows)
            for first in starts:
                asks = (asking.position >= first) & asking.real & (asking.document == _first_document(key))
                seen = asks[:, None, :, None] & (at > -torch.inf)
                # Not multiplied by `seen`: a masked score is −inf, and −inf · 0 is NaN.
                total, count = at.where(seen, 0.0).double().sum((0, 2)), seen.sum((0, 2))
                before = sums[first].get(layer)
                sums[first][layer] = (total, count) if before is None else (before[0] + total, before[1] + count)

    with evaluating(model), torch.no_grad(), ExitStack() as stack:
        opened, chosen = opened_layers(model, None, stack)
        calls = Calls(model, opened, chosen)
        stack.enter_context(watching(CallReader(calls, show)))
        for batch in batches(model, checked, samples, batch_size):
            model(**batch | without_logits(model, batch))
    kv = {
        name: _stacked([torch.cat(table[n]) for n in range(len(chosen))], 0.0).transpose(0, 1)
        for name, table in tables.items()
    }
    logits = {first: _means(by_layer, len(chosen)) for first, by_layer in sums.items() if by_layer}
    digest = hashlib.sha256()
    for value in checked.values():
        if isinstance(value, Tensor):  # as bytes, since numpy has no bfloat16
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return Constants(
        kv["keys"], kv["values"], logits or {first: torch.empty(0) for first in starts}, digest.hexdigest()[:12]
    )


def _means(sums: Mapping[int, tuple[Tensor, Tensor]], layers: int) -> Float[Tensor, "layer heads position"]:
    """Means from (sum, count); 0 / 0 = NaN marks a position that no query sees, and a layer that is no softmax."""
    nothing = torch.zeros(next(iter(sums.values()))[0].shape)
    pairs = (sums.get(layer, (nothing, nothing)) for layer in range(layers))
    return _stacked([(total / count).float().cpu() for total, count in pairs], torch.nan)


def _stacked(tables: Sequence[Tensor], padding: float) -> Tensor:
    """Tables of layers as one; some families have other heads in some of their layers (Gemma 4)."""
    sizes = [max(size) for size in zip(*(table.shape for table in tables), strict=True)]
    stacked = tables[0].new_full((len(tables), *sizes), padding)
    for whole, table in zip(stacked, tables, strict=True):
        whole[tuple(slice(size) for size in table.shape)] = table
    return stacked


def _first_document(key: Places) -> Tensor:
    """The number of each row's first document, (batch, 1)."""
    return key.document.gather(1, key.real.int().argmax(1, keepdim=True))


def _first_columns(key: Places, count: int) -> Tensor:
    """Columns of the first positions of each row's first document, (batch, count)."""
    in_first_document = key.real & (key.document == _first_document(key))
    if int(in_first_document.sum(1).min()) < count:
        raise InputError(
            f"a text for constants has {int(in_first_document.sum(1).min())} tokens, but needs at least {count}"
        )
    # Stable, so that the document's tokens come first, in their order.
    return torch.argsort((~in_first_document).int(), dim=1, stable=True)[:, :count]
