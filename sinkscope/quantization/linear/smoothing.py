"""SmoothQuant: outlying channels moved from the inputs of maps to their weights (Xiao et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.quantization.linear.maps import HEAD, LinearMap, chosen, linear_maps
from sinkscope.quantization.linear.norms import SharedInput, changes_nothing, gain_of, set_gain, sources
from sinkscope.quantization.linear.tokens import check_read, read_inputs
from sinkscope.quantization.linear.transform import Change, Transform, change_map, check_unedited, check_unrounded
from sinkscope.quantization.linear.uses import Uses
from sinkscope.quantization.protected import Protect, described
from sinkscope.registry import renamed_argument

SMALLEST = 1e-5


@dataclass(frozen=True, eq=False)
class SmoothQuant(Transform):
    """x → x / s and W → W s with s_j = max |x_j|^α / max |W_j|^(1−α), at least 1e-5. Made by `SmoothQuant.of`.

    The maxima of x (token, in) are over calibration tokens, those of W (out, in) over the outputs of all maps that read
    the same tensor, which share s. Where a norm precedes, its gain takes 1/s at no cost (`gains`); all other divisions
    happen at run time (`divided`: the inputs of attention's output and of a feed-forward's last map). α = .5 is usual,
    more if x has larger outliers. If calibration lacks tokens that are served, such as the first token, s is small
    where x is large: calibrate on what is served.

    `protect`: the choice of tokens that calibration left out, as data.

    Control: the same factors on other channels. Source: Xiao et al. 2023; mit-han-lab/smoothquant,
    smoothquant/smooth.py, which only smooths after norms.
    """

    alpha: float
    scales: Mapping[str, Float[Tensor, "in"]] = field(repr=False)
    shared: Sequence[SharedInput] = field(repr=False)
    seed: int | None = None
    protect: Mapping[str, Any] | None = None

    @classmethod
    @renamed_argument("spared", "protect")
    def of(
        cls,
        model: nn.Module,
        inputs: Any,
        alpha: float = 0.5,
        *,
        protect: Protect | str | None = None,
        skip: Sequence[str] = (HEAD,),
        batch_size: int = 8,
    ) -> SmoothQuant:
        """Calibrated on all real, unprotected tokens of `inputs`.

        Args:
            model: Any transformers model.
            inputs: Calibration texts, as in `measure`.
            alpha: α, how much of the outliers moves from x to W: 0 nothing, 1 all.
            protect: Tokens that calibration leaves out; None: none.
            skip: Maps to leave out, as in `linear_maps`.
            batch_size: Samples per pass.

        Raises `InputError` for α outside 0…1, and for maps that no token reached.
        """
        if not 0 <= alpha <= 1:
            raise InputError(
                f"alpha = {alpha}: expected a number from 0 (nothing is moved) to 1 (all of it is moved to W)"
            )
        maps = linear_maps(model, skip)
        largest: dict[str, Tensor] = {}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            if len(rows):
                size = rows.abs().amax(0)
                largest[path] = torch.maximum(largest.get(path, size), size)

        read_inputs(model, inputs, maps.values(), read, protect, None, batch_size)
        check_read(maps, largest)
        # Maps that read one tensor share s: a norm's gain can divide it only once.
        shared = foldable(model, inputs, maps)
        scales: dict[str, Tensor] = {}
        for source in shared:
            size = torch.stack([largest[path].float() for path in source.maps]).amax(0)
            weights = torch.stack([_by_input(maps[path].weight) for path in source.maps]).amax(0).clamp(min=SMALLEST)
            # The floors keep s and 1 / s finite for channels that no output reads, or that are always 0.
            scale = (size.pow(alpha) / weights.pow(1 - alpha)).clamp(min=SMALLEST)
            scales |= dict.fromkeys(source.maps, scale)
        return cls(alpha, scales, shared, protect=described(protect))

    @property
    def gains(self) -> tuple[str, ...]:
        """The norms whose gain takes the division."""
        return tuple(source.norm for source in self.shared if source.norm is not None)

    @property
    def divided(self) -> tuple[str, ...]:
        """The maps whose input is divided at run time."""
        return tuple(path for source in self.shared if source.norm is None for path in source.maps)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        rescale(model, self.shared, self.scales, self.seed, "SmoothQuant", stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> SmoothQuant:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))

    def describe(self) -> dict[str, Any]:
        return {
            "name": "SmoothQuant",
            "alpha": self.alpha,
            "gains": list(self.gains),
            "divided": list(self.divided),
            "seed": self.seed,
            "protect": self.protect,
        }


def rescale(
    model: nn.Module,
    shared: Sequence[SharedInput],
    scales: Mapping[str, Float[Tensor, "in"]],
    seed: int | None,
    what: str,
    stack: ExitStack,
) -> None:
    """x → x / s and W → W s for each tensor that maps read, until `stack` closes.

    The division happens in the gain of the norm that made x, or at run time.

    Args:
        model: The model.
        shared: Which maps read the same tensor, and the norm whose gain takes 1 / s (`foldable`).
        scales: s of each map.
        seed: Puts each s on random other channels, the control; None leaves it where it belongs.
        what: The method, for errors.
        stack: Until when.
    """
    maps = chosen(model, [path for source in shared for path in source.maps], what)
    check_unrounded(maps.values())
    modules, uses = dict(model.named_modules()), Uses.of(model, stack)
    for source in shared:
        scale = scales[source.maps[0]]
        if seed is not None:
            scale = scale[torch.randperm(len(scale), generator=torch.Generator().manual_seed(seed))]
        if source.norm is not None:
            check_unedited((maps[path] for path in source.maps), what)
            set_gain(modules[source.norm], 1 / scale, stack)
        for path in source.maps:
            if source.norm is None:
                change_map(maps[path], Change(scale), uses, stack)
            else:
                # The gain divides x already, so only the weight changes.
                maps[path].replace(Change(scale).of_weight(maps[path].weight), stack)


def _by_input(weight: Float[Tensor, "*out in"]) -> Float[Tensor, "in"]:
    return weight.detach().float().abs().flatten(0, -2).amax(0)


def foldable(model: nn.Module, inputs: Any, maps: Mapping[str, LinearMap]) -> tuple[SharedInput, ...]:
    """The tensors that maps read; a norm is named if its gain can take a factor, because nothing else reads its output.

    Readers that are not modules (a residual stream after a norm) are invisible, so a strong factor is tried.
    """
    all_inputs = sources(model, inputs, maps)
    modules = dict(model.named_modules())

    def has_gain(source: SharedInput) -> bool:
        try:
            return source.norm is not None and not source.others and bool(gain_of(modules[source.norm])[0].numel())
        except UnsupportedModelError:
            return False

    plain = [one if has_gain(one) else replace(one, norm=None) for one in all_inputs]
    generator = torch.Generator().manual_seed(0)

    def works(source: SharedInput) -> bool:
        width = maps[source.maps[0]].weight.shape[-1]
        # Factors far from 1 in both directions, so that any other reader of the tensor changes the logits.
        tried = torch.randn(width, generator=generator).exp()
        one = SmoothQuant(0.5, dict.fromkeys(source.maps, tried.to(maps[source.maps[0]].weight)), (source,))
        return changes_nothing(model, inputs, one)

    return tuple(one if one.norm is None or works(one) else replace(one, norm=None) for one in plain)
