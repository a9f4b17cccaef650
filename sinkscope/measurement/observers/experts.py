"""Super experts of mixture-of-experts models: experts with extreme outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import ExpertLayer, family, is_experts
from sinkscope.measurement.observers.observer import (
    Array,
    LayerSums,
    ModuleCall,
    ModuleWatch,
    Observer,
    Piece,
    in_every,
)


@in_every
@dataclass(frozen=True)
class ExpertPeaks(Observer):
    """max |output of an expert's down-projection| over a sample's real tokens that were routed to it: `expert_peak`.

    (sample, moe_layer, expert), before the router's weight; NaN where no token was routed. Su et al. 2025 call experts
    with extreme peaks in the layers where massive activations form super experts; `metrics.super_experts` applies their
    rule. Cost: every expert runs a second time on its tokens, because the module does not return its outputs
    separately.
    """

    def bound(self, model: nn.Module) -> Observer:
        if not list(self.watches(model)):
            raise UnsupportedModelError(f"family '{family(model)}' has no experts whose outputs can be read")
        return self

    def watches(self, model: nn.Module) -> Iterable[ModuleWatch]:
        for path, module in model.named_modules():
            if (read := _reader(module)) is not None:
                yield ModuleWatch(module, ExpertLayer(path), read)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"expert_peak": Array(layer.sums["peak"], None)} if "peak" in layer.sums else {}


def _reader(module: nn.Module) -> Callable[..., Iterable[Piece]] | None:
    """The two kinds of stacked experts in transformers: routed by index, or each on every token (Llama 4)."""
    if not is_experts(module):
        return None
    experts = len(module.down_proj)  # type: ignore[arg-type]
    names = list(signature(module.forward).parameters)
    if len(names) == 1:
        return lambda at, args, kwargs, output: _of_all(at, experts, output)
    if len(names) == 3:
        return lambda at, args, kwargs, output: _of_routed(at, module, _three(names, args, kwargs))
    return None


def _three(names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The states and the expert indices of a call, given by position or by name."""
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    return arguments[names[0]].detach(), arguments[names[1]]


def _of_routed(at: ModuleCall, module: nn.Module, routed: tuple[Tensor, Tensor]) -> Iterable[Piece]:
    hidden, chosen = (tensor.reshape(-1, tensor.shape[-1]) for tensor in routed)
    experts = len(module.down_proj)  # type: ignore[arg-type]
    # −inf, the maximum of nothing, becomes NaN in the measurement.
    peaks = torch.full((at.batch, experts), -torch.inf, device=hidden.device)
    if not _are_the_models(at, len(hidden)):
        return
    sample, counted = _rows(at, len(hidden), hidden.device)
    columns = _columns(module, hidden, chosen)
    for expert in chosen[counted].unique().tolist():
        if expert >= experts:  # the index that transformers gives to tokens routed nowhere
            continue
        tokens = ((chosen == expert).any(-1) & counted).nonzero()[:, 0]
        output = _alone(module, hidden[tokens], chosen.new_full((len(tokens), columns), expert))
        largest = output.float().abs().amax(-1)
        peaks[:, expert] = peaks[:, expert].scatter_reduce(0, sample[tokens], largest, "amax")
    yield Piece("peak", peaks, reduction="max")


def _alone(module: nn.Module, hidden: Float[Tensor, "token width"], index: Tensor) -> Float[Tensor, "token width"]:
    """The output of one expert for tokens that all chose it, in each column of `index`; only the first has weight."""
    weights = hidden.new_zeros(index.shape)
    weights[:, 0] = 1
    return module.forward(hidden, index, weights)


def _columns(module: nn.Module, hidden: Tensor, chosen: Tensor) -> int:
    """How many choices a token needs: one, or two if the module squeezes an axis of one (LongCat)."""
    try:
        _alone(module, hidden[:1], torch.zeros_like(chosen[:1, :1]))
    except ValueError:
        return 2
    return 1


def _of_all(at: ModuleCall, experts: int, output: Float[Tensor, "rows width"]) -> Iterable[Piece]:
    largest = output.detach().float().abs().amax(-1).view(experts, at.batch, -1)
    if not _are_the_models(at, largest[0].numel()):
        return
    _, counted = _rows(at, largest[0].numel(), output.device)
    largest = largest.masked_fill(~counted.view(at.batch, -1), -torch.inf)
    yield Piece("peak", largest.amax(-1).T, reduction="max")


def _are_the_models(at: ModuleCall, rows: int) -> bool:
    """Whether the flattened tokens are those of the mask: a module may read a canvas of its own."""
    length = rows // at.batch
    return at.real is None or at.real[:, at.start : at.start + length].shape[1] == length


def _rows(at: ModuleCall, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which sample each of the flattened tokens belongs to, and whether it is a real token."""
    length = rows // at.batch
    sample = torch.arange(at.batch, device=device).repeat_interleave(length)
    if at.real is None:
        return sample, torch.ones_like(sample, dtype=torch.bool)
    return sample, at.real[:, at.start : at.start + length].reshape(-1).to(device)
