"""From the raw arguments of an attention function to an `AttentionCall`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention import Context, Operation, Visibility, adds_slots
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Axis, Forward, Invocation, Layer, hosted
from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.masks import Bound, Rule, VisibleKeys, Written


def read(
    invocation: Invocation, layer: Layer, forward: Forward, sides: tuple[Axis, Axis], family: str
) -> AttentionCall:
    """The call in one form for all families and implementations.

    Raises `UnsupportedModelError` for masks, and for caches, whose keys cannot be told apart.
    """
    given: dict[str, Any] = {**invocation.arguments, **hosted(invocation.module)}
    refuse = Refusal(family, layer.name)
    query, key, value = (given[name].detach() for name in ("query", "key", "value"))
    shared = sides[0] == sides[1]
    start = forward.start(sides[0])
    total = start + query.shape[2]
    keys = min(key.shape[2], total) if shared else key.shape[2]  # a static cache hands out its whole buffer
    if shared and forward.cache is None and key.shape[2] > total:
        raise refuse(f"attends to {key.shape[2]} keys for {total} tokens: some stand for several tokens or for none")
    if shared and keys < total and not _slides(forward, layer):
        raise refuse(f"attends to {keys} of {total} tokens and does not say which")
    scaling, operation = given.get("scaling"), _operation(invocation.module)
    call = AttentionCall(
        layer=layer,
        query=query,
        key=key[:, :, :keys],
        value=value[:, :, :keys],
        mask=_mask(given, invocation, query.shape[2], keys, refuse),
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        causal=layer.stack != "cross" and _is_causal(given, invocation.module, layer.stack == "decoder"),
        query_start=start,
        key_start=total - keys if shared else 0,
        own_keys=slice(keys - query.shape[2], keys) if shared else slice(0, keys),
        real=_on(query, real_tokens(forward, sides[0], slice(start, total), refuse)),
        real_keys=_on(query, real_tokens(forward, sides[1], slice(0, total if shared else keys), refuse)),
        softcap=given.get("softcap"),
        bias=_bias(given.get("position_bias"), query.shape[2], keys),
        sink=_sink(given),
        kernel_lse=_fitting(invocation.kernel_lse, query),
        output=invocation.output.detach().transpose(1, 2),
    )
    return call if operation is None else _with_operation(call, operation, given, invocation.kernel_lse, refuse)


@dataclass(frozen=True)
class Refusal:
    """An error that says which family and layer it is about."""

    family: str
    layer: str

    def __call__(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"family '{self.family}', layer '{self.layer}': {reason}")


def _is_causal(given: Mapping[str, Any], module: nn.Module, default: bool) -> bool:
    argument = given.get("is_causal")
    return bool(getattr(module, "is_causal", default) if argument is None else argument)


def _slides(forward: Forward, layer: Layer) -> bool:
    """Whether the layer's cache is one that keeps the last tokens."""
    sliding = [] if forward.cache is None else forward.cache.is_sliding
    return 0 <= layer.index < len(sliding) and bool(sliding[layer.index])


def _mask(given: Mapping[str, Any], invocation: Invocation, queries: int, keys: int, refuse: Refusal) -> VisibleKeys:
    mask, name = given.get("attention_mask"), invocation.implementation or "eager"
    if isinstance(mask, Visibility):
        if mask.is_causal_square or mask.is_full:
            return Rule(keys, causal=mask.is_causal_square)
        return Bound(mask)
    if "paged" in name:
        raise refuse("paged attention keeps its keys elsewhere; use generate instead of continuous batching")
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-1] >= keys:
        return Written(mask[..., :keys].expand(-1, -1, queries, -1))
    if "flash" in name and (mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)):
        padding = None if mask is None else mask[:, :keys].bool()
        causal = _is_causal(given, invocation.module, True)
        return Rule(keys, causal, keys - queries, given.get("sliding_window"), padding)
    if mask is not None:
        raise refuse(f"cannot read its {type(mask).__name__} mask; use attn_implementation='sdpa' or 'eager'")
    if name == "eager":  # eager functions add the mask they are given and nothing else
        return Rule(keys, causal=False)
    return Rule(keys, causal=queries > 1 and _is_causal(given, invocation.module, True))


def real_tokens(forward: Forward, axis: Axis, span: slice, refuse: Refusal) -> Bool[Tensor, "batch position"] | None:
    """Which tokens of `span` are real; None where all are. Raises where the model's mask ends before."""
    if (real := forward.real.get(axis)) is None:
        return None
    if real.shape[1] < span.stop:
        raise refuse(f"sees {span.stop} tokens, but the attention mask given to the model has {real.shape[1]} columns")
    return real[:, span]


def _on(like: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask on the device of a layer: a model may be spread over several."""
    return None if mask is None else mask.to(like.device)


def _bias(bias: Tensor | None, queries: int, keys: int) -> Tensor | None:
    return None if bias is None else bias.detach()[..., :keys].float().expand(-1, -1, queries, -1)


def _sink(given: Mapping[str, Any]) -> Float[Tensor, "_ heads _"] | None:
    """Learned sink logits: one per head (`s_aux`), or one per head and query (`sinks`)."""
    if (sink := given.get("s_aux")) is not None:
        return sink.detach().float()[None, :, None]
    if (sink := given.get("sinks")) is not None:
        return sink.detach().float()[..., 0]
    return None


def _fitting(lse: Tensor | None, query: Tensor) -> Tensor | None:
    """The kernel's log-sum-exp as (batch, heads, query); a single query may have been packed with its head group."""
    if lse is None or lse.shape == query.shape[:3]:
        return lse
    return lse.reshape(query.shape[:3]) if query.shape[2] == 1 and lse.numel() == query.shape[:3].numel() else None


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _operation(module: nn.Module) -> Operation | None:
    operation = getattr(module, "operation", None)
    return operation if isinstance(operation, Operation) else None


def _with_operation(
    call: AttentionCall, operation: Operation, given: Mapping[str, Any], kernel_lse: Tensor | None, refuse: Refusal
) -> AttentionCall:
    """The call of a lab or attached layer, whose operation knows its weights and slots."""
    visibility = given.get("attention_mask")
    if not isinstance(visibility, Visibility):
        raise refuse(f"an attention operation needs a Visibility as its mask, got {type(visibility).__name__}")
    hidden, carried = (_detached(given.get(name)) for name in ("hidden_states", "carried"))
    context = Context(visibility, call.scaling, hidden, carried, given.get("bias"))
    call = replace(call, operation=operation, context=context)
    if not call.is_softmax or not operation.slots:
        return call
    logits = operation.slot_logits(call.wide_query, context)
    if kernel_lse is not None:  # slots that are keys may have put as many empty queries in front
        kernel_lse = kernel_lse[..., -call.query.shape[2] :]
    added = adds_slots(operation.slot_terms(context), call.query, call.value, visibility)
    return replace(call, sink=torch.logsumexp(logits, -1), kernel_lse=kernel_lse, kernel_has_sink=not added)
