"""Inputs and outputs of the linear maps in a model's blocks: queries, keys, values, outputs, feed-forwards.

A map that makes several things at once (fused query-key-value, gate and up, the latents of MLA) is several projections
of one module, each with its columns. Maps are found by transformers' usual names, never by family; a linear map of
unknown role is listed as `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.modules import blocks, family, has_attention, paths_of
from sinkscope.hooks.names import (
    FEED_FORWARD,
    GATE_AND_UP,
    HEAD_DIM,
    HEADS,
    IN_ROW,
    INTERLEAVED,
    KEY,
    KEY_NORM,
    LATENT,
    OUTPUT,
    PER_HEAD,
    QUERY,
    QUERY_LATENT,
    VALUE,
    Kind,
    attention_modules,
    heads_of,
    is_linear,
    own_attention,
)
from sinkscope.hooks.passes import Edit, Passes

Keys = Callable[[Float[Tensor, "batch position width"]], Float[Tensor, "batch kv_heads position head_dim"]]
Paths = Mapping[nn.Module, str] | None  # by model: paths are computed once for callers that ask for every layer


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map y = W x + b inside a block, or the part of it that `kind` names.

    `path`: of its module; `owner`: of the attention layer that it belongs to, empty outside attention. `columns`: its
    entries of y, None for all. `experts` are the stacked experts of a mixture: the input is tokens before routing, the
    output is the mixture; the maps inside run in one call and cannot be separated from outside.
    """

    kind: Kind
    path: str
    module: nn.Module
    owner: str = ""
    columns: Int[Tensor, "column"] | None = None

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The rows of W of this projection: a view if all rows, else a copy.

        Raises `UnsupportedModelError` for experts, whose weights are stacked in an order of their family.
        """
        if not is_linear(self.module):
            raise UnsupportedModelError(f"'{self.path}' is not a single linear map: it has no weight (out, in)")
        weight: Any = self.module.weight
        rows = weight.mT if isinstance(self.module, Conv1D) else weight
        return rows if self.columns is None else rows[self.columns.to(rows.device)]

    def part(self, output: Float[Tensor, "*batch out"]) -> Float[Tensor, "*batch column"]:
        """This projection's part of the module's output."""
        return output if self.columns is None else output[..., self.columns.to(output.device)]

    def read_input(self, read: Callable[[Tensor], object], stack: ExitStack) -> None:
        """Show x to `read` at every use, for as long as `stack` is open."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read(_input_of(args, kwargs).detach())

        stack.callback(self.module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def read_output(self, read: Callable[[Tensor], object], stack: ExitStack) -> None:
        """Show its part of y to `read` at every use, for as long as `stack` is open."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            read(self.part(_returned(output).detach()))

        stack.callback(self.module.register_forward_hook(hook).remove)

    def edit_input(self, edit: Edit, passes: Passes, stack: ExitStack) -> None:
        """Replace x by `edit(x)`. Other projections of a fused map use the edited x as well.

        Raises `UnsupportedModelError` at the end of a pass if no pass so far used the module. Readers see the edited x.
        """
        # Once is enough: later passes of `generate` leave out maps whose output is cached (keys of cross-attention).
        used: list[bool] = []

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            used[:] = [True]
            edited = edit(_input_of(args, kwargs))
            return ((edited, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): edited})

        stack.callback(self.module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True).remove)
        passes.require(lambda _: bool(used), self._unused(passes.model), stack)

    def edit_output(self, edit: Edit, passes: Passes, stack: ExitStack) -> None:
        """Replace its part of y by `edit` of that part. Otherwise as `edit_input`."""
        used: list[bool] = []

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            used[:] = [True]
            return replaced(output, self.columns, edit)

        stack.callback(self.module.register_forward_hook(hook, prepend=True).remove)
        passes.require(lambda _: bool(used), self._unused(passes.model), stack)

    def _unused(self, model: nn.Module) -> str:
        return (
            f"family '{family(model)}': '{self.path}' was not called by the end of a pass (its weight may be read "
            "directly), so nothing was changed there"
        )


def replaced(output: Any, columns: Int[Tensor, "column"] | None, edit: Edit) -> Any:
    """A module's output with these columns replaced by `edit` of them; None: all columns."""
    whole = _returned(output)
    columns_here = None if columns is None else columns.to(whole.device)
    # index_copy makes a new tensor, so that the original stays as autograd and other readers know it.
    edited = edit(whole) if columns_here is None else whole.index_copy(-1, columns_here, edit(whole[..., columns_here]))
    return (edited, *output[1:]) if isinstance(output, tuple) else edited


def projections(model: nn.Module) -> list[Projection]:
    """Every linear map in the model's blocks, in the order of its modules.

    Maps of attention layers by their role, of feed-forwards by their names, stacked experts as one, and any other
    linear map (routers, head gates, adapters) as `other`. Raises `UnsupportedModelError` if no blocks are found.
    """
    by_module: dict[nn.Module, list[Projection]] = {}
    paths = paths_of(model)
    for attention in attention_modules(model) if has_attention(model) or own_attention(model) else ():
        for projection in attention_projections(model, attention, paths):
            by_module.setdefault(projection.module, []).append(projection)
    model_blocks = blocks(model)
    if not model_blocks:
        raise UnsupportedModelError(f"family '{family(model)}': no blocks were found, so no linear maps in them")
    for block in model_blocks:
        for module in block.module.modules():
            if module not in by_module and (is_linear(module) or is_experts(module)):
                by_module[module] = list(_outside_attention(module, paths[module]))
    return [projection for module in paths for projection in by_module.get(module, ())]


def projection(model: nn.Module, attention: nn.Module, kind: Kind, paths: Paths = None) -> Projection:
    """The projection of an attention layer by kind. Raises `UnsupportedModelError`, naming the existing kinds."""
    by_kind = {one.kind: one for one in attention_projections(model, attention, paths)}
    if kind not in by_kind:
        raise missing(attention, f"no projection '{kind}' in its attention layer; there are: {', '.join(by_kind)}")
    return by_kind[kind]


def attention_projections(model: nn.Module, attention: nn.Module, paths: Paths = None) -> list[Projection]:
    """The linear maps of an attention layer by their role; an unknown one is `other`."""
    paths = paths_of(model) if paths is None else paths
    path = paths.get(attention, "")
    children = dict(attention.named_children())
    made: list[Projection] = []

    def add(kind: Kind, name: str, columns: Tensor | None = None) -> None:
        made.append(Projection(kind, f"{path}.{name}", children.pop(name), path, columns))

    separate: tuple[tuple[Kind, tuple[str, ...]], ...] = (("query", QUERY), ("key", KEY), ("value", VALUE))
    for kind, names in separate:
        if name := next((name for name in names if is_linear(children.get(name))), None):
            add(kind, name)
    for fused in (*IN_ROW, *PER_HEAD):
        if is_linear(children.get(fused)):
            module = children.pop(fused)
            parts = _fused_columns(model, attention, module, per_head=fused in PER_HEAD)
            made += [Projection(kind, f"{path}.{fused}", module, path, columns) for kind, columns in parts.items()]
    if all(name in children for name in QUERY_LATENT):
        add("query_latent", QUERY_LATENT[0])
        add("query", QUERY_LATENT[1])
    if all(name in children for name in LATENT):
        for name, parts in zip(LATENT, _latent_columns(attention), strict=True):
            module = children.pop(name)
            made += [Projection(kind, f"{path}.{name}", module, path, columns) for kind, columns in parts.items()]
    output = _output(model, attention)
    if output is not None:
        made.append(Projection("output", paths[output], output, path))
    known = {one.module for one in made}
    for name, module in attention.named_modules():
        if is_linear(module) and module not in known:
            made.append(Projection("other", f"{path}.{name}", module, path))
    return made


def output_projection(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The linear map after the heads: the last dimension of its input is heads · head_dim, head by head.

    In models like BERT it is outside the attention layer, in `output.dense`. Its input is not always the output of the
    attention function: gates (Qwen3-Next), norms (BitNet) and combinations of heads (DiffLlama) come before.
    Raises `UnsupportedModelError`.
    """
    output = _output(model, attention)
    if output is None:
        raise missing(attention, f"no output projection in or next to its attention layer (looked for {_list(OUTPUT)})")
    return output


def key_projection(model: nn.Module, attention: nn.Module, paths: Paths = None) -> Keys:
    """A function from hidden states (batch, position, width) to the layer's keys, with its norm, before rotation.

    The hidden states are the input of the attention layer, after the block's norm. Raises `UnsupportedModelError` if
    keys are computed in another way (latent attention, convolutions over tokens).
    """
    width = head_width(attention)
    norm = next(_children(attention, KEY_NORM), nn.Identity())
    steps = [name for name, _ in attention.named_children() if name.startswith(("k_", "key_"))]
    if unknown := [name for name in steps if name not in (*KEY, *KEY_NORM)]:
        raise missing(attention, f"its keys also go through {_list(tuple(unknown))}, which is not understood")
    if any(name in dict(attention.named_children()) for name in LATENT):
        raise missing(attention, "its keys are made of a latent (MLA), not of what enters the layer")
    key = projection(model, attention, "key", paths)
    return lambda hidden: _in_heads(key.part(key.module(hidden)), width, norm)


def head_width(attention: nn.Module) -> int:
    """Width of a head's queries and keys. Raises `UnsupportedModelError`."""
    widths = (getattr(attention, name, None) for name in HEAD_DIM)
    whole = next((width for width in widths if isinstance(width, int)), None)
    if whole is None:
        raise missing(attention, f"its attention layer does not say how wide a head is (looked for {_list(HEAD_DIM)})")
    return whole


def head_count(model: nn.Module, attention: nn.Module) -> int:
    """Number of query heads. Raises `UnsupportedModelError`."""
    if (heads := heads_of(model, attention)) is None:
        reason = "neither its attention layer nor its configuration says how many heads there are"
        raise missing(attention, f"{reason} (looked for {_list(HEADS)})")
    return heads


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the stacked weights of a mixture's experts: `down_proj` (expert, …, …)."""
    weight = getattr(module, "down_proj", None)
    return isinstance(weight, nn.Parameter) and weight.ndim == 3


def missing(attention: nn.Module, reason: str) -> UnsupportedModelError:
    """The error for an attention layer in which something was not found."""
    return UnsupportedModelError(f"family '{family(attention)}', {type(attention).__name__}: {reason}")


def _outside_attention(module: nn.Module, path: str) -> Iterator[Projection]:
    if is_experts(module):
        yield Projection("experts", path, module)
        return
    *_, parent, name = ("", *path.split("."))
    if name in GATE_AND_UP:
        gate, up = torch.arange(_width_out(module)).chunk(2)
        yield Projection("gate", path, module, columns=gate)
        yield Projection("up", path, module, columns=up)
        return
    yield Projection(FEED_FORWARD.get(name) or FEED_FORWARD.get(f"{parent}.{name}") or "other", path, module)


def _fused_columns(model: nn.Module, attention: nn.Module, fused: nn.Module, per_head: bool) -> dict[Kind, Tensor]:
    """The columns of a fused map for queries, keys and values; all are `other` if the sizes do not match."""
    heads, width, out = head_count(model, attention), head_width(attention), _width_out(fused)
    columns = torch.arange(out)
    # out = heads · width for queries + 2 · kv_heads · width for keys and values
    size = (out - heads * width) // 2
    if size <= 0 or size % width or heads * width + 2 * size != out:
        return {"other": columns}
    if parts := INTERLEAVED.get(type(attention).__name__):
        # (parts, [query, value, key], columns)
        query, value, key = columns.view(parts, 3, -1).unbind(1)
        return {"query": query.flatten(), "key": key.flatten(), "value": value.flatten()}
    if per_head:
        kv_heads = size // width
        if heads % kv_heads:
            return {"other": columns}
        # (kv_heads, group + 2, width): the queries of the group, its key, its value
        per_group = columns.view(kv_heads, heads // kv_heads + 2, width)
        query, key, value = per_group[:, :-2], per_group[:, -2], per_group[:, -1]
        return {"query": query.flatten(), "key": key.flatten(), "value": value.flatten()}
    query, key, value = columns.split([heads * width, size, size])
    return {"query": query, "key": key, "value": value}


def _latent_columns(attention: nn.Module) -> tuple[dict[Kind, Tensor], dict[Kind, Tensor]]:
    """MLA: (latent, rotated key) of the map down, (key without rotation, value) of each head of the map up."""
    sizes = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    rank, rotary, plain, wide = (int(getattr(attention, name)) for name in sizes)
    latent, rotated = torch.arange(rank + rotary).split([rank, rotary])
    per_head = torch.arange(_width_out(attention.kv_b_proj)).view(-1, plain + wide)  # type: ignore[arg-type]
    return (
        {"latent": latent, "rotary_key": rotated},
        {"key": per_head[:, :plain].flatten(), "value": per_head[:, plain:].flatten()},
    )


def _output(model: nn.Module, attention: nn.Module) -> nn.Module | None:
    output = next(_children(attention, OUTPUT), None)
    if output is None:
        parent = next((module for module in model.modules() if attention in module.children()), None)
        output = next(_children(getattr(parent, "output", None), OUTPUT), None)
    return output


def _children(module: nn.Module | None, names: tuple[str, ...]) -> Iterator[nn.Module]:
    children = {} if module is None else dict(module.named_children())
    yield from (children[name] for name in names if name in children)


def _width_out(linear: nn.Module) -> int:
    """Output columns of a linear map; transformers' Conv1D stores its weight transposed."""
    return int(linear.weight.shape[1 if isinstance(linear, Conv1D) else 0])  # type: ignore[index]


def _input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    first = next(iter((*args, *kwargs.values())), None)
    if not isinstance(first, Tensor):
        raise InputError(f"a linear map was called with {type(first).__name__} in place of a tensor")
    return first


def _returned(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _in_heads(flat: Tensor, width: int, norm: nn.Module) -> Float[Tensor, "batch heads position width"]:
    """Keys split into heads, normed over the width of the norm's gain: all heads together, or each head."""
    gain = getattr(norm, "weight", None)
    if isinstance(gain, Tensor) and gain.shape == flat.shape[-1:] != (width,):
        return norm(flat).unflatten(-1, (-1, width)).transpose(1, 2)
    # (batch, position, kv_heads, width)
    keys = flat.unflatten(-1, (-1, width))
    if isinstance(gain, Tensor) and gain.ndim == 2:  # one row of gains per head: the head axis comes before the width
        return norm(keys).transpose(1, 2)
    return norm(keys.transpose(1, 2))


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
