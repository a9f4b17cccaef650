"""Spike dimensions of a token, and the key computed from them alone (Gu et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    Keys,
    Layer,
    attention_layers,
    family,
    has_attention,
    head_count,
    key_projection,
    own_attention,
    paths_of,
)
from sinkscope.measurement.calls.call import locate
from sinkscope.measurement.observers.observer import (
    Array,
    Hidden,
    LayerSums,
    ModuleCall,
    ModuleWatch,
    Piece,
    divide,
    in_every,
)
from sinkscope.measurement.observers.rows import ProbeObserver


@in_every
@dataclass(frozen=True)
class SpikeDimensions(ProbeObserver):
    """The share of a token in its largest dimensions, and of its key due to them, for 1 … `count` dimensions.

    For the tokens at `positions` (counting real tokens), n = 1 … `count` on the axis `spikes`:

    - `spike_share` (sample, depth, probe_position, spikes): Σ over the n largest |h_c| of h_c² / ‖h‖²;
      `spike_dimension` (same shape): the dimension of the n-th largest.
    - `normed_spike_share` (sample, layer, probe_position, spikes): the same for x, what enters the attention layer: in
      pre-norm models LN(h) with its gain (in post-norm models h itself).
    - `spike_key_cosine` (sample, layer, head, probe_position, spikes): cos(k(x_n), k(x)), where x_n keeps the n largest
      |x_c| and k is the layer's key projection before rotation, with its bias in both and its norm, if it has them. A
      rotation does not change it. Key-value heads are repeated over their group: `head` is the query head.

    Passes over a cache add their tokens. Cross-attention is left out, because its keys come from other tokens; layers
    whose keys are computed in another way have no cosine, and the record says why. Cost per probed token: O(width) per
    block, and the keys of 1 + `count` vectors per layer; independent of T. Raises `InputError`
    for more dimensions than there are. Source: Gu et al. 2025.
    """

    count: int = 8
    sites: tuple[_Site, ...] = field(default=(), repr=False, compare=False)
    without_key: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def coordinates(self) -> Mapping[str, Sequence[int]]:
        return {"probe_position": self.positions, "spikes": range(1, self.count + 1)}

    def bound(self, model: nn.Module) -> SpikeDimensions:
        sites = tuple(_sites(model))
        reasons = {site.layer.name: site.keys for site in sites if isinstance(site.keys, str)}
        if not sites:
            reasons = {family(model): "no attention layer whose queries, keys and values are known"}
        return replace(self, sites=sites, without_key=reasons)

    def describe(self) -> dict[str, Any]:
        known = {"name": type(self).__name__, "count": self.count, "positions": self.positions}
        return known | ({"without_spike_key_cosine": dict(self.without_key)} if self.without_key else {})

    def watches(self, model: nn.Module) -> Iterable[ModuleWatch]:
        for site in self.sites:
            yield ModuleWatch(site.module, site.layer, self._reader(None if isinstance(site.keys, str) else site.keys))

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        columns, present = hidden.locate(self.positions)
        share, dimension = _spikes(_at(hidden.values, columns), self.count)
        yield Piece("share", _shown(share, present)[:, None])
        yield Piece("dimension", _shown(dimension.float(), present)[:, None])
        # A token is in one pass of its row: the sum over passes, divided by this, is its value, or NaN in shorter rows.
        yield Piece("present", present[:, None, :, None].float())

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        axes = ("probe_position", "spikes")
        named = {"share": "spike_share", "dimension": "spike_dimension", "normed": "normed_spike_share"}
        results = {
            name: Array(divide(layer.sums[kind], layer.sums["present"]), None, axes, per_head=False)
            for kind, name in named.items()
            if kind in layer.sums
        }
        if "cosine" in layer.sums:
            results["spike_key_cosine"] = Array(divide(layer.sums["cosine"], layer.sums["present"]), None, axes)
        return results

    def _reader(
        self, keys: _Keys | None
    ) -> Callable[[ModuleCall, tuple[Any, ...], Mapping[str, Any], Any], Iterable[Piece]]:
        def read(at: ModuleCall, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Iterable[Piece]:
            hidden = args[0] if args else kwargs.get("hidden_states")
            if not isinstance(hidden, Tensor) or hidden.ndim != 3 or len(hidden) != at.batch:
                return
            columns, present = locate(self.positions, at.real, hidden, at.start, hidden.shape[1])
            vectors = _at(hidden, columns)
            share, dimension = _spikes(vectors, self.count)
            yield Piece("normed", _shown(share, present)[:, None])
            yield Piece("present", present[:, None, :, None].float())
            if keys is not None:
                cosines = keys.cosines(vectors, dimension)
                yield Piece("cosine", _shown(cosines, present[:, None]))

        return read


@dataclass(frozen=True, eq=False)
class _Keys:
    """A layer's key projection, and its number of query heads."""

    project: Keys
    heads: int

    @classmethod
    def of(cls, model: nn.Module, attention: nn.Module, paths: Mapping[nn.Module, str]) -> _Keys:
        return cls(key_projection(model, attention, paths), head_count(model, attention))

    def cosines(
        self, vectors: Float[Tensor, "batch probe width"], dimensions: Int[Tensor, "batch probe spikes"]
    ) -> Float[Tensor, "batch heads probe spikes"]:
        """cos(k(x_n), k(x)), x_n with the first n of `dimensions` alone."""
        spikes = dimensions.shape[-1]
        # Row n of a lower triangle keeps the dimensions 1 … n: `kept` is a mask (batch, probe, spikes, width).
        order = torch.ones(spikes, spikes, device=vectors.device, dtype=vectors.dtype).tril()
        kept = torch.zeros(*dimensions.shape, vectors.shape[-1], device=vectors.device, dtype=vectors.dtype)
        index = dimensions[:, :, None].expand(-1, -1, spikes, -1)
        kept.scatter_(-1, index, order.expand(*dimensions.shape, -1))
        # To the projection, all x_n of a sample are positions of one sequence.
        parts = (vectors[:, :, None] * kept).flatten(1, 2)
        full = self.project(vectors)[:, :, :, None].float()
        rebuilt = self.project(parts).unflatten(2, dimensions.shape[1:]).float()
        cosines = F.cosine_similarity(rebuilt, full, dim=-1)
        return cosines.repeat_interleave(self.heads // cosines.shape[1], 1)


@dataclass(frozen=True, eq=False)
class _Site:
    """The key projection and norm of an attention layer; or the reason why they are not known."""

    module: nn.Module
    layer: Layer
    keys: _Keys | str


def _sites(model: nn.Module) -> Iterator[_Site]:
    known = attention_layers(model) if has_attention(model) else own_attention(model)
    paths = paths_of(model)
    for module, layer in known.items():
        if not layer.crosses:
            yield _Site(module, layer, _keys(model, module, paths))


def _keys(model: nn.Module, attention: nn.Module, paths: Mapping[nn.Module, str]) -> _Keys | str:
    try:
        return _Keys.of(model, attention, paths)
    except UnsupportedModelError as error:
        return str(error)


def _spikes(
    vectors: Float[Tensor, "batch probe width"], count: int
) -> tuple[Float[Tensor, "batch probe spikes"], Int[Tensor, "batch probe spikes"]]:
    """The share of energy in the n largest dimensions, and the index of the n-th."""
    energies = vectors.float().square()
    if count > energies.shape[-1]:
        raise InputError(f"SpikeDimensions(count={count}): the residual stream has {energies.shape[-1]} dimensions")
    largest, dimensions = energies.topk(count)
    # A vector of zeros has shares of 0 instead of NaN.
    total = energies.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return largest.cumsum(-1) / total, dimensions


def _at(
    values: Float[Tensor, "batch position width"], columns: Int[Tensor, "batch probe"]
) -> Float[Tensor, "batch probe width"]:
    return values.gather(1, columns[..., None].expand(-1, -1, values.shape[-1]))


def _shown(values: Float[Tensor, "*batch probe spikes"], present: Bool[Tensor, "*#batch probe"]) -> Tensor:
    return values.where(present[..., None], 0.0)
