"""Reading a measurement's dataset: its variables, positions, stacks, and the names of its layers and depths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from sinkscope.errors import InputError
from sinkscope.measurement.metrics import comparable, index_of, nanmean, quiet

PER_HEAD: Final = ("sample", "layer", "head", "position")
AXES: Final = ("sample", "kept", "layer", "head", "position", "kept_position", "key_dim", "probe_position", "spikes")
VISIBLE, PAPER = "visible", "paper"
"""The denominator of attention received: the number of queries that see a key, or T − k whatever the masks."""

TOKEN_STACKS: Final = ("decoder", "encoder", "vision", "audio")
"""Tokens are those of the first of these stacks that a measurement has."""

SHOWN = 8  # distinct first tokens that a record lists


def record_of(data: xr.Dataset) -> dict[str, Any]:
    """The record: where the numbers come from. A fresh copy for each caller."""
    return json.loads(data.attrs["record"])


def need(data: xr.Dataset, variable: str, observer: str | None = None) -> xr.DataArray:
    """A variable of the dataset. Raises `InputError` if it is missing, naming those present or the observer for it."""
    if variable in data:
        return data[variable]
    if observer is None:
        raise InputError(f"this measurement holds no {variable}; it has {', '.join(map(str, data.data_vars))}")
    observed = observer in (each["name"] for each in record_of(data).get("observers", []))
    why = "no layer has slots" if variable == "slot_received" and observed else "it was not observed"
    raise InputError(f"this measurement has no {variable}: {why} (observer {observer})")


def column_of(data: xr.Dataset, position: int) -> int:
    """The index of a position along its axis. Raises `InputError` for one that was not measured."""
    return index_of(position, data["position"].values.tolist() if "position" in data.coords else [])


def at(data: xr.Dataset, position: int) -> xr.Dataset:
    """The dataset at one position, which stays a dimension. Raises `InputError` for one that was not measured."""
    return data.isel(position=[column_of(data, position)])


def has_position(data: xr.Dataset, position: int) -> bool:
    """Whether something was measured there."""
    return "position" in data.coords and position in data["position"].values


def layers_of(data: xr.Dataset, stack: str | None) -> Bool[np.ndarray, "layer"]:
    """The layers of a stack; all for None."""
    stacks = data["stack"].values
    return np.full(len(stacks), True) if stack is None else stacks == stack


def is_causal(data: xr.Dataset) -> Bool[np.ndarray, "layer"]:
    """The layers in which no query sees a later key, according to their masks; in older files, those of a decoder."""
    if "causal" in data.coords:
        return data["causal"].values.astype(bool)
    return np.array([str(stack) == "decoder" for stack in data["stack"].values])


def denominator_of(data: xr.Dataset) -> str:
    """The denominator of `attention_received`: `VISIBLE`; in older files `PAPER`."""
    return VISIBLE if "visible_queries" in data else PAPER


def query_counts(data: xr.Dataset) -> Int[np.ndarray, "sample layer"]:
    """Observed real queries of each sample; in older files, its tokens."""
    return data["queries" if "queries" in data else "tokens"].transpose("sample", "layer").values


def visible_queries(data: xr.Dataset) -> Float[np.ndarray, "sample layer position"]:
    """How many queries see each key; in older files, which lack it, `paper_queries`."""
    if denominator_of(data) == PAPER:
        return paper_queries(data)
    return data["visible_queries"].transpose("sample", "layer", "position").values


def uniform_received(data: xr.Dataset) -> Float[np.ndarray, "sample layer position"]:
    """What uniform attention gives each position; computed for plain causal or full layers if a file lacks it."""
    if "uniform_received" in data:
        return data["uniform_received"].transpose("sample", "layer", "position").values
    tokens = data["tokens"].transpose("sample", "layer").values[..., None]
    shares = 1 / np.arange(1, int(tokens.max(initial=1)) + 1)
    before = np.concatenate([[0.0], shares.cumsum()])
    positions = data["position"].values
    with np.errstate(divide="ignore", invalid="ignore"):
        # Query t sees t + 1 keys: Σ_{k ≤ t < T} 1 / (t + 1) = H_T − H_k, harmonic numbers in `before`.
        causal = (before[tokens] - before[np.minimum(positions, tokens)]) / (tokens - positions)
        uniform = np.where(is_causal(data)[:, None], causal, 1 / tokens)
    return np.where(positions < tokens, uniform, np.nan)


def most_queries(data: xr.Dataset) -> Float[np.ndarray, "sample layer"]:
    """The largest number of queries that see one key: T, or fewer under a window."""
    if "most_queries" in data:
        return data["most_queries"].transpose("sample", "layer").values.astype(np.float64)
    if denominator_of(data) == PAPER:
        return query_counts(data).astype(np.float64)
    with quiet():
        return np.nanmax(visible_queries(data), -1, initial=0).astype(np.float64)


def paper_queries(data: xr.Dataset) -> Float[np.ndarray, "sample layer position"]:
    """The paper's denominator: T − k in causal layers, T in others; NaN after a row's last token.

    In prefix language modeling T for the prefix and T − k after it, where only queries from k on see a key. If
    observation began after a cached prefix, only observed queries count.
    """
    tokens = data["tokens"].transpose("sample", "layer").values[..., None]
    queries, positions = query_counts(data)[..., None], data["position"].values
    behind = np.minimum(tokens - positions, queries)
    later_alone = is_causal(data)[:, None]
    if denominator_of(data) == VISIBLE:
        later_alone = later_alone | (data["visible_queries"].transpose("sample", "layer", "position").values == behind)
    return np.where(positions < tokens, np.where(later_alone, behind, queries), np.nan).astype(np.float64)


def comparable_places(data: xr.Dataset) -> Bool[np.ndarray, "sample layer position"]:
    """`metrics.comparable` in every layer: positions that can be called strong."""
    return comparable(visible_queries(data), most_queries(data))


def coordinates(data: xr.Dataset, *dims: str) -> dict[str, Any]:
    """The coordinates that lie along these dims and no others."""
    return {str(name): value for name, value in data.coords.items() if value.dims and {*value.dims} <= {*dims}}


def token_stack(data: xr.Dataset) -> str:
    """The stack whose tokens the measurement is about: the decoder's if there is one."""
    stacks = sorted({str(name) for name in data["stack"].values})
    return next(name for name in (*TOKEN_STACKS, *stacks) if name in stacks)


