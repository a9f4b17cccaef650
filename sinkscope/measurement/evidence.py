"""Resolve a choice of tokens on given texts: runs the model for the evidence that the choice needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import Stream, batches, checked_inputs, evaluating, read_stream, unwrapped, without_logits
from sinkscope.measurement.measuring import measure
from sinkscope.measurement.observers.received import AttentionReceived, SlotReceived
from sinkscope.measurement.peaks import BATCH, Site, check_whole, peaks, sites_of
from sinkscope.measurement.sinks import received_by_tokens
from sinkscope.model.columns import TokenColumns, columns_of
from sinkscope.sinks import Choice, Evidence, Measured, Outliers, Rows, Spikes, Tokens, parse, parts_of


def find_tokens(model: nn.Module, inputs: Any, choice: Choice | str, *, batch_size: int = BATCH) -> Tokens:
    """The tokens that `choice` selects in `inputs` (as for `measure`: ids (N, T), or a dict).

    The model runs, unchanged and in full precision, for what the choice needs: attention received for `Measured`, the
    inputs of linear maps for `Outliers`, the residual stream for `Spikes`; nothing for the others. Positions and
    documents are those of the stack that is changed and cached. Raises `InputError` for inputs that continue a cache,
    and `NothingChosenError`, naming the nearest token, if none is selected.
    """
    wanted = parse(choice) if isinstance(choice, str) else choice
    if wanted is None:
        raise InputError("none chooses no tokens, so there is nothing to find")
    return wanted.resolve(evidence_for(model, inputs, wanted, batch_size=batch_size))


def evidence_for(model: nn.Module, inputs: Any, choice: Choice, *, batch_size: int = BATCH) -> Evidence:
    """The evidence about `inputs` that `choice` needs, measured once for all of its parts."""
    model = unwrapped(model)
    model_inputs, _ = checked_inputs(model, inputs, batch_size)
    check_whole(model_inputs)
    columns = columns_of(model, model_inputs)
    parts = parts_of(choice)
    received = None
    if any(isinstance(part, Measured) and part.measurement is None for part in parts):
        seen = measure(model, model_inputs, [AttentionReceived(), SlotReceived()], batch_size=batch_size)
        received = received_by_tokens(seen.data, Stream.of(model).stack)
    kinds = {part.site: sites_of(model, part.site) for part in parts if isinstance(part, Outliers)}
    channels = dict.fromkeys((part.depth, part.dimension) for part in parts if isinstance(part, Spikes))
    return Evidence(
        rows_of(columns),
        received,
        {asked: _peaks(model, model_inputs, places, columns) for asked, (_, places) in kinds.items()},
        {place: compact(_channel(model, model_inputs, *place), columns) for place in channels},
        {asked: kind for asked, (kind, _) in kinds.items() if kind != asked},
    )


def rows_of(columns: TokenColumns) -> Rows:
    """The texts of a pass over whole rows."""
    real = columns.real.cpu().numpy()
    order, document = (compact(part.cpu().numpy(), columns) for part in (columns.order, columns.document))
    # Real tokens are in front now, so that a row's columns from their number on are padding.
    after = np.arange(order.shape[1]) >= real.sum(-1, keepdims=True)
    ids = None if columns.ids is None else compact(columns.ids.cpu().numpy(), columns)
    return Rows(np.where(after, -1, order), document, None if ids is None else np.where(after, -1, ids))


def compact(values: np.ndarray, columns: TokenColumns) -> np.ndarray:
    """(row, column) as (row, token): real tokens moved to the front."""
    # Stable, so that real tokens keep their order.
    places = np.argsort(~columns.real.cpu().numpy(), axis=-1, kind="stable")
    return np.take_along_axis(values, places, -1)


def _peaks(
    model: nn.Module, inputs: Mapping[str, Any], places: Sequence[Site], columns: TokenColumns
) -> tuple[Float[np.ndarray, "row token"], ...]:
    read = peaks(model, inputs, places)
    if read.unread:
        raise InputError(
            f"outliers: '{read.unread[0]}' is given the tokens that were routed to it, so which of a text they are "
            "cannot be told: take site='experts', what the mixture as a whole is given"
        )
    return tuple(compact(size.numpy(), columns) for size in read.values.values())


def _channel(
    model: nn.Module, inputs_given: Mapping[str, Any], depth: int, dimension: int
) -> Float[np.ndarray, "row position"]:
    """|h_t| at a depth of the residual stream, in one dimension."""
    inputs, samples = checked_inputs(model, inputs_given, BATCH)
    depths = Stream.of(model).depth
    if depth > depths:
        raise InputError(f"depth {depth} does not exist: the model has depths 0 to {depths}")
    parts: list[Tensor] = []

    def read(at: int, hidden: Tensor, _: object) -> None:
        if at == depth:
            if dimension >= hidden.shape[-1]:
                raise InputError(f"dimension {dimension} does not exist: 0 to {hidden.shape[-1] - 1} do")
            parts.append(hidden[..., dimension].abs().float().cpu())

    with ExitStack() as stack, evaluating(model), torch.no_grad():
        stack.enter_context(read_stream(model, read))
        for batch in batches(model, inputs, samples, BATCH):
            model(**batch | without_logits(model, batch))
    return torch.cat(parts).numpy()
