"""The metrics of a trained model: on its own kind of text, on other inputs, and at other lengths.

No sink rate or mass is read on fewer than 32 tokens, and all use the T − k queries of Gu et al. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.data import UNSCORED
from sinkscope.experiments.observed import FEWEST, Metrics
from sinkscope.measurement import (
    PAPER,
    PER_HEAD,
    AttentionEntropy,
    AttentionReceived,
    HiddenNorms,
    MatrixEntropy,
    MaximalLogits,
    Measurement,
    Mixing,
    OutlierStatistics,
    QueryKeyValueNorms,
    SelfAttention,
    SlotReceived,
    TokenPeaks,
    depth_lengths,
    measure,
    metrics,
    query_counts,
    received,
    sample_lengths,
    strongest_position,
    visible_queries,
)

__all__ = [
    "BATCH",
    "EPSILON",
    "SINKS",
    "STATES",
    "TOKENS",
    "Windows",
    "at_first",
    "by_name",
    "columns",
    "long_enough",
    "masses",
    "mean_loss",
    "on_lengths",
    "on_other_inputs",
    "other_inputs",
    "rates",
    "readings",
    "sink_metrics",
    "state_metrics",
    "strongest",
    "strongest_metrics",
]

Windows = Mapping[str, Tensor]  # model inputs by name: `input_ids`, and `document_ids` if windows number documents

TOKENS, EPSILON, BATCH = 64, 0.3, 20
EPSILONS = (0.2, 0.3, 0.4, 0.5)
POSITIONS, LENGTHS = 17, (FEWEST, 64, 128)
SINKS = (AttentionReceived("all"), SelfAttention(), SlotReceived(), HiddenNorms(), QueryKeyValueNorms())
STATES = (
    AttentionEntropy(),
    MaximalLogits(),
    OutlierStatistics(),
    TokenPeaks(),
    Mixing(),
    MatrixEntropy(),
)

SHAPES = ("hidden_spread", "last_pair_distance", "relative_spread", "relative_pair_distance", "matrix_entropy")
"""Shapes of the residual stream, if they were measured."""


def readings(model: PreTrainedModel, windows: Tensor | Windows) -> Metrics:
    """The metrics of `Observed` that come from a model and validation windows.

    `windows`: ids (sample, token), or model inputs by name, all of that shape. With `document_ids` the windows' own
    text is read under the model's masks and positions for documents; other inputs are one document per row.
    """
    windows = by_name(windows)
    text = columns(windows, slice(TOKENS))
    # Packed rows stay whole: rates divide by all queries of the window, as `Observed` says.
    measured = measure(model, text, (*SINKS, *STATES), batch_size=BATCH, apart=False)
    yield from sink_metrics(measured)
    yield from strongest_metrics(measured)
    yield from state_metrics(measured)
    yield from on_lengths(model, windows)
    yield from on_other_inputs(model, windows)


def sink_metrics(measurement: Measurement) -> Metrics:
    """Sink rates and masses, and the norms of the first token."""
    yield from ((f"sink_{position}", rate) for position, rate in enumerate(rates(measurement)[:POSITIONS]))
    first, *later = masses(measurement)[:POSITIONS]
    yield "sink_mass", first
    yield from ((f"sink_mass_{position}", mass) for position, mass in enumerate(later, 1))
    yield "lift", lifts(measurement)[0]
    if "slot_received" in measurement.data:
        yield "slot", measurement.slot_rate(EPSILON) if long_enough(measurement) else math.nan
        yield "slot_mass", _mass_of(measurement, "slot_received")
    if "self_attention" in measurement.data:
        yield "self_mass", _mass_of(measurement, "self_attention")
    yield "norm_ratio", float(measurement.hidden_norm_ratio().max())
    yield "value_ratio", float(measurement.value_norm_ratio().min())
    for epsilon in EPSILONS:
        yield f"sink_0/epsilon={epsilon:g}", rates(measurement, epsilon)[0]
    data = measurement.data
    mass = metrics.mass_on_first(received(data), visible_queries(data), query_counts(data), 1)
    yield "first_share", 100 * float(mass.mean())


def _mass_of(measurement: Measurement, name: str) -> float:
    """The sink mass, in percent, of a mean weight per head (a slot, the token itself); NaN on few tokens."""
    weights = measurement.data[name].transpose("sample", "layer", "head").values[..., None]
    return float(metrics.sink_mass(weights)[0]) if long_enough(measurement) else math.nan


def strongest_metrics(measurement: Measurement) -> Metrics:
    """The strongest sink: its position, rate, mass and norms."""
    position, rate = strongest(measurement)
    yield "strongest", rate
    yield "strongest_position", position
    if math.isnan(position):
        return
    index, data = int(position), measurement.data
    yield "sink_mass/strongest", masses(measurement)[index]
    yield "lift/strongest", lifts(measurement)[index]
    attention = alpha(measurement)
    for layer in range(attention.shape[1]):
        yield f"sink_mass/strongest/layer={layer}", float(metrics.sink_mass(attention[:, [layer]])[index])
    hidden = data["hidden_norm"].transpose("sample", "depth", "position").values
    yield "norm_ratio/strongest", float(metrics.nanmean(metrics.over_others(hidden, index), 0).max())
    ratio = metrics.value_ratio(data["value_norm"].transpose(*PER_HEAD).values, index)
    yield "value_ratio/strongest", float(metrics.nanmean(metrics.nanmean(ratio, 2), 0).min())


def state_metrics(measurement: Measurement) -> Metrics:
    """Entropy and logits of attention, outliers and shape of the residual stream."""
    data = measurement.data
    entropy = data["attention_entropy"].mean("sample")
    yield "entropy", float(entropy.mean())
    yield "entropy_least", float(entropy.min())
    logits = data["max_logit"].max(["sample", "head"])
    yield "max_logit", float(logits.max())
    yield from ((f"max_logit/layer={layer}", float(logit)) for layer, logit in enumerate(logits.values))
    for name in ("kurtosis", "kurtosis_neurons", "max_median_ratio"):
        yield name, float(data[name].mean("sample").max())
    yield "infinity_norm", metrics.infinity_norm(data["hidden_max"].values, depth_lengths(data))
    for name in (name for name in SHAPES if name in data):
        depths = data[name].mean("sample").values
        yield name, float(depths[-1])
        yield from ((f"{name}/depth={depth}", float(value)) for depth, value in enumerate(depths))


def on_lengths(model: PreTrainedModel, windows: Windows) -> Metrics:
    """Rates, mass and strongest position on the first 32, 64, 128 tokens and on whole windows."""
    context = windows["input_ids"].shape[1]
    for tokens in sorted({min(length, context) for length in (*LENGTHS, context)}):
        seen = measure(
            model, columns(windows, slice(tokens)), [AttentionReceived("all")], batch_size=BATCH, apart=False
        )
        yield from on_tokens(seen, tokens)


def other_inputs(windows: Windows, vocabulary: int) -> dict[str, dict[str, Tensor]]:
    """The inputs of `on_other_inputs` by name: random and repeated ids, and windows from their second token on."""
    draw = torch.Generator().manual_seed(0)
    text = windows["input_ids"][:, :TOKENS]
    random = torch.randint(0, vocabulary, text.shape, generator=draw)
    repeated = torch.randint(0, vocabulary, (len(text), 1), generator=draw).expand(text.shape)
    return {
        "random": by_name(random),
        "random_after_first": by_name(torch.cat([text[:, :1], random[:, 1:]], 1)),
        "repeated": by_name(repeated),
        "without_first": columns(windows, slice(1, TOKENS + 1)),
    }


def on_other_inputs(model: PreTrainedModel, windows: Windows) -> Metrics:
    """The sink at position 0 of random and repeated tokens, and of windows from their second token on."""
    for name, inputs in other_inputs(windows, model.config.vocab_size).items():
        yield from at_first(name, model, inputs)
    yield "loss/without_first", mean_loss(model, columns(windows, slice(1, None)))
    # From the third token on: the targets of the windows without their first token.
    yield "loss/with_first", mean_loss(model, windows, first=2)


def by_name(inputs: Tensor | Windows) -> dict[str, Tensor]:
    """Model inputs by name, from token ids or from such inputs."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}