def sample_lengths(data: xr.Dataset, stack: str | None = None) -> Int[np.ndarray, "sample"]:
    """Real tokens of each sample, in one stack or in the longest."""
    return data["tokens"].transpose("sample", "layer").values[:, layers_of(data, stack)].max(1)


def depth_lengths(data: xr.Dataset) -> Int[np.ndarray, "sample depth"]:
    """Real tokens of each sample at each depth: of its stack, or of the longest stack if it has no attention."""
    known = set(data["stack"].values.tolist())
    stacks = data["depth_stack"].values.tolist()
    return np.stack([sample_lengths(data, stack if stack in known else None) for stack in stacks], 1)


def layer_labels(data: xr.Dataset) -> list[str]:
    """The model's layer numbers, with the stack's name if there are several (encoder, decoder, cross …)."""
    return _labels(data, "layer_index", "stack")


def depth_labels(data: xr.Dataset) -> list[str]:
    """The depths of the residual stream (0: the embedding), with the stack's name if there are several."""
    return _labels(data, "depth_index", "depth_stack")


def _labels(data: xr.Dataset, numbers: str, stacks: str) -> list[str]:
    names = data[stacks].values.tolist()
    if len(set(names)) == 1:
        names = [""] * len(names)
    return [f"{name} {number}".lstrip() for name, number in zip(names, data[numbers].values, strict=True)]


@dataclass(frozen=True, eq=False)
class TokenView:
    """A measurement's statistics of one token axis: the layers and depths of its main stack."""

    data: xr.Dataset
    epsilon: float

    @cached_property
    def stack(self) -> str:
        return token_stack(self.data)

    @cached_property
    def layers(self) -> Bool[np.ndarray, "layer"]:
        return layers_of(self.data, self.stack)

    @cached_property
    def positions(self) -> Int[np.ndarray, "position"]:
        return self.data["position"].values

    @cached_property
    def tokens(self) -> Int[np.ndarray, "sample"]:
        return sample_lengths(self.data, self.stack)

    @cached_property
    def counted(self) -> Bool[np.ndarray, "sample position"]:
        """Places that are compared: enough queries see them in some layer."""
        return np.asarray(comparable_places(self.data)[:, self.layers].any(1))

    @cached_property
    def broken_layers(self) -> Bool[np.ndarray, "layer"]:
        """Layers of the stack in which something was NaN or infinite, as the record says."""
        names = self.data["layer_name"].values[self.layers] if self._broken else np.full(self.layers.sum(), "")
        return np.isin([f"layer '{name}'" for name in names], self._broken)

    @cached_property
    def broken_depths(self) -> Bool[np.ndarray, "depth"]:
        """Depths of the stack in which something was NaN or infinite, as the record says."""
        depths = self.data["depth_index"].values[self.data["depth_stack"].values == self.stack]
        return np.isin([f"depth {index} of the {self.stack}" for index in depths], self._broken)

    @property
    def _broken(self) -> list[str]:
        return record_of(self.data).get("non_finite", {}).get("places", [])

    def incomplete(self, values: Float[np.ndarray, "sample *place position"]) -> Bool[np.ndarray, "sample *place"]:
        """Rows in which a real token has no number, so that comparisons between tokens are undecided."""
        real = self.positions < self.tokens[:, None]
        return np.asarray((np.isnan(values) & np.expand_dims(real, tuple(range(1, values.ndim - 1)))).any(-1))

    def per_head(self, name: str) -> Float[np.ndarray, "sample layer *rest"]:
        return self.data[name].values[:, self.layers]

    def per_depth(self, name: str) -> Float[np.ndarray, "sample depth *rest"]:
        return self.data[name].values[:, self.data["depth_stack"].values == self.stack]


@dataclass(frozen=True, eq=False)
class HeadView:
    """A measurement as head metrics read it: its variables, with one position and threshold."""

    data: xr.Dataset
    epsilon: float
    position: int

    @property
    def column(self) -> int:
        """The index of the position along its axis."""
        return column_of(self.data, self.position)

    def __getitem__(self, name: str) -> Float[np.ndarray, "sample layer head *rest"]:
        return self.data[name].transpose(*AXES, missing_dims="ignore").values

    def here(self, name: str) -> Float[np.ndarray, "layer head"]:
        """The mean over samples at the position."""
        return nanmean(self[name][..., self.column], 0)

    def mean(self, name: str) -> Float[np.ndarray, "layer head"]:
        """The mean over positions, if the variable has any, then over samples."""
        values = self[name]
        return nanmean(values if values.ndim == 3 else nanmean(values, 3), 0)
