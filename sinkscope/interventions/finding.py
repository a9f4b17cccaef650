"""What to intervene on, from a first pass: massive activations, sink heads, the depth where a sink's norm jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import (
    OpenStream,
    Stream,
    batches,
    checked_inputs,
    evaluating,
    read_stream,
    unwrapped,
    without_logits,
)
from sinkscope.interventions.residual import Entry
from sinkscope.measurement import PER_HEAD, Measurement, at, column_of, metrics, need
from sinkscope.measurement.metrics import is_massive
from sinkscope.sinks import exceeds


@dataclass(frozen=True)
class MassiveActivation:
    """An activation by its place, with its mean magnitude over samples, also in medians of its depth."""

    entry: Entry
    magnitude: float
    ratio: float

    def is_massive(self) -> bool:
        """|a| > 100 and |a| ≥ 1000 · median |a| of its depth, the criterion of Sun et al. 2024."""
        return self.magnitude > 0 and bool(
            is_massive(np.array([self.magnitude]), np.array(self.magnitude / self.ratio))[0]
        )


def largest_activations(model: nn.Module, inputs: Any, count: int = 3, batch_size: int = 8) -> list[MassiveActivation]:
    """The `count` activations that stand out most, in decreasing order, each at the depth of its onset.

    mean over rows of |h^(depth)[position, dim]|, in medians of its depth. The onset of a (position, dim) is the first
    depth above 0 whose ratio reaches half of the largest. The last depth, which a final norm follows, counts only if no
    earlier one qualifies. Costs one pass and depth × T × width numbers. Source: Sun et al. 2024.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    totals: dict[int, Tensor] = {}
    rows: dict[int, Tensor] = {}

    def read(depth: int, hidden: Float[Tensor, "batch position width"], opened: OpenStream) -> None:
        _, length, width = hidden.shape
        real = opened.at(None, hidden).expand(hidden.shape[:2])
        order = opened.tokens(opened.seen, opened.seen + length, hidden.device).order.expand(hidden.shape[:2])[real]
        # Summed by the position of each token, since padding puts one position into different columns of the rows.
        summed = hidden.new_zeros(length, width, dtype=torch.float32)
        summed.index_add_(0, order, hidden[real].abs().float())
        counts = torch.bincount(order, minlength=length).cpu()
        totals[depth] = totals.get(depth, 0) + summed.cpu()
        rows[depth] = rows.get(depth, 0) + counts

    with evaluating(model), torch.no_grad(), read_stream(model, read):
        for batch in batches(model, checked, samples, batch_size):
            model(**batch | without_logits(model, batch))
    reached = int(rows[0].nonzero().max()) + 1  # later columns hold only padding, which would lower the medians
    magnitudes = torch.stack([(totals[depth] / rows[depth][:, None])[:reached] for depth in sorted(totals)])
    ratios = magnitudes / magnitudes.flatten(1).median(-1).values[:, None, None].clamp(min=1e-30)
    ratios[0] = 0
    largest = ratios.amax(0)
    # argmax gives the first of equal values, so the first depth that reaches half.
    onset = (ratios >= largest / 2).int().argmax(0)
    order = largest.flatten().topk(min(count, largest.numel())).indices
    activations = []
    for index in order.tolist():
        position, dim = divmod(index, largest.shape[1])
        depth = int(onset[position, dim])
        entry = depth, position, dim
        activations.append(MassiveActivation(entry, float(magnitudes[entry]), float(ratios[entry])))
    return activations


def sink_heads(
    model: nn.Module, measured: Measurement, epsilon: float = 0.3, position: int = 0
) -> tuple[tuple[int, int], ...]:
    """The heads (layer, head) of the changed stack whose mean attention to `position` exceeds epsilon, strongest first.

    `measured` holds `attention_received`. Raises `InputError` if there is none, with the strongest head, and for a
    position that was not measured.
    """
    metrics.check_epsilon(epsilon)
    rows = measured.data["stack"].values == Stream.of(unwrapped(model)).stack
    here = at(measured.data, position)
    values = need(here, "attention_received", "AttentionReceived").transpose(*PER_HEAD).values[..., 0][:, rows]
    mean_or_nan = metrics.nanmean(values, 0)
    if np.isnan(mean_or_nan).all():
        raise InputError(f"no head has a number for the attention to position {position}: activations are not finite")
    # Heads without a number sort last and exceed no epsilon.
    mean = np.nan_to_num(mean_or_nan, nan=-1.0)
    above = exceeds(mean, epsilon) == 1
    order = np.argsort(-mean, axis=None, kind="stable")
    pairs = [tuple(int(number) for number in np.unravel_index(index, mean.shape)) for index in order]
    sinks = tuple((layer, head) for layer, head in pairs if above[layer, head])
    if not sinks:
        layer, head = pairs[0]
        raise InputError(
            f"no head gives position {position} more than {epsilon:g} of its attention: the most is "
            f"{mean[layer, head]:.3f}, of layer {layer}, head {head}; lower epsilon"
        )
    return sinks


def onset_depth(model: nn.Module, measured: Measurement, position: int = 0) -> int:
    """The depth at which the norm of `position`, relative to the mean of all others, grows most from the depth before.

    `measured` holds `hidden_norm`. Embeddings (depth 0) do not count. The ratio is `metrics.over_others`, averaged over
    samples. Raises `InputError` for a position that was not measured, and if no two depths have a ratio.
    """
    norms = need(measured.data, "hidden_norm", "HiddenNorms").transpose("sample", "depth", "position")
    rows = norms["depth_stack"].values == Stream.of(unwrapped(model)).stack
    ratio = metrics.nanmean(metrics.over_others(norms.values[:, rows], column_of(measured.data, position)), 0)
    growth = np.diff(ratio)
    if np.isnan(growth).all():
        raise InputError(f"the norm of position {position} has no ratio to the others: too few tokens, or not finite")
    return int(np.nanargmax(growth)) + 1
