"""A sink as constants: the logit that queries give it, its key and its value, measured on other texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import Invocation, batches, checked_inputs, evaluating, row_length, unwrapped, watching
from sinkscope.interventions.inside import CallReader, Calls, Inside, QueryRows, check_places, opened_layers
from sinkscope.interventions.targets import AFTER, Places, Targets

Form = Literal["logit+value", "key+value"]
FORMS = ("logit+value", "key+value")
SAME = 1e-3  # keys and values within this share of their length count as equal


@dataclass(frozen=True, eq=False)
class Constants:
    """Keys, values and logits at the first positions of texts, in the changed stack. Made by `constants`.

    `keys`, `values` (text, layer, kv_head, position, dim), fp32, after rotation; `logits[first]` (layer, head,
    position): the logit on each position, averaged over texts and queries t ≥ `first`, NaN if no query sees it.
    `texts`: a hash of the texts.
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
        position = rows.key.position.clamp(0, self.keys.shape[3] - 1)
        known = (rows.key.real & (rows.key.position < self.keys.shape[3]))[:, None, :, None]
        vectors = []
        for measured, constant in zip((call.wide_key, call.wide_value), chosen, strict=True):
            constant = constant.to(measured.device)
            batch = max(len(measured), len(position))
            index = position.expand(batch, -1)[:, None, :, None].expand(-1, measured.shape[1], -1, measured.shape[3])
            vectors.append(torch.where(known, constant.expand(batch, -1, -1, -1).gather(2, index), measured))
        return vectors[0], vectors[1]

    def logit(self, rows: QueryRows, targets: Targets) -> Float[Tensor, "_ heads 1 key"]:
        """The constant logit of each target key, 0 elsewhere."""
        starts, heads = targets.starts(rows.key), rows.call.heads
        logits = starts.new_zeros(len(starts), heads, starts.shape[1], dtype=torch.float32)
        for first, table in self.logits.items():
            here = table[rows.layer].to(logits.device)
            position = rows.key.position.clamp(0, here.shape[1] - 1)
            values = here[:, position].transpose(0, 1)
            logits = torch.where((starts == first)[:, None, :], values, logits)
        return logits[:, :, None, :]

    def check(self, targets: Targets) -> None:
        """Raises `InputError` for targets that these constants do not cover."""
        for key, first in targets.every():
            if key >= self.keys.shape[3] or first not in self.logits:
                raise InputError(
                    f"position {key} for queries from {first} on: these constants cover positions 0 to "
                    f"{self.keys.shape[3] - 1} and queries from {', '.join(map(str, self.logits))} on"
                )

    def differ(self, position: int) -> bool:
        """Whether key or value at a position differ between the texts, in some head by more than a thousandth."""
        for table in (self.keys, self.values):
            here = table[:, :, :, position]
            spread = (here - here.mean(0, keepdim=True)).norm(dim=-1).amax(0)
            if bool((spread > SAME * here.norm(dim=-1).mean(0)).any()):
                return True
        return False

    def describe(self) -> dict[str, Any]:
        return {"texts": len(self.keys), "hash": self.texts, "positions": self.keys.shape[3]}


@dataclass(frozen=True, kw_only=True)
class FoldSink(Inside):
    """The sink as constants per head, from *other* texts, for queries t ≥ p + `after` of the keys p in `on`.

    `form="logit+value"`: the logit q_t·k_p ← its mean over texts and queries, per head; v_p ← its mean, per key-value
    head. `form="key+value"`: k_p and v_p ← their means, so that the logit still depends on the query. With a text's own
    key and value, `key+value` changes nothing; if the first token is the same in all texts, its key and value are
    constants, and folding them is exact across texts.
    """

    constants: Constants
    form: Form = "logit+value"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise unknown("form", self.form, FORMS)
        self.constants.check(self.targets)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        if self.form == "key+value":
            check_places(model, stack)
        super().attach(model, stack)

    def changed(self, rows: QueryRows) -> Float[Tensor, "batch heads query value_dim"]:
        key, value = self.constants.vectors(rows)
        if self.form == "key+value":
            constant = rows.scores_on(key)
        else:
            constant = self.constants.logit(rows, self.targets).expand_as(rows.logits)
        scores = torch.where(rows.hit & (rows.logits > -torch.inf), constant, rows.logits)
        return rows.output(*rows.softmax(scores), value)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"form": self.form, "constants": self.constants.describe()}


def constants(
    model: nn.Module,
    inputs: Any,
    on: Any = (0,),
    after: int = AFTER,
    *,
    positions: int | None = None,
    batch_size: int = 8,
) -> Constants:
    """Keys, values and mean logits at the first `positions` of texts (default: up to the last target's first query).

    Logits are averaged over the queries for which each target of `on` is changed. Costs one pass. Raises `InputError`
    for shorter rows, and as `measure` does.
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
                total, count = at.where(seen, 0.0).double().sum((0, 2)), seen.sum((0, 2))
                before = sums[first].get(layer)
                sums[first][layer] = (total, count) if before is None else (before[0] + total, before[1] + count)

    with evaluating(model), torch.no_grad(), ExitStack() as stack:
        opened, chosen = opened_layers(model, None, stack)
        calls = Calls(model, opened, chosen)
        stack.enter_context(watching(CallReader(calls, show)))
        for batch in batches(model, checked, samples, batch_size):
            model(**batch)
    kv = {name: torch.stack([torch.cat(table[n]) for n in range(len(chosen))], 1) for name, table in tables.items()}
    logits = {
        first: torch.stack([(by_layer[n][0] / by_layer[n][1]).float().cpu() for n in range(len(chosen))])
        for first, by_layer in sums.items()
        if by_layer
    }
    digest = hashlib.sha256(b"".join(v.cpu().numpy().tobytes() for v in checked.values() if isinstance(v, Tensor)))
    return Constants(
        kv["keys"], kv["values"], logits or {first: torch.empty(0) for first in starts}, digest.hexdigest()[:12]
    )


def _first_document(key: Places) -> Tensor:
    """The number of each row's first document, (batch, 1)."""
    return key.document.gather(1, key.real.int().argmax(1, keepdim=True))


def _first_columns(key: Places, count: int) -> Tensor:
    """Columns of the first positions of each row's first document, (batch, count)."""
    here = key.real & (key.document == _first_document(key))
    if int(here.sum(1).min()) < count:
        raise InputError(f"a text for constants has {int(here.sum(1).min())} tokens, but needs at least {count}")
    return torch.argsort((~here).int(), dim=1, stable=True)[:, :count]
