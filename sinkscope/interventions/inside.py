"""Changes inside attention: what a query takes from some keys, with the layer's own weights.

The layer runs unchanged. Then its weights are computed from its queries, keys and masks, as a measurement computes them
(verified against the layer's output, or refused), and the effect of the change is added to its output.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention import SlotTerms
from sinkscope.attention.scores import aggregated
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    ARGUMENTS,
    Editor,
    Invocation,
    Layer,
    OpenStream,
    Stream,
    arguments,
    attention_layers,
    axes,
    device_of,
    evaluating,
    family,
    has_attention,
    hosted,
    is_encoder_decoder,
    masked,
    part,
    row_length,
    samples_of,
    watching,
    without_logits,
)
from sinkscope.interventions.intervention import Intervention, draw, whole
from sinkscope.interventions.targets import AFTER, NEVER, Places, Targets, check_after, document_starts
from sinkscope.measurement import AttentionCall, full_precision, read_call, rounding
from sinkscope.measurement.calls import guard


@dataclass(frozen=True, eq=False)
class QueryRows:
    """Some queries of a call: their weights in fp32, and which keys are changed for which of them.

    Attributes:
        call: The attention call.
        layer: The layer's running number in its stack.
        rows: Which queries of the call.
        query: Where the queries are.
        key: Where the keys are.
        hit: The keys that are changed.
        reached: The queries that are changed: those with such a key, and with `beyond` those that no longer see it.
        scores: Logits on keys, −inf where masked; None if the weights are not a plain softmax.
        rest: Logits on learned slots.
        raw: Weights on tokens and slots that are not a plain softmax, from the layer's operation.
    """

    call: AttentionCall
    layer: int
    rows: slice
    query: Places
    key: Places
    hit: Bool[Tensor, "_ 1 query key"]
    reached: Bool[Tensor, "_ 1 query"]
    scores: Float[Tensor, "batch heads query key"] | None
    rest: Float[Tensor, "batch heads query slots"]
    raw: tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query slots"]] | None = None

    @cached_property
    def weights(self) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query slots"]]:
        """On tokens and on slots."""
        return self.softmax(self.logits) if self.raw is None else self.raw

    @property
    def token(self) -> Float[Tensor, "batch heads query key"]:
        """Weights on tokens."""
        return self.weights[0]

    @property
    def slot(self) -> Float[Tensor, "batch heads query slots"]:
        """Weights on slots."""
        return self.weights[1]

    @property
    def logits(self) -> Float[Tensor, "batch heads query key"]:
        """`scores`. Raises `UnsupportedModelError` if the weights are not their softmax."""
        if self.scores is None:
            raise UnsupportedModelError(
                f"layer '{self.call.layer.name}': its weights are not a plain softmax, so no logit can be replaced "
                "and no mass moved; HideSink, MuteSink and MeanSink work there"
            )
        return self.scores

    def softmax(
        self, scores: Float[Tensor, "batch heads query key"]
    ) -> tuple[Float[Tensor, "batch heads query key"], Float[Tensor, "batch heads query slots"]]:
        """The weights of these scores, with the call's slots."""
        # A query that sees nothing, such as padding, has a row of −inf, whose softmax is NaN: it gets no weights.
        weights = torch.cat([scores, self.rest], -1).softmax(-1).nan_to_num(0.0)
        return weights[..., : scores.shape[-1]], weights[..., scores.shape[-1] :]

    def scores_on(
        self, key: Float[Tensor, "batch kv_heads all_keys dim"], columns: slice
    ) -> Float[Tensor, "batch heads query key"]:
        """The scores of these queries on some of other keys at the same places; softcap, bias and mask stay."""
        call = replace(self.call, key=key)
        return call.scores(slice(0, len(call.query)), self.rows, columns)

    @property
    def all_columns(self) -> slice:
        """All keys."""
        return slice(0, self.hit.shape[-1])

    @cached_property
    def hit_columns(self) -> slice:
        """From the first key that is changed for any of these queries to the last."""
        columns = self.hit.flatten(0, 2).any(0).nonzero()
        return slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else slice(0, 0)

    @cached_property
    def apart_from_hit(
        self,
    ) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query 1"]]:
        """Output over the keys that are not changed, and slots; and the log-sum-exp of their scores (−inf for none)."""
        # A copy: all below works in place on it, and `logits` is read again.
        scores = self.logits.clone()
        scores[..., self.hit_columns].masked_fill_(self.hit[..., self.hit_columns], -torch.inf)
        scores = torch.cat([scores, self.rest], -1) if self.rest.shape[-1] else scores
        # log Σ exp(s) = top + log Σ exp(s − top). The clamp is for rows of −inf: −inf − (−inf) would be NaN; with a
        # finite top, all terms are 0 and the log-sum-exp is −inf.
        top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        terms = scores.sub_(top).exp_()
        total = terms.sum(-1, keepdim=True)
        token, slot = terms[..., self.all_columns], terms[..., self.hit.shape[-1] :]
        summed = aggregated(token, slot, self.call.wide_value, _terms(self.call))
        # A query that sees nothing else has 0 / tiny = 0.
        return summed / total.clamp(min=torch.finfo(total.dtype).tiny), total.log() + top

    def others(self, targets: Targets) -> Bool[Tensor, "_ 1 query key"]:
        """Keys that are neither targets nor the query's own."""
        query, key = self.query, self.key
        itself = query.position[:, :, None] == key.position[:, None, :]
        itself = itself & (query.document[:, :, None] == key.document[:, None, :])
        return (~itself & (targets.starts(key) == NEVER)[:, None, :])[:, None]

    def movable(self, targets: Targets) -> Float[Tensor, "batch heads query"]:
        """½ · min(mass of hit keys, mass of the others): what `TrimMass` moves."""
        on_hit = self.token.masked_fill(~self.hit, 0.0).sum(-1)
        return torch.minimum(on_hit, self.token.masked_fill(~self.others(targets), 0.0).sum(-1)) / 2

    def output(
        self,
        token: Float[Tensor, "batch heads query key"],
        slot: Float[Tensor, "batch heads query slots"],
        instead: Float[Tensor, "batch kv_heads key value_dim"] | None = None,
        more: Float[Tensor, "batch heads query value_dim"] | None = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Σ_k w_k v_k as it leaves attention.

        `instead`: values that replace those of hit keys; `more`: added to the sum, what is no token's and no slot's.
        """
        call, terms = self.call, _terms(self.call)
        if instead is None:
            total = aggregated(token, slot, call.wide_value, terms)
        else:
            kept = aggregated(token.masked_fill(self.hit, 0.0), slot, call.wide_value, terms)
            # The values of slots are in `kept` already, hence no terms here.
            total = kept + aggregated(token.masked_fill(~self.hit, 0.0), slot, instead, ())
        total = total if more is None else total + more
        operation, known = call.operation, call.context
        if operation is None or known is None:
            return total
        if operation.difference is not None:
            total = operation.difference(total)
        own_values = operation.own_values(call.query, call.wide_value)
        hidden = None if known.hidden is None else known.hidden[:, self.rows]
        return operation.leaving(total, hidden, None if own_values is None else own_values[:, :, self.rows])

    @property
    def only_sums(self) -> bool:
        """Whether the layer's output is its weights times values, with nothing between the sum and the output."""
        return self.raw is None and (self.call.operation is None or self.call.context is None)


@dataclass(frozen=True)
class OnKeys(Intervention):
    """Base of changes of some keys for some queries.

    `on`: positions in a document (padding does not count), `Tokens` of a choice, or `Targets`; each key is changed for
    queries from `after` tokens after it on. `layers`: running numbers; None for all of the changed stack. Packed
    documents are told apart by the mask of each layer. Control: as many other keys, for the same queries.
    """

    on: Any = (0,)
    after: int = AFTER
    layers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_after(self.after)
        object.__setattr__(self, "on", Targets.of(self.on, self.after))
        if self.layers is not None:
            object.__setattr__(self, "layers", whole("layers", self.layers))

    @property
    def targets(self) -> Targets:
        return self.on

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.targets.positions

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        return replace(self, on=other_keys(generator, self.targets, row_length(model, inputs)))

    def describe(self) -> dict[str, Any]:
        layers = None if self.layers is None else list(self.layers)
        return {"name": type(self).__name__, "on": self.targets.describe(), "after": self.after, "layers": layers}


@dataclass(frozen=True)
class Inside(OnKeys):
    """Base of changes of attention to some keys (`OnKeys`). To write one: `changed`, and the fields it needs, or a
    `Replacing`.

    In cached decoding positions continue; keys that a cache dropped cannot be changed. Passes no gradients.
    """

    @property
    def beyond(self) -> bool:
        """Whether queries are changed that no longer see a target, which a cache dropped or a window left behind."""
        return False

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened, chosen = opened_layers(model, self.layers, stack)
        if not has_attention(model):
            raise UnsupportedModelError(
                f"family '{family(model)}' computes attention in custom code, where weights cannot be changed for "
                f"some queries: {type(self).__name__} does not work there, HideSink does"
            )
        opened.edit_attention(Changing(Calls(model, opened, chosen), self))

    @abstractmethod
    def changed(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        """The output of these queries under the change."""

    def difference(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        """What the change adds to the output of these queries."""
        return self.changed(rows) - rows.output(*rows.weights)


@dataclass(frozen=True)
class Replacing(Inside):
    """Base of changes that give the changed keys other scores, other values, or both. To write one: `instead`."""

    @abstractmethod
    def instead(
        self, rows: QueryRows, columns: slice
    ) -> tuple[Float[Tensor, "_ heads _ key"] | None, Float[Tensor, "batch kv_heads key value_dim"]]:
        """What these keys become where they are changed: their scores, None if they stay, and their values."""

    def changed(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        scores, value = self.instead(rows, rows.all_columns)
        if scores is None:
            return rows.output(*rows.weights, value)
        # A key that the mask hides stays hidden, whatever its new score.
        return rows.output(
            *rows.softmax(torch.where(rows.hit & (rows.logits > -torch.inf), scores, rows.logits)), value
        )

    def difference(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        """The same as from `changed`, at the cost of the changed keys and of one sum over the others.

        With o_r, L_r the output and log-sum-exp over the keys that stay, and s_p, v_p those of the changed ones,
        softmax(L_r, s_p) weighs o_r and v_p before, softmax(L_r, s'_p) weighs o_r and v'_p after.
        """
        if not rows.only_sums:
            return super().difference(rows)
        columns = rows.hit_columns
        hit, old_value, none = rows.hit[..., columns], rows.call.wide_value[:, :, columns], rows.rest[..., :0]
        scores, value = self.instead(rows, columns)
        if scores is None:
            # The weights stay, so what is left is Σ_p w_p (v'_p − v_p).
            return aggregated(rows.token[..., columns].masked_fill(~hit, 0.0), none, value - old_value, ())
        output, lse = rows.apart_from_hit
        # Column 0 is what stays, as one key with logit L_r and value o_r. Other keys among `columns` that are not
        # changed for a query are part of its L_r, so they are −inf here.
        before = rows.logits[..., columns].masked_fill(~hit, -torch.inf)
        after = torch.where(before > -torch.inf, scores, before)
        old, new = (torch.cat([lse, each], -1).softmax(-1).nan_to_num(0.0) for each in (before, after))
        # o' − o = Σ_p (w'_p v'_p − w_p v_p) + (w'_r − w_r) o_r
        moved = aggregated(new[..., 1:], none, value, ()) - aggregated(old[..., 1:], none, old_value, ())
        return moved.addcmul_(new[..., :1] - old[..., :1], output)


def other_keys(generator: torch.Generator, targets: Targets, length: int) -> Targets:
    """For each target, another random key before its first query, for the same queries; rows must agree.

    Raises `InputError` if there are too few.
    """
    first = np.full((1, max(length, 1)), NEVER)
    taken = set(targets.positions)
    for _, start in targets.pairs():
        (key,) = draw(generator, [k for k in range(min(start, length)) if k not in taken], 1, "keys before it")
        taken.add(key)
        first[0, key] = start
    return Targets(first)


def check_places(model: nn.Module, stack: ExitStack) -> None:
    """Until `stack` closes, raises `InputError` for rows that begin with padding and have no positions.

    Keys of other texts are rotated by their position; in such rows the first token has another one.
    """
    mask_name = Stream.of(model).mask_name

    def check(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = arguments(called, args, kwargs)
        mask = named.get(mask_name)
        if isinstance(mask, Tensor) and mask.ndim == 2 and named.get("position_ids") is None and not mask[:, 0].all():
            raise InputError(
                "rows begin with padding and have no position_ids, so keys of other texts have other positions: give "
                "position_ids that count real tokens, or pad on the right"
            )

    stack.callback(model.register_forward_pre_hook(check, with_kwargs=True).remove)


def opened_layers(
    model: nn.Module, layers: Sequence[int] | None, stack: ExitStack
) -> tuple[OpenStream, dict[nn.Module, int]]:
    """The changed stack, and its chosen attention layers with their running numbers; each must run in each pass.

    Raises `InputError` for a layer that does not exist.
    """
    opened = OpenStream(model, stack)
    numbers = range(len(opened.stream.attention(model))) if layers is None else layers
    chosen = {opened.stream.layer(number): number for number in numbers}
    if layers is None:
        # `require` asks for one layer of each group: here of all layers together, below of each one that was named.
        opened.require(chosen)
    else:
        opened.require(*([module] for module in chosen))
    for module in chosen:
        opened.only_once(module)
    return opened, chosen


class Calls:
    """The attention calls of the changed layers, read exactly: from arguments to `AttentionCall`."""

    def __init__(self, model: nn.Module, opened: OpenStream, layers: Mapping[nn.Module, int]) -> None:
        self.opened, self.layers = opened, layers
        self._family = family(model)
        self._sides = axes(opened.stream.stack, is_encoder_decoder(model))
        self._labels: Mapping[nn.Module, Layer] = attention_layers(model) if has_attention(model) else {}
        self._verified: set[tuple[nn.Module, bool]] = set()

    def of(self, invocation: Invocation) -> tuple[AttentionCall, Places, Places]:
        """The call, and where its queries and keys are. Raises `UnsupportedModelError` if it cannot be read."""
        module, forward = invocation.module, self.opened.passes.now.forward
        label = self._labels[module]
        if len(invocation.output) != forward.batch:
            raise UnsupportedModelError(
                f"family '{self._family}', layer '{label.name}': its {len(invocation.output)} rows are not the model's "
                f"{forward.batch} samples, so their tokens are unknown"
            )
        call = read_call(invocation, label, forward, self._sides, self._family)
        if call.entries is not None:
            raise UnsupportedModelError(
                f"family '{self._family}', layer '{label.name}': it attends to keys other than tokens, so its "
                "attention cannot be changed key by key"
            )
        # One query and several may run different kernels, so each is verified once. Dropout makes outputs random.
        kind = module, call.query.shape[2] > 1
        if kind not in self._verified and not invocation.arguments.get("dropout"):
            host = rounding(invocation.output, invocation.arguments["query"])
            guard.verified(call, self._family, host, attached=bool(hosted(module)))
            self._verified.add(kind)
        queries, keys = call.query.shape[2], call.key.shape[2]
        tokens = self.opened.tokens(call.key_start, call.key_start + keys, call.query.device)
        starts = document_starts(invocation.arguments.get("attention_mask"), queries, keys, masked(module))
        known = Places.of(tokens, starts)
        # The first key may be a later token than the text's first: a sliding cache holds the last ones only.
        start = call.query_start - call.key_start
        return call, known.part(slice(start, start + queries)), known

    def rows(self, invocation: Invocation, targets: Targets, *, beyond: bool = False) -> Iterator[QueryRows]:
        """The queries for which something is changed, a few at a time. `beyond`: as in `Inside`."""
        targets.check_rows(len(invocation.output))
        call, query, key = self.of(invocation)
        for rows in call.row_parts():
            asking = query.part(rows)
            hit = targets.hit(asking, key)[:, None]  # the same for all heads
            reached = targets.asks(asking)[:, None] if beyond else hit.any(-1)
            if bool(reached.any()):
                yield _rows(call, self.layers[invocation.module], rows, asking, key, hit, reached)


def differences(
    calls: Calls, change: Inside, invocation: Invocation
) -> Iterator[tuple[slice, Float[Tensor, "batch query heads value_dim"]]]:
    """What a change adds to the output of a call: some queries, and the difference, exactly 0 where nothing changes."""
    with full_precision(invocation.output.device):
        for rows in calls.rows(invocation, change.targets, beyond=change.beyond):
            difference = change.difference(rows)
            reached = rows.reached.transpose(1, 2)[..., None]  # the other rows stay bit-identical
            # (batch, heads, query, dim) → (batch, query, heads, dim), as attention functions return it.
            yield rows.rows, difference.transpose(1, 2).where(reached, 0.0)


def _rows(
    call: AttentionCall, layer: int, rows: slice, query: Places, key: Places, hit: Tensor, reached: Tensor
) -> QueryRows:
    samples, columns = slice(0, len(call.query)), slice(0, call.key.shape[2])
    # Without slots: zero columns, which `softmax` can concatenate like any others.
    rest = call.wide_query.new_empty(*call.query.shape[:2], rows.stop - rows.start, 0)
    if not call.is_softmax:
        raw = call.operation_weights(rows)
        return QueryRows(call, layer, rows, query, key, hit, reached, None, rest, (raw.token, raw.slot))
    scores = call.scores(samples, rows, columns)
    if call.operation is not None and call.context is not None and call.operation.slots:
        rest = call.operation.slot_logits(call.wide_query, call.context)[:, :, rows]
    elif call.sink is not None:
        rest = call.sink.expand(call.query.shape[:3])[:, :, rows, None]
    if rest.shape[-1]:  # a query that sees no token sees no slot
        rest = rest.masked_fill((scores == -torch.inf).all(-1, keepdim=True), -torch.inf)
    return QueryRows(call, layer, rows, query, key, hit, reached, scores, rest)


def _terms(call: AttentionCall) -> tuple[SlotTerms, ...]:
    """The slots of an operation, which may have values; a learned sink of a model has none."""
    if call.operation is None or call.context is None:
        return ()
    return call.operation.slot_terms(call.context)


@dataclass(frozen=True, eq=False)
class Changing(Editor):
    """Adds the effect of an `Inside` to the output of attention functions."""

    calls: Calls
    change: Inside
    _running: dict[nn.Module, Any] = field(default_factory=dict)

    def edits(self, module: nn.Module) -> bool:
        return module in self.calls.layers

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        # Held until the function runs; then `noted` keeps the whole call.
        self._running[module] = implementation
        return arguments

    def attending(self, module: nn.Module, attend: Any) -> Any:
        implementation = self._running.pop(module, None)

        def noted(owner: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = attend(owner, *args, **kwargs)
            named = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
            # A watcher may run the function `again` on other arguments; the first call is the layer's own.
            self._running.setdefault(owner, Invocation(owner, implementation, named, result[0], None))
            return result

        return noted

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        if torch.is_grad_enabled() and output.requires_grad:
            raise UnsupportedModelError(
                f"{type(self.change).__name__} passes no gradients: call the model under torch.no_grad()"
            )
        self.calls.opened.edited(module)
        invocation: Invocation = self._running.pop(module)
        # Watchers hold this tensor as the layer's own output.
        output = output.clone()
        for rows, difference in differences(self.calls, self.change, invocation):
            output[:, rows] += difference.to(output.dtype)
        return output


@dataclass(frozen=True, eq=False)
class CallReader:
    """Passes the calls of the changed layers to `show`, and changes nothing."""

    calls: Calls
    show: Callable[[Invocation], object]

    def watches(self, module: nn.Module) -> bool:
        return module in self.calls.layers

    def attended(self, invocation: Invocation) -> None:
        self.calls.opened.edited(invocation.module)
        with full_precision(invocation.output.device):
            self.show(invocation)


def mean_masses(
    model: nn.Module, inputs: Mapping[str, Any], targets: Sequence[Targets], layers: Sequence[int] | None = None
) -> Float[np.ndarray, "target number"]:
    """Attention of the changed queries to each set of targets, and last the mass that trimming the first set moves.

    One row per set: the sum over samples, heads, layers and queries, and the number of summands.
    """
    totals = np.zeros((len(targets) + 1, 2))
    with evaluating(model), torch.no_grad(), ExitStack() as stack:
        opened, chosen = opened_layers(model, layers, stack)
        calls = Calls(model, opened, chosen)

        def show(invocation: Invocation) -> None:
            for number, each in enumerate(targets):
                for rows in calls.rows(invocation, each):
                    awake = rows.hit.any(-1).expand(rows.token.shape[:3])
                    mass = rows.token.masked_fill(~rows.hit, 0.0).sum(-1)
                    totals[number] += float(mass[awake].double().sum()), int(awake.sum())
                    if number == 0 and rows.scores is not None:
                        totals[-1] += float(rows.movable(each)[awake].double().sum()), int(awake.sum())

        stack.enter_context(watching(CallReader(calls, show)))
        batch = part(inputs, slice(0, samples_of(inputs)), samples_of(inputs), device_of(model))
        model(**batch | without_logits(model, batch))
    return totals
