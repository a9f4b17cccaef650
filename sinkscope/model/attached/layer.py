"""One attention layer of a host with an operation: its hooks, and the attention function that they feed.

The function is found where every transformers layer finds its own, by name, and brings its mask function with it (under
an unregistered name transformers passes no mask at all). It knows q, k and v after rotation and cache, and the mask; a
hook on the layer notes the block's input and the positions of queries, hooks on the projections let the operation
act before rotation and cache. A layer whose operation did not run raises: nothing falls back to softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, Cache, EncoderDecoderCache
from transformers.masking_utils import sdpa_mask

from sinkscope.attention import (
    AttentionSpec,
    Context,
    LogitSlot,
    Operation,
    PathName,
    Sizes,
    SlotTerms,
    TokenAxis,
    dot_product,
    operation_of,
)
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import PLACE, Hosted, Joined, Projection, replaced, visibility_of
from sinkscope.model.attached.config import NAME
from sinkscope.model.attached.families import SINKS, sink_of
from sinkscope.model.shared_kv import KEYLESS


class HostSink(nn.Module):
    """A slot whose logits are the host layer's own sink parameter, which stays with the layer.

    Source: OpenAI 2025 (2508.10925), GPT-OSS.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = (layer,)  # in a tuple: registered as a submodule, the layer would contain itself

    def __deepcopy__(self, memo: dict[int, Any]) -> HostSink:
        """With a copied layer, its sink; a copy of the operation alone (PEFT) keeps the layer that it is in."""
        return HostSink(memo.get(id(self.layer[0]), self.layer[0]))

    def forward(self, context: Context) -> SlotTerms:
        return SlotTerms(logit=getattr(self.layer[0], SINKS))


def with_sink(spec: AttentionSpec, module: nn.Module) -> AttentionSpec:
    """The operation with the host's own sink as its last slot."""
    return spec if sink_of(module) is None else replace(spec, slots=(*spec.slots, LogitSlot()))


def build(spec: AttentionSpec, sizes: Sizes, module: nn.Module) -> Operation:
    """The operation of a host's attention layer, in which the host's own sink stays in force."""
    operation = Operation(with_sink(spec, module), sizes)
    if sink_of(module) is not None:
        operation.slot_modules[-1] = HostSink(module)
    return operation


def carries_sink(operation: Operation) -> bool:
    """Whether the host's own sink is among the slots."""
    return any(isinstance(slot, HostSink) for slot in operation.slot_modules)


@dataclass(frozen=True, eq=False)
class Softcap:
    """c · tanh(s / c) − s with s = scaling · q·k: added to s, it leaves the capped score. Slots are not capped.

    In fp32 at least. Source: Gemma Team 2024 (2408.00118), section 2.
    """

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    scaling: float
    cap: float

    def rows(self, rows: slice) -> Float[Tensor, "batch heads query key"]:
        """The bias of the queries in `rows` on all keys."""
        wide = torch.promote_types(self.query.dtype, torch.float32)
        scores = dot_product(self.query[:, :, rows].to(wide), self.key.to(wide), self.scaling)
        return self.cap * torch.tanh(scores / self.cap) - scores


HANDLES = "operation_hooks"  # the attribute of an attention module under which its hooks' handles are kept
EDITS = "operation_edits"  # and what the operation does to its linear maps
MASK = "joined"  # the attribute of an attached operation that holds its mask joined with the host's
FOREIGN = ("s_aux", "sinks", "position_bias", "indices", "block_indices")  # what hosts add to scores or hide


