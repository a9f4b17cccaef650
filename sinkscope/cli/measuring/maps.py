"""Attention maps of chosen heads, computed on demand for one sample's first tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkscope.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sinkscope.data import InputReading
    from sinkscope.measurement import Measurement
    from sinkscope.report.observatory import HeadMaps

STRONGEST = 6  # heads that are drawn unless others are asked for
TOKENS = 64

Head = tuple[int, int]


def heads_of(names: Sequence[str]) -> list[Head]:
    """`LAYER.HEAD` as numbers. Raises `InputError` for another form."""
    for name in names:
        if not re.fullmatch(r"\d+\.\d+", name):
            raise InputError(f"--maps {name}: expected LAYER.HEAD, both counted from 0, such as 3.2")
    return [(int(layer), int(head)) for layer, head in (name.split(".") for name in names)]


def head_maps(model: PreTrainedModel, given: InputReading, measured: Measurement, wanted: Sequence[Head]) -> HeadMaps:
    """The maps of `wanted`, (row of the measurement's layers, head), or of the strongest heads where none is.

    Raises `InputError` for a head that the model does not have.
    """
    from sinkscope.measurement import AttentionMaps, TokenTexts, measure
    from sinkscope.report.observatory import HeadMaps

    chosen = list(wanted) or _strongest(measured)
    layers, heads = measured.data.sizes["layer"], measured.data.sizes["head"]
    for layer, head in chosen:
        if layer >= layers or head >= heads:
            raise InputError(
                f"--maps {layer}.{head}: the model has attention layers 0 to {layers - 1} with heads 0 to {heads - 1}"
            )
    shown = given.one(TOKENS)
    measured_maps = measure(model, shown, observers=[AttentionMaps(TOKENS)])
    maps = measured_maps.data["attention_map"].values[0]
    ids = shown.get("input_ids")
    row = [] if ids is None else ids[0].tolist()
    texts = TokenTexts.of(measured.record).line(row, range(len(row)))
    return HeadMaps(
        {(layer, head): maps[layer, head] for layer, head in chosen},
        [str(token) if text is None else text for token, text in zip(row, texts, strict=True)],
    )


def _strongest(measured: Measurement) -> list[Head]:
    """The heads in which some token receives most attention, one after the other."""
    import numpy as np

    from sinkscope.measurement import comparable_places, received
    from sinkscope.measurement.metrics import nanmean

    counted = comparable_places(measured.data)[:, :, None]
    by_head = np.nan_to_num(nanmean(np.where(counted, received(measured.data), np.nan), 0)).max(-1)
    order = np.argsort(by_head, axis=None)[::-1][:STRONGEST]
    return [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, by_head.shape), strict=True)]