def columns(windows: Windows, taken: slice) -> dict[str, Tensor]:
    """A slice of all windows along their tokens."""
    return {name: values[:, taken] for name, values in windows.items()}


@torch.no_grad()
def mean_loss(model: PreTrainedModel, inputs: Tensor | Windows, first: int = 0) -> float:
    """Mean cross-entropy, in nats, of the next tokens from position `first` on.

    NaN for a bidirectional model, which sees the next token.
    """
    if not getattr(model.config, "is_causal", True):
        return math.nan
    scored = by_name(inputs)
    labels = scored["input_ids"].clone()
    labels[:, :first] = UNSCORED
    count, scored = len(labels), scored | {"labels": labels}
    batches = (
        {name: values[start : start + BATCH] for name, values in scored.items()} for start in range(0, count, BATCH)
    )
    # Rows have equally many scored tokens, so weighting batch means by rows gives the mean over tokens.
    sums = [model(**batch, use_cache=False).loss * len(batch["labels"]) for batch in batches]
    return float(sum(sums) / count)


def long_enough(measurement: Measurement) -> bool:
    """Whether all rows have enough tokens for a rate."""
    return bool(sample_lengths(measurement.data).min(initial=FEWEST) >= FEWEST)


def alpha(measurement: Measurement) -> Float[np.ndarray, "sample layer head position"]:
    """Attention received, divided by T − k under any mask, also of windows and packed documents."""
    return received(measurement.data, denominator=PAPER)