def register() -> None:
    """Make the attention function and its masks known to transformers."""
    AttentionInterface.register(NAME, attached_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def equip(module: nn.Module, operation: Operation, made: Mapping[str, Projection]) -> None:
    """Put `operation` into an attention layer; its parameters become the layer's.

    `made`: the linear maps to queries, keys and values by what they make, where the operation acts on one of these.
    """
    paths = {part: path for path, part in module.named_modules()}
    module.operation = operation
    setattr(operation, MASK, Joined.of(operation.spec.mask))
    setattr(module, PLACE, None)
    edits: list[tuple[str, Callable[..., Tensor]]] = []
    if operation.spec.query_key is not None:
        edits += [("query", _normalized_queries), ("key", _normalized_keys)]
    if operation.spec.value_gate is not None:
        edits.append(("value", _gated_values))
    setattr(module, EDITS, [Edit(paths[made[kind].module], made[kind].columns, edit) for kind, edit in edits])
    handles = [
        module.register_forward_pre_hook(_take_input, with_kwargs=True),
        module.register_forward_hook(_forget_input, always_call=True),
    ]
    setattr(module, HANDLES, handles)
    _place_edits(module)


def strip(module: nn.Module) -> None:
    """Remove all hooks again."""
    for handle in getattr(module, HANDLES):
        handle.remove()
    for edit in getattr(module, EDITS):
        edit.remove()
    for name in ("operation", PLACE, HANDLES, EDITS):
        delattr(module, name)


class Edit:
    """What an operation does to the output of a linear map of its layer, before rotation and cache.

    Placed anew at every call: an adapter (PEFT) may have wrapped the map since, whose whole output is meant, and put a
    copy that learns in the operation's place. It does not hold the layer, which would hold itself.
    """

    def __init__(
        self, path: str, columns: Int[Tensor, "column"] | None, change: Callable[[Operation, Tensor, Tensor], Tensor]
    ) -> None:
        self.path, self.columns, self.change = path, columns, change
        self.operation: Operation | None = None
        self.handle: RemovableHandle | None = None
        self.hook: int | None = None  # the handle's number, since a graph cannot hold the handle

    def place(self, layer: nn.Module, operation: Operation) -> None:
        """Act by `operation` on the module that is now at the map's path."""
        self.operation = operation
        current = layer.get_submodule(self.path)
        if self.hook is None or self.hook not in current._forward_hooks:
            self.remove()
            self.handle = current.register_forward_hook(self)
            self.hook = self.handle.id

    def remove(self) -> None:
        """Remove the hooks."""
        if self.handle is not None:
            self.handle.remove()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        operation = self.operation
        assert operation is not None

        def changed(part: Tensor) -> Tensor:
            return _joined(self.change(operation, _heads(part, operation), args[0]))

        return replaced(output, self.columns, changed)


def _place_edits(module: nn.Module) -> None:
    edits: list[Edit] = getattr(module, EDITS)
    if edits:
        operation = operation_of(module)
        assert operation is not None
        for edit in edits:
            edit.place(module, operation)


def attached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch query heads dim"], Float[Tensor, "batch heads query key"] | None]:
    """The module's operation in transformers' contract. Host mask, grouped heads, scaling and softcap stay in force.

    Arguments as in transformers' own attention functions. Raises `UnsupportedModelError` for a layer without operation
    and for what an operation does not do: attention dropout, and terms of the host's own (learned sinks, position
    biases, index masks).
    """
    call = getattr(module, PLACE, None)
    operation = operation_of(module)
    if not isinstance(call, Hosted) or operation is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} has no operation, but its attention implementation is '{NAME}': "
            "load attached models with sinkscope.load, and detach with sinkscope.detach"
        )
    # The host passes its own sink as well, which is one of the operation's slots: it must count once.
    if carries_sink(operation):
        kwargs = kwargs | {"s_aux": None}
    if foreign := [name for name in FOREIGN if kwargs.get(name) is not None]:
        raise _refusal(module, f"passes {', '.join(foreign)} to its attention, which an operation would drop")
    if dropout > 0:
        raise _refusal(
            module, f"has attention dropout {dropout:g}, which an operation does not do: load it with 0 to train it"
        )
    total = call.seen + query.shape[2]
    first: int | Tensor
    if isinstance(total, int):  # a static cache hands out its whole buffer, a sliding one its last tokens
        key, value = key[:, :, :total], value[:, :, :total]
        first = total - key.shape[2]
    else:  # in a graph the empty room after the tokens stays: the mask hides it
        first = (total - key.shape[2]).clamp(min=0)
    if query.dtype != value.dtype and torch.is_autocast_enabled(query.device.type):
        # Angles in fp32 leave rotated queries and keys in fp32, but values in half precision. SDPA casts; ours do not.
        short = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(short), key.to(short), value.to(short)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    visibility = visibility_of(
        attention_mask,
        getattr(operation, MASK),
        bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),  # as transformers' own functions
        _placed(query, call.seen),
        _placed(key, first),
        partial(_refusal, module),
    )
    bias = None if softcap is None else Softcap(query, key, scaling, softcap)
    # Observers read the call from here, and `_forget_input` takes a missing mask for an operation that did not run.
    setattr(module, PLACE, replace(call, visibility=visibility, bias=bias))
    # No other path writes the weights out.
    path: PathName = "reference" if output_attentions else "auto"
    attended = operation(query, key, value, visibility, call.hidden, scaling, path, bias=bias)
    return attended.output.transpose(1, 2).contiguous(), attended.weights  # some hosts view it as (batch, query, …)


