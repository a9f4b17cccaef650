"""Norms that feed linear maps: which maps read the same tensor, and gains that take a factor for them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import checked_inputs, device_of, evaluating, part, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear.experts import Routing
from sinkscope.quantization.linear.maps import LinearMap

Key = tuple[int, int]  # the address of a tensor and its number of entries


@dataclass(frozen=True)
class SharedInput:
    """A tensor that the linear maps `maps` read. `norm`: the path of the norm that made it; None if none did.

    `others`: paths of other modules with weights that read it, such as routers. `inside`: whether the norm reads the
    output of a linear map (norms of latents, queries, keys) rather than the residual stream.
    """

    maps: tuple[str, ...]
    norm: str | None = None
    others: tuple[str, ...] = ()
    inside: bool = False


def sources(model: nn.Module, inputs: Any, maps: Mapping[str, LinearMap]) -> tuple[SharedInput, ...]:
    """The tensors that maps read and the norms that made them, as seen in a pass over the first sample."""
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs)
    readers: dict[Key, list[str]] = {}
    others: dict[Key, list[str]] = {}
    norms: dict[Key, tuple[str, Key]] = {}
    linear: set[int] = set()  # storages that linear maps wrote to
    kept: list[Tensor] = []  # nothing is freed meanwhile, so that no two tensors share an address
    of_maps = {one.module for one in maps.values()}

    def key(x: Tensor) -> Key:
        kept.append(x)
        return x.data_ptr(), x.numel()  # a view of the first entries has the same address

    def reading(one: LinearMap) -> Any:
        def edit(x: Tensor, routing: Routing | None) -> Tensor:
            if one.path not in readers.setdefault(location := key(x), []):
                readers[location].append(one.path)
            return x

        return edit

    def module_hook(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            entered = next((x for x in args if isinstance(x, Tensor)), None)
            left = output[0] if isinstance(output, tuple) else output
            if module in of_maps:
                if isinstance(left, Tensor):
                    kept.append(left)
                    linear.add(left.untyped_storage().data_ptr())
            elif is_norm(module) and entered is not None and isinstance(left, Tensor):
                # By storage: the norm of a latent may read a slice of what a map wrote.
                norms[key(left)] = path, (entered.untyped_storage().data_ptr(), 0)
                kept.append(entered)
            elif entered is not None and any(True for _ in module.parameters(recurse=False)):
                others.setdefault(key(entered), []).append(path)

        return hook

    with torch.compiler.set_stance("force_eager"), evaluating(model), torch.no_grad(), ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_hook(module_hook(path)).remove)
        for one in maps.values():
            one.edit_input(reading(one), stack)
        model(**first_sample(model, checked, samples))
    all_inputs = []
    for location, paths in readers.items():
        norm, entered = norms.get(location, (None, (0, 0)))
        # A module around one of the maps gets the tensor only to pass it on.
        neighbors = (path for path in others.get(location, ()) if not any(one.startswith(f"{path}.") for one in paths))
        all_inputs.append(SharedInput(tuple(paths), norm, tuple(neighbors), entered[0] in linear))
    return _joined(all_inputs)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of one tensor with a gain per channel."""
    gain = getattr(module, "weight", None)
    if "norm" not in type(module).__name__.lower() or not isinstance(gain, Tensor) or gain.ndim != 1:
        return False
    needed = [one for one in inspect.signature(module.forward).parameters.values() if one.default is one.empty]
    return len(needed) == 1


def first_sample(model: nn.Module, inputs: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """The first sample of some inputs, or all of them if they cannot be split."""
    try:
        return part(inputs, slice(0, 1), samples, device_of(model))
    except InputError:
        return part(inputs, slice(0, samples), samples, device_of(model))


def _joined(separate: Sequence[SharedInput]) -> tuple[SharedInput, ...]:
    """Inputs that share a map, which the model uses several times, as one input without a norm of its own."""
    joined: list[SharedInput] = []
    for source in separate:
        alike = [one for one in joined if {*one.maps} & {*source.maps}]
        for one in alike:
            joined.remove(one)
            maps, others = (*one.maps, *source.maps), (*one.others, *source.others)
            norm = source.norm if one.norm == source.norm else None
            inside = one.inside or source.inside
            source = SharedInput(tuple(dict.fromkeys(maps)), norm, tuple(dict.fromkeys(others)), inside)
        joined.append(source)
    return tuple(joined)


@torch.no_grad()
def gain_of(norm: nn.Module) -> tuple[Float[Tensor, "width"], float]:
    """The gain g by which a norm multiplies, and g minus its weight: 0, or 1 for norms that store g − 1 (Gemma).

    Raises `UnsupportedModelError` for a norm that multiplies by something else.
    """
    weight: Any = norm.weight
    probe = torch.linspace(-1.5, 2, weight.numel(), dtype=weight.dtype, device=weight.device)[None]

    def at(value: float) -> Tensor:
        norm._parameters["weight"] = torch.full_like(weight, value)  # type: ignore[assignment]
        return norm(probe).float()

    # y(w) = (w + offset) · x̂ + bias: y(0) − bias is 0 or x̂, and y(1) − y(0) = y(2) − y(1) = x̂.
    try:
        zero, one, two = at(0), at(1), at(2)
    finally:
        norm._parameters["weight"] = weight
    bias = getattr(norm, "bias", None)
    shift = torch.zeros_like(zero) if bias is None else bias.float().expand_as(zero)
    step = one - zero
    offset = 0.0 if torch.allclose(zero, shift, atol=1e-3) else 1.0
    # Each y is rounded by eps / 2 of itself, and four of them enter two − one − step.
    largest = float(torch.stack([zero, one, two]).abs().max())
    atol = max(1e-2, 2 * torch.finfo(weight.dtype).eps * largest)
    if not torch.allclose(two - one, step, atol=atol) or not torch.allclose(zero - shift, offset * step, atol=atol):
        raise UnsupportedModelError(f"{type(norm).__name__}: its gain is neither its weight nor its weight + 1")
    return weight + offset, offset


def set_gain(norm: nn.Module, factor: Float[Tensor, "width"], stack: ExitStack) -> None:
    """Multiply the output of a norm by `factor` through its gain and bias, until `stack` closes."""
    gain, offset = gain_of(norm)
    changed = {"weight": gain * factor.to(gain) - offset}
    if isinstance(bias := getattr(norm, "bias", None), Tensor):
        changed["bias"] = bias * factor.to(bias)
    for name, value in changed.items():
        put(norm, name, value, stack)


def put(module: nn.Module, name: str, value: Tensor, stack: ExitStack) -> None:
    """Replace a parameter of a module until `stack` closes."""
    kept = module._parameters[name]
    stack.callback(module._parameters.__setitem__, name, kept)
    parameter: Any = value
    parameter._is_param = True
    module._parameters[name] = parameter


@torch.no_grad()
def changes_nothing(model: nn.Module, inputs: Any, change: Intervention) -> bool:
    """Whether the logits of the first sample stay the same, up to rounding, under a change."""
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs)
    one = first_sample(model, checked, samples)
    with evaluating(model):
        before = _floats(model(**one))
        with change.applied(model):
            after = _floats(model(**one))
    # In half precision, a changed x and a changed W are rounded differently from x and W.
    tolerance = 1e-3 if before[0].dtype in (torch.float32, torch.float64) else 5e-2
    return all(
        float((a - b).float().norm()) <= tolerance * float(b.float().norm()) for a, b in zip(after, before, strict=True)
    )


def _floats(output: Any) -> Sequence[Tensor]:
    values = output.values() if isinstance(output, Mapping) else output
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()][:1]
