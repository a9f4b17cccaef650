"""The linear maps that a quantizer can reach: their weights as (…, out, in), and what goes into them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import (
    Axis,
    Projection,
    attention_modules,
    axes,
    blocks,
    family,
    has_attention,
    is_encoder_decoder,
    is_experts,
    own_attention,
    projections,
    unwrapped,
)
from sinkscope.quantization.linear.experts import Edit, edit_experts, edits_experts, is_transposed, maps_of

HEAD = "lm_head"  # the output embedding, whatever a model calls it
FEWEST = 4  # linear maps of a block
ROUTED = ("experts", "local_experts")  # lists of modules, each of which is given some of the tokens


@dataclass(frozen=True, eq=False)
class LinearMap:
    """y = W x + b, of one module, or of all experts of a layer whose weights are stacked.

    `path`: of its module, of stacked experts with the parameter's name behind it. `axis`: over which tokens x goes.
    `crosses`: whether x may have been seen before, as what cross-attention keeps in a cache. `block`: it stands in.
    """

    path: str
    module: nn.Module
    parameter: str = "weight"
    kinds: tuple[str, ...] = ("other",)
    axis: Axis = "tokens"
    crosses: bool = False
    block: nn.Module | None = None

    @property
    def stacked(self) -> bool:
        """Whether its weights are those of several experts."""
        return self.parameter != "weight"

    @property
    def routed(self) -> bool:
        """Whether its module is given some of the tokens only, in an order that it does not tell."""
        return not self.stacked and any(part in ROUTED for part in self.path.split("."))

    @property
    def weight(self) -> Float[Tensor, "*expert out in"]:
        """W as it is now. Raises `UnsupportedModelError` for weights that are not in memory as numbers."""
        weight: Any = getattr(self.module, self.parameter)
        if weight.is_meta or not weight.is_floating_point() or type(weight) not in (Tensor, nn.Parameter):
            raise UnsupportedModelError(
                f"'{self.path}': its weight is {type(weight).__name__} of {weight.dtype} on {weight.device}, not "
                "floating point numbers in memory; load the model unquantized, and not offloaded"
            )
        return weight.mT if self._transposed else weight

    @property
    def rounded(self) -> bool:
        """Whether its weight is a quantizer's already."""
        return getattr(getattr(self.module, self.parameter), "_rounded", False)

    def replace(self, weight: Float[Tensor, "*expert out in"], stack: ExitStack, rounded: bool = False) -> None:
        """Give the module another W until `stack` closes; the parameter itself stays as it is, wherever it is tied to.

        `rounded`: whether it is a quantizer's, which no transform may follow.
        """
        own: Any = weight.mT if self._transposed else weight
        own._is_param = True  # what asks for nn.Parameter finds one, and gradients still reach the parameter behind it
        own._rounded = rounded
        if parametrize.is_parametrized(self.module, self.parameter):
            steps: Any = self.module.parametrizations[self.parameter]  # type: ignore[index]
            steps.append(_Constant(own))
            stack.callback(steps.__delitem__, len(steps) - 1)
            return
        kept = self.module._parameters[self.parameter]
        stack.callback(self.module._parameters.__setitem__, self.parameter, kept)
        self.module._parameters[self.parameter] = own

    def edit_input(self, edit: Edit, stack: ExitStack) -> None:
        """Replace x by `edit(x, routing)` at every use, one edit after the other, before anybody who reads x.

        `routing`: of stacked experts, whose second map is given a row for each pair of a token and an expert.
        """
        if self.stacked:
            edit_experts(self.module, self.path, self.parameter, edit, stack)
        else:
            _Edits.of(self).add(edit, stack)

    @property
    def edited(self) -> bool:
        """Whether what goes into it is edited now."""
        return edits_experts(self.module, self.parameter) if self.stacked else self.module in _EDITS

    @property
    def _transposed(self) -> bool:
        return is_transposed(self.module, self.path) if self.stacked else isinstance(self.module, Conv1D)


