"""What is measured of a trained model: on its own kind of text, on other inputs, and at other lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.experiments.observing.touched import moved_positions, sink_heads_zeroed, spread_of_a_change
from sinkscope.probes import (
    AttentionEntropy,
    AttentionReceived,
    HeadOutputs,
    HiddenNorms,
    MatrixEntropy,
    MaximalLogits,
    Measurement,
    Mixing,
    OutlierStatistics,
    QueryKeyValueNorms,
    SlotReceived,
    TokenPeaks,
    measure,
    metrics,
)

TOKENS, POSITIONS, EPSILON, BATCH = 64, 17, 0.3, 20
EPSILONS, LENGTHS = (0.2, 0.3, 0.4, 0.5), (16, 32, 64)
SINKS = (AttentionReceived("all"), SlotReceived(), HiddenNorms(), QueryKeyValueNorms())
STATES = (AttentionEntropy(), MaximalLogits(), OutlierStatistics(), TokenPeaks(), Mixing(), MatrixEntropy())

Named = Iterator[tuple[str, float]]


def readings(model: PreTrainedModel, windows: Tensor) -> Named:
    """The metrics of `Observed` that come from a model and validation windows (sample, token)."""
    text = windows[:, :TOKENS]
    measured = measure(model, text, (*SINKS, *STATES, HeadOutputs()), batch_size=BATCH)
    yield from sink_metrics(measured)
    yield from state_metrics(measured)
    yield from sink_heads_zeroed(model, text, measured, EPSILON, BATCH)
    yield from _other_lengths(model, windows)
    yield from _other_inputs(model, windows)


def sink_metrics(measurement: Measurement) -> Named:
    """Sink rates and the norms of the first token."""
    rates = measurement.sink_rate(epsilon=EPSILON).values
    half = (len(rates) + 1) // 2  # the last positions average over a few queries only
    strongest = int(rates[:half].argmax())
    yield from ((f"sink_{position}", float(rate)) for position, rate in enumerate(rates[:POSITIONS]))
    yield "strongest", float(rates[strongest])
    yield "strongest_position", float(strongest)
    if "slot_received" in measurement.data:
        yield "slot", measurement.slot_rate(EPSILON)
    yield "norm_ratio", float(measurement.hidden_norm_ratio().max())
    yield "value_ratio", float(measurement.value_norm_ratio().min())
    for epsilon in EPSILONS:
        yield f"sink_0/epsilon={epsilon:g}", float(measurement.sink_rate(epsilon=epsilon, position=0))
    received, tokens = measurement.data["attention_received"].values, measurement.data["tokens"].values
    causal = np.ones(received.shape[1], dtype=bool)
    yield "first_share", 100 * float(metrics.mass_on_first(received, tokens, causal, 1).mean())


def state_metrics(measurement: Measurement) -> Named:
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
    yield "infinity_norm", metrics.infinity_norm(data["hidden_max"].values)
    for name in ("hidden_spread", "last_pair_distance", "matrix_entropy"):
        depths = data[name].mean("sample").values
        yield name, float(depths[-1])
        yield from ((f"{name}/depth={depth}", float(value)) for depth, value in enumerate(depths))


def _other_lengths(model: PreTrainedModel, windows: Tensor) -> Named:
    context = windows.shape[1]
    for tokens in sorted({min(length, context) for length in (*LENGTHS, context)}):
        yield f"sink_0/tokens={tokens}", first_token_rate(model, windows[:, :tokens])


def _other_inputs(model: PreTrainedModel, windows: Tensor) -> Named:
    """Random and repeated tokens, and windows from their second token on."""
    draw = torch.Generator().manual_seed(0)
    text, vocabulary = windows[:, :TOKENS], model.config.vocab_size
    random = torch.randint(0, vocabulary, text.shape, generator=draw)
    repeated = torch.randint(0, vocabulary, (len(text), 1), generator=draw).expand(text.shape)
    without_first = windows[:, 1 : TOKENS + 1]
    yield "sink_0/random", first_token_rate(model, random)
    yield "sink_0/random_after_first", first_token_rate(model, torch.cat([text[:, :1], random[:, 1:]], 1))
    yield "sink_0/repeated", first_token_rate(model, repeated)
    yield from moved_positions(model, repeated, EPSILON, BATCH)
    yield "sink_0/without_first", first_token_rate(model, without_first)
    yield "loss/without_first", mean_loss(model, windows[:, 1:])
    yield from spread_of_a_change(model, text, without_first, BATCH)


def first_token_rate(model: PreTrainedModel, ids: Tensor) -> float:
    """Sink rate of position 0, percent."""
    seen = measure(model, ids, [AttentionReceived([0])], batch_size=BATCH)
    return float(seen.sink_rate(epsilon=EPSILON, position=0))


@torch.no_grad()
def mean_loss(model: PreTrainedModel, ids: Tensor) -> float:
    """Mean next-token cross-entropy in nats."""
    parts = [model(part, labels=part, use_cache=False).loss * len(part) for part in ids.split(BATCH)]
    return float(sum(parts) / len(ids))
