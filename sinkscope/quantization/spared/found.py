"""Tokens that are found by running the model in full precision: sinks, outlying activations, spikes of a channel."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope import metrics
from sinkscope.errors import InputError, unknown
from sinkscope.hooks import Stream, batches, checked_inputs, evaluating, read_stream, unwrapped
from sinkscope.interventions import largest_activations
from sinkscope.measurements import Measurement
from sinkscope.measuring.peaks import BATCH, check_whole, peaks, sites
from sinkscope.model.columns import Columns, columns_of
from sinkscope.probes import AttentionReceived, measure
from sinkscope.quantization.spared.spared import Found

EPSILON = 0.2  # below the sink rate's 0.3: two sinks share attention, and one that is missed sets everybody's range
STANDS_OUT = 2.0  # times the largest token that is not chosen; before the depth of onset there is no such spike


@dataclass(frozen=True)
class MeasuredSinks(Found):
    """The tokens that some head gives more than `epsilon` of the attention that they can receive.

    α = Σ_t A[t, k] / (queries that can see k), in the changed stack's layers, of the model in full precision. A token
    is a sink where its α in its row, the mean α of its position over rows, or that of all tokens of its id is above
    `epsilon`: a sink that stays just below it in one row sets that row's range all the same. Of packed documents that
    are kept apart, the queries and positions are those of the token's own document. Tokens that fewer than half of
    these queries see are never sinks: the last tokens attend to little but themselves.

    With a `measurement` nothing is run: the positions whose mean α over its samples is above `epsilon` in some head are
    the sinks of every row. Raises `InputError` where no token of the inputs is a sink, saying what came nearest.
    """

    epsilon: float = EPSILON
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        metrics.check_epsilon(self.epsilon)

    @property
    def of_inputs(self) -> bool:
        return self.measurement is None

    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        if self.measurement is not None:
            _check_model(self.measurement, model)
            return self.among(columns_of(model, inputs))
        columns = columns_of(model, inputs)
        check_whole(inputs)
        model = unwrapped(model)
        found = measure(model, inputs, observers=[AttentionReceived()], batch_size=BATCH)
        stack = Stream.of(model).stack
        share = _of_documents(torch.from_numpy(_received(found, stack)), columns, causal=stack == "decoder")
        by_token = _largest(share, columns)
        if not bool((by_token > self.epsilon).any()):
            _refuse(self.epsilon, by_token, columns)
        return (by_token > self.epsilon).to(columns.real.device)

    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        if self.measurement is None:
            return super().among(columns)
        positions = torch.from_numpy(_positions(self.measurement, self.epsilon))
        return torch.isin(columns.order, positions.to(columns.order.device)) & columns.real

    def describe(self) -> dict[str, Any]:
        by = "these inputs" if self.measurement is None else self.measurement.record.get("model", "a measurement")
        return {"name": "MeasuredSinks", "epsilon": self.epsilon, "measured_on": by}


@dataclass(frozen=True)
class OutlyingTokens(Found):
    """The tokens t with max_j |x_tj| above `ratio` medians of their row at the input of some linear map called `site`.

    `site` is what a map makes: down, up, gate, query, key, value, output … The median is over the real tokens of the
    row, or of the packed document. Raises `InputError` for a site that the model has not, or whose tokens cannot be
    told (single experts), and where no token outlies, saying how far the largest does.

    Source: Chen et al. 2024 (PrefixQuant), who look at down and take 64, 50 or 20; the absolute numbers are those
    of large models, so read the ratio that is reported before trusting one.
    """

    site: str = "down"
    ratio: float = 20.0

    def __post_init__(self) -> None:
        if not self.ratio > 1:
            raise InputError(f"ratio = {self.ratio!r}: a number of medians above 1, such as 20")

    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        columns, every = columns_of(model, inputs), sites(model)
        places = [place for place in every if self.site in place.kinds]
        if not places:
            raise unknown("site", self.site, sorted({kind for place in every for kind in place.kinds}))
        read = peaks(model, inputs, places)
        if read.unread:
            raise InputError(
                f"OutlyingTokens: '{read.unread[0]}' is given the tokens that were routed to it, so which of a row "
                "they are cannot be told: take site='experts', what the mixture as a whole is given"
            )
        largest = torch.zeros_like(columns.index, dtype=torch.float32, device="cpu")
        for size in read.values.values():
            for row, own in ((row, own.cpu()) for row, own in columns.documents):
                here = size[row, own]
                largest[row, own] = torch.maximum(largest[row, own], here / here.nanmedian().clamp(min=1e-30))
        found = (largest > self.ratio).to(columns.real.device)
        if not bool(found.any()):
            raise InputError(
                f"no token outlies at '{self.site}': the largest is {float(largest.max()):.1f} medians of its row, and "
                f"ratio = {self.ratio:g}"
            )
        return found


@dataclass(frozen=True)
class SpikeTokens(Found):
    """The `count` tokens of each row, or packed document, with the largest |h^(depth)[t, dimension]| (KVSink).

    Sinks ride on spikes of a few stable channels, so one channel tells them at the depth where the spikes emerge, and
    in all later ones. `SpikeTokens.of` finds depth and dimension. A depth before the onset finds nothing, which a
    `UserWarning` says: the largest token is then less than twice the largest that is not chosen. Raises `InputError`
    for a depth or dimension that does not exist. Source: Su & Yuan 2025.
    """

    depth: int
    dimension: int
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or self.depth < 0 or self.dimension < 0:
            raise InputError(f"{self}: a depth and a dimension from 0 on, and a count of at least 1")

    @classmethod
    def of(cls, model: nn.Module, inputs: Any, count: int = 1) -> SpikeTokens:
        """On the channel that stands out most, at the depth where it does so first (`largest_activations`)."""
        [largest] = largest_activations(model, inputs, 1)
        depth, _, dimension = largest.entry
        return cls(depth, dimension, count)

    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        columns = columns_of(model, inputs)
        size = self._sizes(unwrapped(model), inputs).to(columns.real.device)
        found, ratios = torch.zeros_like(columns.real), []
        for row, own in columns.documents:
            largest = size[row].masked_fill(~own, -1).topk(min(self.count + 1, int(own.sum())))
            found[row, largest.indices[: self.count]] = True
            if len(largest.values) > self.count:
                ratios.append(float(largest.values[0] / largest.values[-1].clamp(min=1e-30)))
        if ratios and (typical := float(np.median(ratios))) < STANDS_OUT:
            warnings.warn(
                f"SpikeTokens: at depth {self.depth} the largest token of dimension {self.dimension} is {typical:.1f} "
                "times the largest that is not chosen, so nothing stands out there: SpikeTokens.of finds where it does",
                UserWarning,
                stacklevel=2,
            )
        return found

    def _sizes(self, model: nn.Module, inputs: Mapping[str, Any]) -> Float[Tensor, "row position"]:
        given, samples = checked_inputs(model, inputs, BATCH)
        check_whole(given)
        depths = Stream.of(model).depth
        if self.depth > depths:
            raise InputError(f"depth {self.depth} does not exist: the model has depths 0 to {depths}")
        parts: list[Tensor] = []

        def read(depth: int, hidden: Tensor, _: object) -> None:
            if depth == self.depth:
                if self.dimension >= hidden.shape[-1]:
                    raise InputError(f"dimension {self.dimension} does not exist: 0 to {hidden.shape[-1] - 1} do")
                parts.append(hidden[..., self.dimension].abs().float())

        with ExitStack() as stack, evaluating(model), torch.no_grad():
            stack.enter_context(read_stream(model, read))
            for batch in batches(model, given, samples, BATCH):
                model(**batch)
        return torch.cat(parts)


def _received(found: Measurement, stack: str) -> Float[np.ndarray, "sample head position"]:
    """α of every head of the stack, over real tokens."""
    data = found.data
    if "attention_received" not in data:
        raise InputError("MeasuredSinks: the measurement has no attention_received: observe AttentionReceived")
    alpha = data["attention_received"].transpose("sample", "layer", "head", "position")
    own = alpha.values[:, data["stack"].values == stack]
    return own.reshape(len(own), -1, own.shape[-1])


def _of_documents(
    received: Float[Tensor, "row head position"], columns: Columns, causal: bool
) -> Float[Tensor, "row head column"]:
    """α of every head, of the queries of a token's own document; NaN where fewer than half of them see it.

    α of a whole row divides by all queries behind a token: those of other documents gave nothing.
    """
    index = columns.index.clamp(0, received.shape[-1] - 1).cpu()
    share = received.gather(-1, index[:, None].expand(-1, received.shape[1], -1))
    factor = torch.full(index.shape, torch.nan)
    total = columns.real.sum(-1).cpu()
    for row, own in ((row, own.cpu()) for row, own in columns.documents):
        tokens = int(own.sum())
        queries = tokens - torch.arange(tokens) if causal else torch.full((tokens,), tokens)
        every = total[row] - index[row, own] if causal else total[row].expand(tokens)
        factor[row, own] = (every / queries).masked_fill(2 * queries < tokens, torch.nan)
    return share * factor[:, None]


def _largest(share: Float[Tensor, "row head column"], columns: Columns) -> Float[Tensor, "row column"]:
    """The largest α of a head: in the token's row, of its position over rows, of its id; −1 where nothing is known."""
    found = share.nan_to_num(-1.0).amax(1)
    for labels in (columns.order, columns.ids):
        if labels is not None:
            found = torch.maximum(found, _mean_by(labels.cpu(), share).nan_to_num(-1.0).amax(1))
    return found.masked_fill(share.isnan().all(1), -1.0)


