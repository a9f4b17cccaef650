"""The rows of a survey: one model on one input, with its numbers or the reason why there are none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.metrics import quiet
from sinkscope.measurement.models.subjects import SurveyModel
from sinkscope.measurement.rates import stack_rates
from sinkscope.measurement.slots import slot_mass
from sinkscope.measurement.strongest import strongest_position

Status = Literal["measured", "skipped", "failed"]


@dataclass(frozen=True)
class LayerRate:
    """Sink rate of a layer at position 0, in percent; `depth` is 0 for the model's first block, 1 for its last."""

    stack: str
    layer: int
    depth: float
    sink_rate: float | None


@dataclass(frozen=True)
class StackRate:
    """Sink rate at position 0 over one stack's layers (encoder, decoder, cross, vision …), in percent."""

    stack: str
    layers: int
    sink_rate: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class SurveyRow:
    """One model on one input.

    `status`: measured, skipped (the model cannot read this input) or failed, with the `reason`. `layers` counts
    attention layers only. `first`: the token at position 0. `sink_rate`: percent at position 0, with its 95 % interval
    over samples (Gu et al. 2025, section 3); `strongest_*`: the position with the highest rate
    (`measurement.strongest_position`). `slot_mass`: mean weight on slots (learned sinks, key biases); None without
    slots. `hidden_norm_ratio`: the largest over depth of ‖h_0‖ divided by the mean of the others; `value_norm_ratio`:
    the smallest over layers of the same for values. `seconds`: time to measure, without loading. `results`: the folder
    with the measurement, relative to the survey's, or the file of a saved measurement. `by_stack`: the sink rate of
    each stack; `sink_rate` is over all layers, so with several stacks it mixes different attention.
    """

    model: str
    label: str
    input: str
    status: Status
    reason: str | None = None
    revision: str | None = None
    pair: str | None = None
    curve: str | None = None
    step: int | None = None
    family: str | None = None
    parameters: int | None = None
    layers: int | None = None
    heads: int | None = None
    samples: int | None = None
    tokens: int | None = None
    first: str | None = None
    epsilon: float | None = None
    sink_rate: float | None = None
    low: float | None = None
    high: float | None = None
    strongest_position: int | None = None
    strongest_rate: float | None = None
    slot_mass: float | None = None
    hidden_norm_ratio: float | None = None
    value_norm_ratio: float | None = None
    seconds: float | None = None
    results: str | None = None
    by_layer: tuple[LayerRate, ...] = ()
    by_stack: tuple[StackRate, ...] = ()

    @property
    def stacks(self) -> tuple[StackRate, ...]:
        """The stacks to show separately: empty for a model with one stack."""
        return self.by_stack if len(self.by_stack) > 1 else ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; numbers that do not exist are None."""
        return asdict(self) | {
            "by_layer": [asdict(rate) for rate in self.by_layer],
            "by_stack": [asdict(rate) for rate in self.by_stack],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SurveyRow:
        """The inverse of `to_dict`. Raises `TypeError` for anything else."""
        layers = tuple(LayerRate(**layer) for layer in values.get("by_layer", ()))
        stacks = tuple(StackRate(**stack) for stack in values.get("by_stack", ()))
        return cls(**{**values, "by_layer": layers, "by_stack": stacks})

    def named_after(self, subject: SurveyModel) -> SurveyRow:
        """The same numbers under the names that the current survey gives the model."""
        shared = ("model", "label", "revision", "pair", "curve", "step")
        return replace(self, **{name: getattr(subject, name) for name in shared})


COLUMNS = tuple(field.name for field in fields(SurveyRow) if field.name not in ("by_layer", "by_stack"))


def unmeasured(subject: SurveyModel, kind: str, status: Status, reason: str) -> SurveyRow:
    """A row without numbers."""
    return SurveyRow(model=subject.model, label=subject.label, input=kind, status=status, reason=reason).named_after(
        subject
    )


def measured_row(
    subject: SurveyModel, kind: str, measurement: Measurement, epsilon: float, seconds: float | None, results: str
) -> SurveyRow:
    """The row of a measurement. The threshold is applied here, so another epsilon needs no model.

    Args:
        subject: The model, as the survey names it.
        kind: The kind of input.
        measurement: Of this model on this input.
        epsilon: Share of attention above which a token is a sink.
        seconds: Time to measure, without loading; None if unknown.
        results: Folder of the stored measurement, relative to the survey's, or the path of a saved one.
    """
    data, record = measurement.data, measurement.record
    interval = measurement.sink_rate_interval(0, epsilon)
    strongest = strongest_position(data, epsilon)
    return SurveyRow(
        model=subject.model,
        label=subject.label,
        input=kind,
        status="measured",
        reason=_fault(record),
        family=record["family"],
        parameters=record["parameters"],
        layers=data.sizes["layer"],
        heads=data.sizes["head"],
        samples=record["samples"],
        tokens=record["tokens"],
        first=record["input"].get("first"),
        epsilon=epsilon,
        sink_rate=_number(interval.value),
        low=_number(interval.low),
        high=_number(interval.high),
        strongest_position=None if strongest is None else strongest.position,
        strongest_rate=None if strongest is None else strongest.rate,
        slot_mass=None if (slots := slot_mass(data, epsilon)) is None else _number(slots.mass.value),
        hidden_norm_ratio=_extreme(measurement.hidden_norm_ratio().values, np.nanmax)
        if "hidden_norm" in data
        else None,
        value_norm_ratio=_extreme(measurement.value_norm_ratio().values, np.nanmin) if "value_norm" in data else None,
        seconds=None if seconds is None else round(seconds, 2),
        results=results,
        by_layer=_by_layer(measurement, epsilon),
        by_stack=_by_stack(measurement, epsilon),
    ).named_after(subject)


def _fault(record: Mapping[str, Any]) -> str | None:
    broken = record.get("non_finite")
    return None if broken is None else f"activations are NaN or infinite, first at {broken['first']}"


def _by_layer(measurement: Measurement, epsilon: float) -> tuple[LayerRate, ...]:
    data = measurement.data
    rates = measurement.layer_sink_rate(epsilon).sel(position=0).values
    layers = zip(data["stack"].values, data["layer_index"].values, rates, strict=True)
    return tuple(
        LayerRate(
            str(stack), int(layer), min(1.0, int(layer) / max(1, _blocks(measurement, str(stack)) - 1)), _number(rate)
        )
        for stack, layer, rate in layers
    )


def _by_stack(measurement: Measurement, epsilon: float) -> tuple[StackRate, ...]:
    stacks = measurement.data["stack"].values.tolist()
    return tuple(
        StackRate(stack, stacks.count(stack), _number(rate.value), _number(rate.low), _number(rate.high))
        for stack, rate in stack_rates(measurement.data, epsilon).items()
    )


def _blocks(measurement: Measurement, stack: str) -> int:
    """Blocks of a stack, those without attention included; cross-attention is part of the decoder's blocks."""
    data = measurement.data
    numbers = data["layer_index"].values[data["stack"].values == stack]
    deepest = int(numbers.max()) + 1
    if "depth_index" not in data.coords:
        return deepest
    home = {"cross": "decoder", "queries_cross": "queries"}.get(stack, stack)
    return max([deepest, *data["depth_index"].values[data["depth_stack"].values == home].tolist()])


def _extreme(values: np.ndarray, pick: Any) -> float | None:
    with quiet():
        return _number(float(pick(values)))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
