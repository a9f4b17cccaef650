"""What heads write: how much, and whether it is the same for every query (Gu et al. 2025, section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Layer, attention_modules, head_count, output_projection
from sinkscope.measurement.calls.call import AttentionCall, full_precision, lengths
from sinkscope.measurement.observers.observer import (
    Array,
    LayerSums,
    ModuleCall,
    ModuleWatch,
    Observer,
    Piece,
    in_every,
)

Site = tuple[Layer, nn.Module, int]  # a layer, its output projection, the number of its heads


@in_every
@dataclass(frozen=True)
class HeadOutputs(Observer):
    """Statistics of the head outputs o_t = Σ_j A_tj v_j of real queries, before the output projection:

    `output_norm` (sample, layer, head, position): ‖o_t‖₂.
    `output_mean_share` (sample, layer, head): ‖mean_t o_t‖² / mean_t ‖o_t‖²; 1 where every query gets the same.
    `output_rank_one` (sample, layer, head): largest eigenvalue of Σ_t o_t o_tᵀ over its trace; 1 where all outputs lie
        on one line, at least 1 / head width. A head that only ever broadcasts one token's value has 1.

    They are read at the input of the output projection, so that output gates count; in layers not listed in
    `at_projection` (filled in for a model), at the output of the attention function. NaN for a head whose outputs are
    all zero. Cost: O(T · head width²) per head; head width² sums per row are kept until the next batch begins.
    """

    at_projection: tuple[str, ...] = ()
    sites: tuple[Site, ...] = field(default=(), repr=False, compare=False)

    def bound(self, model: nn.Module) -> Observer:
        sites = tuple(_sites(model))
        return replace(self, at_projection=tuple(layer.name for layer, _, _ in sites), sites=sites)

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "at_projection": self.at_projection}

    def watches(self, model: nn.Module) -> Iterable[ModuleWatch]:
        for layer, projection, heads in self.sites:
            yield ModuleWatch(projection, layer, partial(_at_projection, heads))

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.layer.name.partition("#")[0] not in self.at_projection and call.output is not None:
            yield from _pieces(call.output.float(), call.query_start, call.real)

    def settled(self, sums: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if (products := sums.get("products")) is None:
            return sums
        settled = {"largest": _largest_eigenvalue(products), "energy": _trace(products)}
        return {name: values for name, values in sums.items() if name != "products"} | settled

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        # The last batch of a measurement is not settled: no later batch has closed it.
        sums = self.settled(layer.sums)
        if "norm" not in sums:
            return {}
        norm, energy = sums["norm"], sums["energy"]
        mean = sums["total"].square().sum(-1) / layer.query_count[:, None]
        return {
            "output_norm": Array(norm.where(layer.observed[:, None, : norm.shape[-1]], torch.nan), "query"),
            "output_mean_share": Array(share(mean, energy), None),
            "output_rank_one": Array(share(sums["largest"], energy), None),
        }


def share(part: Float[Tensor, "*n"], whole: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """part / whole, NaN where the whole is 0."""
    return torch.where(whole > 0, part / whole, torch.nan)


def _sites(model: nn.Module) -> Iterable[Site]:
    """Layers whose output projection receives head after head, with that projection and the number of heads."""
    for module, layer in attention_modules(model).items():
        try:
            projection, heads = output_projection(model, module), head_count(model, module)
        except UnsupportedModelError:
            continue
        if isinstance(width := _width_in(projection), int) and width % heads == 0:
            yield layer, projection, heads


def _width_in(projection: nn.Module) -> object:
    """Columns that a linear map takes, however it stores its weight."""
    return projection.weight.shape[0] if isinstance(projection, Conv1D) else getattr(projection, "in_features", None)


def _at_projection(
    heads: int, at: ModuleCall, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> Iterable[Piece]:
    flat = next(iter((*args, *kwargs.values())))
    if flat.ndim != 3 or flat.shape[0] != at.batch:  # windows of an image
        return []
    with full_precision(flat.device):
        outputs = flat.detach().float().unflatten(-1, (heads, -1)).transpose(1, 2)
        real = None if at.real is None else at.real[:, at.start : at.start + outputs.shape[2]].to(flat.device)
        return list(_pieces(outputs, at.start, real))


def _pieces(
    outputs: Float[Tensor, "batch heads query dim"], start: int, real: Bool[Tensor, "batch query"] | None
) -> Iterable[Piece]:
    if real is not None:
        outputs = outputs.masked_fill(~real[:, None, :, None], 0.0)
    yield Piece("norm", lengths(outputs), start)
    yield Piece("total", outputs.sum(2))
    yield Piece("products", outputs.mT @ outputs)


def _largest_eigenvalue(matrices: Float[Tensor, "*n dim dim"]) -> Float[Tensor, "*n"]:
    """The largest eigenvalue of positive semidefinite matrices, by squaring them eight times (M^256).

    Never above the eigenvalue, and below it by at most log(dim) / 512 of it, reached only for nearly flat spectra. A
    batched eigenvalue solver is no faster on a CPU, far slower on a GPU, and fails on NaN.
    """
    power = matrices
    for _ in range(8):
        # The trace is at least the largest eigenvalue: divided by it, eigenvalues stay within 0 and 1.
        power = power / _trace(power).clamp(min=torch.finfo(power.dtype).tiny)[..., None, None]
        power = power @ power
    # M^256 is nearly λ v vᵀ: each column is a multiple of v, the longest where the diagonal is largest.
    index = power.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None].expand(*power.shape[:-1], 1)
    vector = nn.functional.normalize(power.gather(-1, index), dim=-2)
    # The Rayleigh quotient of the original matrix undoes the scaling.
    return (vector.mT @ matrices @ vector)[..., 0, 0]


def _trace(matrices: Float[Tensor, "*n dim dim"]) -> Float[Tensor, "*n"]:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
