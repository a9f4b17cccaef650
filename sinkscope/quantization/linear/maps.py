"""The linear maps that a quantizer can reach: weights as (…, out, in), and their inputs."""

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

HEAD = "lm_head"  # the output embedding, whatever its name in the model
FEWEST = 4  # linear maps in a block
ROUTED = ("experts", "local_experts")  # lists of modules, each of which gets some of the tokens


@dataclass(frozen=True, eq=False)
class LinearMap:
    """y = W x + b, of one module, or of all experts of a layer if their weights are stacked.

    Attributes:
        path: The path of its module, followed by the parameter's name for stacked experts.
        module: The module.
        parameter: The name of its weight.
        kinds: What it computes, as `hooks` names it ("query", "down", …).
        axis: Which tokens x runs over.
        crosses: Whether x may be absent because a cache holds the result, as in cross-attention.
        block: The block that contains it.
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
        """Whether its weight stacks those of several experts."""
        return self.parameter != "weight"

    @property
    def routed(self) -> bool:
        """Whether its module gets only some of the tokens, in an unknown order."""
        return not self.stacked and any(name in ROUTED for name in self.path.split("."))

    @property
    def weight(self) -> Float[Tensor, "*expert out in"]:
        """The current W. Raises `UnsupportedModelError` unless it is a floating-point tensor in memory."""
        weight: Any = getattr(self.module, self.parameter)
        # Subclasses of Tensor hold packed codes (bitsandbytes, torchao); meta tensors are offloaded.
        if weight.is_meta or not weight.is_floating_point() or type(weight) not in (Tensor, nn.Parameter):
            raise UnsupportedModelError(
                f"'{self.path}': its weight is {type(weight).__name__} of {weight.dtype} on {weight.device}, not "
                "floating-point numbers in memory; load the model unquantized and not offloaded"
            )
        return weight.mT if self._transposed else weight

    @property
    def rounded(self) -> bool:
        """Whether its weight is already quantized."""
        return getattr(getattr(self.module, self.parameter), "_rounded", False)

    def replace(self, weight: Float[Tensor, "*expert out in"], stack: ExitStack, rounded: bool = False) -> None:
        """Use another W until `stack` closes; the parameter stays unchanged wherever else it is tied to.

        `rounded`: whether W is quantized, so that no transform may follow.
        """
        parameter: Any = weight.mT if self._transposed else weight
        # isinstance(x, nn.Parameter) then holds, and gradients still reach the module's own parameter.
        parameter._is_param = True
        parameter._rounded = rounded
        # A parametrized weight is computed at each access, so only a last step replaces it. Contexts close in reverse
        # order, so it is the last step again when it is removed.
        if parametrize.is_parametrized(self.module, self.parameter):
            steps: Any = self.module.parametrizations[self.parameter]  # type: ignore[index]
            steps.append(_Constant(parameter))
            stack.callback(steps.__delitem__, len(steps) - 1)
            return
        # Past setattr, which refuses a tensor that was computed from parameters.
        kept = self.module._parameters[self.parameter]
        stack.callback(self.module._parameters.__setitem__, self.parameter, kept)
        self.module._parameters[self.parameter] = parameter

    def edit_input(self, edit: Edit, stack: ExitStack) -> None:
        """Replace x by `edit(x, routing)` at each use, in the order of the edits and before other readers of x.

        `routing`: for stacked experts, whose second map gets one row per pair of token and expert.
        """
        if self.stacked:
            edit_experts(self.module, self.path, self.parameter, edit, stack)
        else:
            _Edits.of(self).add(edit, stack)

    @property
    def edited(self) -> bool:
        """Whether an edit of its input is active."""
        return edits_experts(self.module, self.parameter) if self.stacked else self.module in _EDITS

    @property
    def _transposed(self) -> bool:
        # Conv1D, in GPT-2, stores (in, out).
        return is_transposed(self.module, self.path) if self.stacked else isinstance(self.module, Conv1D)


class _Edits:
    """The edits of one module's input, in one hook."""

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
    """The last step of a parametrization; it replaces the weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.kept = (weight,)  # in a tuple, so that it is no parameter of the model

    def forward(self, weight: Tensor) -> Tensor:
        return self.kept[0]


def linear_maps(model: nn.Module, skip: Sequence[str] = (HEAD,)) -> dict[str, LinearMap]:
    """The linear maps of the model's blocks by path, and its head, without those in `skip`.

    `skip`: paths, or whole components of paths such as "down_proj", "layers.0" or "experts"; "lm_head" is the head by
    any name. A fused projection (query-key-value, gate and up, the latents of MLA) is one map; the experts of a layer
    are one map for their inputs and one for their outputs. Raises `InputError` for a name that matches nothing, and
    `UnsupportedModelError` for matrices that cannot be reached: name them in `skip` to leave them in full precision.
    """
    model = unwrapped(model)
    maps = reachable(model)
    strange = dict(_strange(model, maps))
    names = [*maps, *strange]
    for name in skip:
        if name != HEAD and not any(_names(name, path) for path in names):
            parts = dict.fromkeys(name for path in names for name in path.split(".") if not name.isdigit())
            raise unknown("linear map", name, parts)
    unknown_ones = [path for path in strange if not any(_names(name, path) for name in skip)]
    if unknown_ones:
        path, more = unknown_ones[0], dict.fromkeys((*skip, *unknown_ones))
        raise UnsupportedModelError(
            f"family '{family(model)}': '{path}' ({type(strange[path]).__name__}) is or holds a matrix in no "
            f"known linear map, so it cannot be quantized; skip=({', '.join(map(repr, more))}) leaves it out"
        )
    kept = {path: one for path, one in maps.items() if not any(_names(name, path) for name in skip)}
    return {path: one for path, one in kept.items() if not (one.block is None and HEAD in skip)}


def reachable(model: nn.Module) -> dict[str, LinearMap]:
    """All known linear maps by path."""
    return {one.path: one for one in _all_maps(unwrapped(model))}


def chosen(model: nn.Module, paths: Iterable[str], what: str) -> dict[str, LinearMap]:
    """The maps of these paths. Raises `InputError` for a path that the model lacks: `what` is of another model."""
    wanted, maps = list(paths), reachable(model)
    if missing := [path for path in wanted if path not in maps]:
        raise InputError(f"{what} was made for another model: this one has no linear map '{missing[0]}'")
    return {path: maps[path] for path in wanted}


def left_out(model: nn.Module, skip: Sequence[str] = (HEAD,)) -> dict[str, int]:
    """The sizes of the model's matrices that a quantizer of its linear maps leaves in full precision.

    Those in `skip`, embeddings, routers, convolutions: parameters of two or more axes that are in no reached map.
    """
    model = unwrapped(model)
    reached = {id(getattr(one.module, one.parameter)) for one in linear_maps(model, skip).values()}
    matrices = {path: parameter for path, parameter in model.named_parameters() if parameter.ndim > 1}
    return {path: one.numel() for path, one in matrices.items() if id(one) not in reached}


def _all_maps(model: nn.Module) -> Iterator[LinearMap]:
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
        # In cross-attention, keys and values read the encoder's tokens; query and output those of the decoder.
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
    """Whether a linear map selects experts: by its name, or as the "gate" next to them."""
    parent, _, name = path.rpartition(".")
    named = "router" in path.rpartition(".")[2].lower() or "router" in parent.rpartition(".")[2].lower()
    return named or "router" in type(module).__name__.lower() or (name == "gate" and f"{parent}.experts" in names)


def _crossing(model: nn.Module) -> dict[str, str]:
    """The stack of each cross-attention layer, by path."""
    if not has_attention(model) and not own_attention(model):
        return {}
    return {layer.name: layer.stack for layer in attention_modules(model).values() if layer.crosses}


def _strange(model: nn.Module, maps: Mapping[str, LinearMap]) -> Iterator[tuple[str, nn.Module]]:
    """Modules of blocks that look like linear maps and are not in `maps`, and lists of unknown blocks."""
    reached = {one.module for one in maps.values()}
    projected = {one.module for one in projections(model)}
    inside = {module for block in blocks(model) for module in block.module.modules()}
    for path, module in model.named_modules():
        if module not in inside or module in reached or isinstance(module, nn.Embedding | nn.modules.conv._ConvNd):
            continue
        stacked = any(parameter.ndim == 3 for parameter in module.parameters(recurse=False))
        linear = isinstance(module, nn.Linear | Conv1D)  # a router, then
        if (module in projected and not linear) or (stacked and sum(size > 1 for size in _largest(module)) == 3):
            yield path, module
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and module not in inside and _holds_blocks(module, reached | inside):
            yield path, module


def _holds_blocks(modules: nn.ModuleList, known: set[nn.Module]) -> bool:
    """Whether a list holds unknown blocks: several linear maps in each of its elements."""
    linear = [[one for one in element.modules() if isinstance(one, nn.Linear | Conv1D)] for element in modules]
    return bool(linear) and all(len(maps) >= FEWEST and not known & {*maps} for maps in linear)


def _largest(module: nn.Module) -> tuple[int, ...]:
    return tuple(max(module.parameters(recurse=False), key=torch.numel).shape)


def _names(name: str, path: str) -> bool:
    return f".{name}." in f".{path}."