class _Edits:
    """The edits of what goes into one module, in one hook."""

    def __init__(self, one: LinearMap) -> None:
        self.one, self.edits = one, list[Edit]()
        self.handle = one.module.register_forward_pre_hook(self._run, with_kwargs=True, prepend=True)

    @classmethod
    def of(cls, one: LinearMap) -> _Edits:
        if one.module not in _EDITS:
            _EDITS[one.module] = cls(one)
        return _EDITS[one.module]

    def add(self, edit: Edit, stack: ExitStack) -> None:
        self.edits.append(edit)
        stack.callback(self._drop, edit)

    def _drop(self, edit: Edit) -> None:
        self.edits.remove(edit)
        if not self.edits:
            self.handle.remove()
            del _EDITS[self.one.module]

    def _run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = next(iter((*args, *kwargs.values())), None)
        if not isinstance(x, Tensor):
            raise InputError(f"'{self.one.path}' was called with {type(x).__name__} in place of a tensor")
        for edit in self.edits:
            x = edit(x, None)
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): x})


_EDITS: dict[nn.Module, _Edits] = {}


class _Constant(nn.Module):
    """The last step of a parametrization that makes something else of the weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.kept = (weight,)  # no parameter of the model

    def forward(self, weight: Tensor) -> Tensor:
        return self.kept[0]


def linear_maps(model: nn.Module, skip: Sequence[str] = (HEAD,)) -> dict[str, LinearMap]:
    """Every linear map in the model's blocks by its path, and its head, but for those in `skip`.

    `skip`: paths, or whole parts of paths such as "down_proj", "layers.0" or "experts"; "lm_head" is the head by any
    name. What makes several things at
    once (fused query-key-value, gate and up, the latents of MLA) is one map, and all experts of a layer are one map for
    what enters them and one for what leaves them. Raises `InputError` for a name that nothing has, and
    `UnsupportedModelError` for matrices that cannot be reached: name them in `skip` to leave them as they are.
    """
    model = unwrapped(model)
    found = reachable(model)
    strange = dict(_strange(model, found))
    names = [*found, *strange]
    for name in skip:
        if name != HEAD and not any(_names(name, path) for path in names):
            parts = dict.fromkeys(part for path in names for part in path.split(".") if not part.isdigit())
            raise unknown("linear map", name, parts)
    unknown_ones = [path for path in strange if not any(_names(name, path) for name in skip)]
    if unknown_ones:
        path, more = unknown_ones[0], dict.fromkeys((*skip, *unknown_ones))
        raise UnsupportedModelError(
            f"family '{family(model)}': '{path}' ({type(strange[path]).__name__}) is or holds a matrix that is no "
            f"linear map known here, so it cannot be quantized; skip=({', '.join(map(repr, more))}) leaves it as it is"
        )
    kept = {path: one for path, one in found.items() if not any(_names(name, path) for name in skip)}
    return {path: one for path, one in kept.items() if not (one.block is None and HEAD in skip)}


def reachable(model: nn.Module) -> dict[str, LinearMap]:
    """Every linear map that is known, by its path."""
    return {one.path: one for one in _every(unwrapped(model))}


def chosen(model: nn.Module, paths: Iterable[str], what: str) -> dict[str, LinearMap]:
    """The maps of these paths. Raises `InputError` for a path that the model lacks: `what` is of another model."""
    wanted, maps = list(paths), reachable(model)
    if missing := [path for path in wanted if path not in maps]:
        raise InputError(f"{what} was made for another model: this one has no linear map '{missing[0]}'")
    return {path: maps[path] for path in wanted}


def left_out(model: nn.Module, skip: Sequence[str] = (HEAD,)) -> dict[str, int]:
    """Matrices of the model that a quantizer of its linear maps leaves as they are, with their sizes.

    Those in `skip`, embeddings, routers, convolutions: parameters of two axes or more that are in no reached map.
    """
    model = unwrapped(model)
    reached = {id(getattr(one.module, one.parameter)) for one in linear_maps(model, skip).values()}
    every = {path: parameter for path, parameter in model.named_parameters() if parameter.ndim > 1}
    return {path: one.numel() for path, one in every.items() if id(one) not in reached}


def _every(model: nn.Module) -> Iterator[LinearMap]:
    block_of = {module: block for block in blocks(model) for module in block.module.modules()}
    crossing = _crossing(model)
    by_module: dict[nn.Module, list[Projection]] = {}
    for one in projections(model):
        by_module.setdefault(one.module, []).append(one)
    writes = is_encoder_decoder(model)
    names = {path for path, _ in model.named_modules()}
    for module, parts in by_module.items():
        kinds, path = tuple(dict.fromkeys(one.kind for one in parts)), parts[0].path
        block = block_of.get(module)
        query = axes("decoder" if block is None else block.stack, writes)[0]
        crosses = parts[0].owner in crossing and not {"query", "output"} & set(kinds)
        axis = axes(crossing[parts[0].owner], writes)[1] if crosses else query
        inside = None if block is None else block.module
        if is_experts(module):
            for parameter in maps_of(module):
                yield LinearMap(f"{path}.{parameter}", module, parameter, kinds, axis, block=inside)
        elif isinstance(module, nn.Linear | Conv1D) and not is_router(path, module, names):
            yield LinearMap(path, module, "weight", kinds, axis, crosses, inside)
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    if isinstance(head, nn.Linear) and head not in by_module:
        yield LinearMap(next(path for path, module in model.named_modules() if module is head), head)


def is_router(path: str, module: nn.Module, names: Container[str]) -> bool:
    """Whether a linear map chooses experts: by its name, or as the "gate" beside them."""
    parent, _, name = path.rpartition(".")
    named = "router" in path.rpartition(".")[2].lower() or "router" in parent.rpartition(".")[2].lower()
    return named or "router" in type(module).__name__.lower() or (name == "gate" and f"{parent}.experts" in names)


def _crossing(model: nn.Module) -> dict[str, str]:
    """The stack of each cross-attention layer by its path."""
    if not has_attention(model) and not own_attention(model):
        return {}
    return {layer.name: layer.stack for layer in attention_modules(model).values() if layer.crosses}


def _strange(model: nn.Module, found: Mapping[str, LinearMap]) -> Iterator[tuple[str, nn.Module]]:
    """Modules of blocks with what looks like a linear map and is none of those found, and lists of other blocks."""
    reached = {one.module for one in found.values()}
    known = {one.module for one in projections(model)}
    inside = {module for block in blocks(model) for module in block.module.modules()}
    for path, module in model.named_modules():
        if module not in inside or module in reached or isinstance(module, nn.Embedding | nn.modules.conv._ConvNd):
            continue
        stacked = any(parameter.ndim == 3 for parameter in module.parameters(recurse=False))
        linear = isinstance(module, nn.Linear | Conv1D)  # a router, then
        if (module in known and not linear) or (stacked and sum(size > 1 for size in _largest(module)) == 3):
            yield path, module
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and module not in inside and _holds_blocks(module, reached | inside):
            yield path, module


def _holds_blocks(found: nn.ModuleList, known: set[nn.Module]) -> bool:
    """Whether a list holds blocks of which nothing is known: several linear maps in each of its elements."""
    linear = [[one for one in element.modules() if isinstance(one, nn.Linear | Conv1D)] for element in found]
    return bool(linear) and all(len(own) >= FEWEST and not known & {*own} for own in linear)


def _largest(module: nn.Module) -> tuple[int, ...]:
    return tuple(max(module.parameters(recurse=False), key=torch.numel).shape)


def _names(name: str, path: str) -> bool:
    return f".{name}." in f".{path}."