def _take_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the block's input, and how many tokens the layer's cache holds before it grows."""
    _place_edits(module)
    hidden = args[0] if args else kwargs["hidden_states"]
    cache = next((argument for argument in (*args, *kwargs.values()) if isinstance(argument, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    seen = 0 if cache is None else _seen(cache, module)
    if isinstance(seen, Tensor):  # of a static cache, which counts in place; a graph cannot ask for the number
        seen = seen + 0 if torch.compiler.is_compiling() else int(seen)
    setattr(module, PLACE, Hosted(hidden, seen))


def _seen(cache: Cache, module: nn.Module) -> int | Tensor:
    """Tokens in a layer's cache; where the layer reads another one's keys and keeps none, in that of the first."""
    if not isinstance(layer := getattr(module, "layer_idx", None), int):
        raise _refusal(module, "has no layer_idx, so how many tokens its cache holds cannot be told")
    kept = cache.layers[layer] if layer < len(cache.layers) else None
    return cache.get_seq_length() if isinstance(kept, KEYLESS) else cache.get_seq_length(layer)


def _placed(tokens: Float[Tensor, "batch heads token dim"], first: int | Tensor) -> TokenAxis:
    """Places of tokens in their row, the first at `first`."""
    return TokenAxis(torch.arange(tokens.shape[2], device=tokens.device)[None] + first)


def _forget_input(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Forget the call; raises if the operation did not run, but for a layer that raised itself (`output` is None)."""
    call = getattr(module, PLACE)
    setattr(module, PLACE, None)
    if output is not None and (call is None or call.visibility is None):
        raise UnsupportedModelError(
            f"{type(module).__name__} ran without its attached operation, as attention implementation "
            f"'{module.config._attn_implementation}': set it back to '{NAME}', or detach the operation"  # type: ignore[union-attr]
        )


def _normalized_queries(operation: Operation, query: Tensor, hidden: Tensor) -> Tensor:
    # `before_rotation` takes both, but a hook sees the output of one map: keys of no tokens stand in for the others.
    none = query.new_empty(len(query), operation.sizes.kv_heads, 0, query.shape[-1])
    return operation.before_rotation(query, none)[0]


def _normalized_keys(operation: Operation, key: Tensor, hidden: Tensor) -> Tensor:
    none = key.new_empty(len(key), operation.sizes.heads, 0, key.shape[-1])
    return operation.before_rotation(none, key)[1]


def _gated_values(operation: Operation, value: Tensor, hidden: Tensor) -> Tensor:
    # The second result, what tokens carry, is that of forgetting gates, which hosts cannot have.
    return operation.before_cache(value, hidden)[0]


def _heads(projected: Float[Tensor, "batch token channels"], operation: Operation) -> Tensor:
    # (batch, token, heads · dim) → (batch, heads, token, dim)
    return projected.unflatten(-1, (-1, operation.sizes.head_dim)).transpose(1, 2)


def _joined(heads: Float[Tensor, "batch heads token dim"]) -> Float[Tensor, "batch token channels"]:
    return heads.transpose(1, 2).flatten(2)


def _refusal(module: nn.Module, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"attached operation: {type(module).__name__} {reason}")