def _mean_by(labels: Int[Tensor, "row column"], share: Float[Tensor, "row head column"]) -> Tensor:
    """The mean over all columns of one label, each head by itself, where the label stands."""
    _, group = labels.unique(return_inverse=True)
    heads = share.transpose(1, 2).flatten(0, 1)
    known = heads.isfinite()
    sums = heads.new_zeros(int(group.max()) + 1, heads.shape[1]).index_add_(0, group.flatten(), heads.nan_to_num(0.0))
    counts = torch.zeros_like(sums).index_add_(0, group.flatten(), known.to(sums))
    return (sums / counts)[group].transpose(1, 2)


def _positions(found: Measurement, epsilon: float) -> np.ndarray:
    """The positions whose mean α over samples is above epsilon in some head, where at least half of the queries see."""
    stacks = found.data["stack"].values
    stack = "decoder" if "decoder" in stacks else str(stacks[0])
    alpha, data = _received(found, stack), found.data
    tokens = data["tokens"].transpose("sample", "layer").values[:, stacks == stack].max(1)
    positions = data["position"].values
    seen = np.full((len(tokens), len(positions)), True) if stack != "decoder" else positions <= tokens[:, None] / 2
    mean = metrics.nanmean(np.where(seen[:, None], alpha, np.nan), 0)
    best = np.nan_to_num(mean, nan=-1.0).max(0, initial=-1.0)
    if not (best > epsilon).any():
        place = int(best.argmax())
        raise InputError(
            f"no position of the measurement receives more than epsilon = {epsilon:g} of the attention in any head: "
            f"the most is {best[place]:.3f}, at position {int(positions[place])}; lower epsilon"
        )
    return positions[best > epsilon]


def _check_model(found: Measurement, model: nn.Module) -> None:
    """Raises `InputError` for a measurement of a model with other attention layers."""
    stream = Stream.of(unwrapped(model))
    measured = int((found.data["stack"].values == stream.stack).sum())
    if measured != len(stream.layers) and stream.layers:
        raise InputError(
            f"the measurement has {measured} attention layers of the {stream.stack}, the model {len(stream.layers)}: "
            "it is of another model"
        )


def _refuse(epsilon: float, largest: Tensor, columns: Columns) -> None:
    """No sink: say what was looked at, and what came nearest."""
    row, column = divmod(int(largest.argmax()), largest.shape[1])
    looked, most = int((largest >= 0).sum()), float(largest[row, column])
    raise InputError(
        f"no sink found: of {looked} tokens that at least half of the queries see, none receives more than epsilon = "
        f"{epsilon:g} of their attention in any head; the most is {most:.3f}, at position "
        f"{int(columns.order[row, column])} of row {row}; lower epsilon, or name the tokens to spare"
    )