def rates(measurement: Measurement, epsilon: float = EPSILON) -> list[float]:
    """Sink rate of each measured position, percent; NaN on short texts."""
    return _or_nan(measurement, metrics.sink_rate(alpha(measurement), epsilon).tolist())


def masses(measurement: Measurement) -> list[float]:
    """`metrics.sink_mass` of each measured position, percent; NaN on short texts."""
    return _or_nan(measurement, metrics.sink_mass(alpha(measurement)).tolist())


def lifts(measurement: Measurement) -> list[float]:
    """`metrics.step` of each measured position; NaN on short texts."""
    return _or_nan(measurement, metrics.step(alpha(measurement)).tolist())


def strongest(measurement: Measurement) -> tuple[float, float]:
    """The strongest position and its sink rate; NaN on short texts, and if nothing could be measured."""
    sink = strongest_position(measurement.data, EPSILON, PAPER) if long_enough(measurement) else None
    return (math.nan, math.nan) if sink is None else (float(sink.position), sink.rate)


def at_first(name: str, model: PreTrainedModel, inputs: Tensor | Windows) -> Metrics:
    """`sink_0/NAME` and `sink_mass/NAME`: both of position 0, percent."""
    seen = measure(model, inputs, [AttentionReceived([0])], batch_size=BATCH, apart=False)
    yield f"sink_0/{name}", rates(seen)[0]
    yield f"sink_mass/{name}", masses(seen)[0]


def on_tokens(measurement: Measurement, tokens: int) -> Metrics:
    """On a text's first tokens: the rates and the mass of position 0, and the strongest position."""
    name = f"tokens={tokens}"
    yield f"sink_0/{name}", rates(measurement)[0]
    for epsilon in EPSILONS:
        yield f"sink_0/{name}/epsilon={epsilon:g}", rates(measurement, epsilon)[0]
    yield f"sink_mass/{name}", masses(measurement)[0]
    yield f"strongest_position/{name}", strongest(measurement)[0]


def _or_nan(measurement: Measurement, values: list[float]) -> list[float]:
    return values if long_enough(measurement) else [math.nan] * len(values)
