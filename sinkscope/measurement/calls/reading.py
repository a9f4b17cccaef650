"""Turn the raw arguments of an attention function into an `AttentionCall`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache

from sinkscope.attention import Context, Kept, Operation, Visibility, adds_slots, held_columns, operation_of
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Axis, Forward, Invocation, Layer, hosted
from sinkscope.measurement.calls.call import AttentionCall, Entries
from sinkscope.measurement.calls.masks import Bound, DenseMask, Rule, VisibleKeys, WrittenMasks


@dataclass(frozen=True, eq=False)
class Known:
    """What earlier passes over the same samples showed about a layer: whether it is causal, its real keys (None:
    all).
    """

    causal: bool
    real_keys: Bool[Tensor, "batch _"] | None = None


def read_call(
    invocation: Invocation,
    layer: Layer,
    forward: Forward,
    sides: tuple[Axis, Axis],
    family: str,
    written: WrittenMasks | None = None,
    known: Known | None = None,
) -> AttentionCall:
    """The call in one form for all families and implementations.

    Real tokens are those of the model's mask if it covers this layer's tokens, else those that the layer's own mask
    lets some query see. Causality is read from the layer's mask; if that leaves it open (one query, a bidirectional
    prefix), earlier passes or the module decide.

    Args:
        invocation: The use of an attention function.
        layer: Its layer.
        forward: The model's pass that it belongs to.
        sides: Which of the pass's token sequences the queries and the keys come from.
        family: For messages.
        written: Masks of this pass that were read already; None: none.
        known: What earlier passes showed of this layer; None: nothing.

    Raises `UnsupportedModelError` for masks and caches whose keys cannot be identified, and for a layer that attends to
    tokens hidden by the model's mask.
    """
    arguments: dict[str, Any] = {**invocation.arguments, **hosted(invocation.module)}
    refuse = Refusal(family, layer.name)
    shared = sides[0] == sides[1]
    start = forward.start(sides[0])
    total = start + arguments["query"].shape[2]
    # First of all: keys that a cache kept move to their columns among `total`, so that below a column is a position.
    if shared:
        arguments = with_dropped_keys(arguments, forward.cache, layer.index, total, refuse)
    query, key, value = (arguments[name].detach() for name in ("query", "key", "value"))
    keys = min(key.shape[2], total) if shared else key.shape[2]  # a static cache hands out its whole buffer
    if shared and keys < total and not _slides(forward, layer):
        raise refuse(f"attends to {keys} of {total} tokens and does not say which")
    scaling, operation = arguments.get("scaling"), operation_of(invocation.module)
    mask = _mask(arguments, invocation, query.shape[2], keys, refuse, written or WrittenMasks())
    key_start = total - keys if shared else 0
    real_keys = _real_keys(forward, sides[1], mask, (len(query), key_start, total if shared else keys), known, refuse)
    stated = shared and forward.stated(sides[1], total)  # what was read from this mask needs no check against it
    if stated and real_keys is not None and mask.shows(~real_keys[:, key_start:].to(query.device), start - key_start):
        raise refuse("attends to tokens that the attention mask given to the model hides: leave that mask out")
    if not shared and real_keys is None and _is_of_padded_tokens(forward, sides[1], keys):
        raise refuse("its keys may be made of the model's tokens, of which some are padding, and its mask hides none")
    # Without a cache, keys beyond the tokens are no empty places of a buffer but keys of another kind.
    extra = shared and forward.cache is None and key.shape[2] > total
    entries = _entries(arguments, mask, total, real_keys, refuse) if extra else None
    call = AttentionCall(
        layer=layer,
        query=query,
        key=key[:, :, :keys],
        value=value[:, :, :keys],
        mask=mask,
        # A family that scales its queries itself (OPT) passes 1, so the default applies only where nothing is passed.
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        causal=shared
        and _is_causal(mask, start - key_start, query.shape[2], real_keys, known, _says(arguments, invocation, layer)),
        query_start=start,
        key_start=key_start,
        own_keys=slice(keys - query.shape[2], keys) if shared else slice(0, keys),
        real=on_device_of(
            query, real_keys[:, start:] if shared and real_keys is not None else _queries(forward, sides, total)
        ),
        real_keys=on_device_of(query, real_keys),
        softcap=arguments.get("softcap"),
        bias=_bias(arguments.get("position_bias"), query.shape[2], keys),
        sink=_sink(arguments),
        entries=entries,
        kernel_lse=_fitting(invocation.kernel_lse, query),
        output=invocation.output.detach().transpose(1, 2),
    )
    return call if operation is None else _with_operation(call, operation, arguments, invocation.kernel_lse, refuse)


@dataclass(frozen=True)
class Refusal:
    """Makes errors that name the family and the layer."""

    family: str
    layer: str

    def __call__(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"family '{self.family}', layer '{self.layer}': {reason}")


def _says(arguments: Mapping[str, Any], invocation: Invocation, layer: Layer) -> bool:
    """Whether the layer declares itself causal; by its stack if it declares nothing."""
    return _module_says(arguments, invocation.module, layer.stack == "decoder")


def _module_says(arguments: Mapping[str, Any], module: nn.Module, default: bool) -> bool:
    argument = arguments.get("is_causal")
    return bool(getattr(module, "is_causal", default) if argument is None else argument)


def _is_causal(
    mask: VisibleKeys, start: int, queries: int, real: Tensor | None, known: Known | None, declared: bool
) -> bool:
    """Read from the mask, because modules set `is_causal=False` under causal masks, and the reverse."""
    # A single query sees no later key in any layer. `real` covers all tokens so far, the mask only the last ones.
    ahead = None if queries == 1 else mask.looks_ahead(start, None if real is None else real[:, -mask.keys :])
    if ahead is None:
        return declared if known is None else known.causal
    return not ahead


def _real_keys(
    forward: Forward, axis: Axis, mask: VisibleKeys, span: tuple[int, int, int], known: Known | None, refuse: Refusal
) -> Bool[Tensor, "batch position"] | None:
    """Which of all tokens so far are real; None where all are. `span`: rows, first column of this call, total columns.

    If the inputs leave it open, columns that the layer's mask hides from every query are padding; cached columns keep
    their earlier status.
    """
    batch, first, total = span
    if forward.stated(axis, total):
        return real_tokens(forward, axis, slice(0, total), refuse)
    seen, before = mask.keys_seen, None if known is None else known.real_keys
    if forward.text_alone and (axis == "memory" or axis in forward.real):
        raise refuse(f"attends to {total} keys that the model makes of its own text, which are not its tokens")
    if seen is None and before is None:
        return None
    device = (seen if seen is not None else before).device  # type: ignore[union-attr]
    real = torch.ones(batch, total, dtype=torch.bool, device=device)
    if seen is not None:
        real[:, first:] = seen
    # A window hides old tokens from all queries of this pass, which does not make them padding.
    if known is not None and (cached := forward.start(axis)):
        real[:, :cached] = True if before is None else before[:, :cached].to(device)
    return real


def _entries(
    arguments: Mapping[str, Any], mask: VisibleKeys, total: int, real: Tensor | None, refuse: Refusal
) -> Entries:
    """The keys after those of the `total` tokens.

    The mask must show that the first keys are the tokens' own: each query sees its own key and no later one.
    """
    key, value, whole = arguments["key"], arguments["value"], arguments.get("attention_mask")
    reason = f"attends to {key.shape[2]} keys for {total} tokens, and its mask does not tell which are the tokens' own"
    if not isinstance(mask, DenseMask) or not isinstance(whole, Tensor) or whole.shape[-1] < key.shape[2]:
        raise refuse(reason)
    if mask.looks_ahead(0, real) is not False or not mask.sees_itself(real):
        raise refuse(reason)
    behind = DenseMask(whole[..., total : key.shape[2]].expand(-1, -1, arguments["query"].shape[2], -1))
    return Entries(key[:, :, total:].detach(), value[:, :, total:].detach(), behind)


def _is_of_padded_tokens(forward: Forward, axis: Axis, keys: int) -> bool:
    """Whether a cross-attention layer may attend to something made from the model's own padded tokens (BLT)."""
    tokens = forward.lengths.get("tokens", 0)
    return not forward.stated(axis, keys) and "tokens" in forward.real and tokens > 0 and keys % tokens == 0


def _queries(forward: Forward, sides: tuple[Axis, Axis], total: int) -> Bool[Tensor, "batch position"] | None:
    """Real queries of a cross-attention layer, whose keys are other tokens; None (all) if the inputs leave it open."""
    real = forward.real.get(sides[0])
    return None if real is None or not forward.stated(sides[0], total) else real[:, forward.start(sides[0]) : total]


def _slides(forward: Forward, layer: Layer) -> bool:
    """Whether the layer's cache keeps only the last tokens."""
    sliding = [] if forward.cache is None else forward.cache.is_sliding
    return 0 <= layer.index < len(sliding) and bool(sliding[layer.index])


def _mask(
    arguments: Mapping[str, Any],
    invocation: Invocation,
    queries: int,
    keys: int,
    refuse: Refusal,
    written: WrittenMasks,
) -> VisibleKeys:
    mask, name = arguments.get("attention_mask"), invocation.implementation or "eager"
    if isinstance(mask, Visibility):
        # A `Rule` knows its extent and counts without writing out a mask.
        if mask.is_causal_square or mask.is_full:
            return Rule(keys, causal=mask.is_causal_square)
        return Bound(mask)
    if "paged" in name:
        raise refuse("paged attention keeps its keys elsewhere; use generate instead of continuous batching")
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-1] >= keys:
        return written.of(mask, queries, keys)
    if isinstance(mask, BlockMask):
        return written.of(mask, queries, keys)
    if "flash" in name and (mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)):
        # Flash attention aligns the queries with the last keys, and applies causality and window by its arguments.
        padding = None if mask is None else mask[:, :keys].bool()
        causal = _module_says(arguments, invocation.module, True)
        return Rule(keys, causal, keys - queries, arguments.get("sliding_window"), padding)
    if mask is not None:
        raise refuse(f"cannot read its {type(mask).__name__} mask; use attn_implementation='sdpa' or 'eager'")
    if name == "eager":  # eager functions add the mask argument and nothing else
        return Rule(keys, causal=False)
    # SDPA applies `is_causal` to several queries only, aligned with the first key, as `start` = 0 is.
    return Rule(keys, causal=queries > 1 and _module_says(arguments, invocation.module, True))


def real_tokens(forward: Forward, axis: Axis, span: slice, refuse: Refusal) -> Bool[Tensor, "batch position"] | None:
    """Which tokens of `span` are real; None where all are. Raises if the model's mask is shorter."""
    if (real := forward.real.get(axis)) is None:
        return None
    if real.shape[1] < span.stop:
        raise refuse(f"sees {span.stop} tokens, but the attention mask given to the model has {real.shape[1]} columns")
    return real[:, span]


def on_device_of(like: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask on the device of a layer: a model may be split over devices."""
    return None if mask is None else mask.to(like.device)


def _bias(bias: Tensor | None, queries: int, keys: int) -> Tensor | None:
    return None if bias is None else bias.detach()[..., :keys].float().expand(-1, -1, queries, -1)


def _sink(arguments: Mapping[str, Any]) -> Float[Tensor, "_ heads _"] | None:
    """Learned sink logits: one per head (`s_aux`), or one per head and query (`sinks`)."""
    if (sink := arguments.get("s_aux")) is not None:
        return sink.detach().float()[None, :, None]  # (heads,) → (1, heads, 1)
    if (sink := arguments.get("sinks")) is not None:
        return sink.detach().float()[..., 0]  # (batch, heads, query, 1) → (batch, heads, query)
    return None


def _fitting(lse: Tensor | None, query: Tensor) -> Tensor | None:
    """The kernel's log-sum-exp as (batch, heads, query); a single query may have been packed with its head group."""
    if lse is None or lse.shape == query.shape[:3]:
        return lse
    return lse.reshape(query.shape[:3]) if query.shape[2] == 1 and lse.numel() == query.shape[:3].numel() else None


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _with_operation(
    call: AttentionCall, operation: Operation, arguments: Mapping[str, Any], kernel_lse: Tensor | None, refuse: Refusal
) -> AttentionCall:
    """The call of a lab or attached layer, with its operation, context and slots."""
    visibility = arguments.get("attention_mask")
    if not isinstance(visibility, Visibility):
        raise refuse(f"an attention operation needs a Visibility as its mask, got {type(visibility).__name__}")
    hidden, carried = (_detached(arguments.get(name)) for name in ("hidden_states", "carried"))
    context = Context(visibility, call.scaling, hidden, carried, arguments.get("bias"))
    call = replace(call, operation=operation, context=context)
    if not call.is_softmax or not operation.slots:
        return call
    logits = operation.slot_logits(call.wide_query, context)
    added = adds_slots(operation.slot_terms(context), call.query, call.value, visibility)
    if kernel_lse is not None:
        front = 0 if added else kernel_lse.shape[2] - call.query.shape[2]
        # Slots that are keys may have added as many empty queries in front; padding may not have reached the kernel.
        kernel_lse = kernel_lse[..., front:] if front in (0, operation.slots) else None
        kernel_lse = _fitting(kernel_lse, call.query)
    return replace(call, sink=torch.logsumexp(logits, -1), kernel_lse=kernel_lse, kernel_has_sink=not added)


def with_dropped_keys(
    arguments: Mapping[str, Any],
    cache: Cache | None,
    layer: int,
    total: int,
    refuse: Callable[[str], UnsupportedModelError],
) -> dict[str, Any]:
    """The arguments of an attention function with its kept keys at their columns among `total`, the others masked.

    A cache layer that drops keys says in `places` (batch, 1 or kv_heads, kept) which column each key it handed out is.
    Memory is O(total) while a call is read.

    Args:
        arguments: By name.
        cache: The model's cache; None: nothing was dropped.
        layer: Number of the layer in the cache.
        total: Tokens so far, cached ones included.
        refuse: Makes the error for a reason.

    Raises if a key was handed out several times, rotated for different queries.
    """
    layers = getattr(cache, "layers", [])  # an encoder-decoder's cache has two caches instead, which drop nothing
    places = getattr(layers[layer], "places", None) if 0 <= layer < len(layers) else None
    if places is None or arguments["key"].shape[2] == total == places.shape[-1]:
        return dict(arguments)
    if places.shape[-1] != arguments["key"].shape[2]:
        raise refuse(f"attends to {arguments['key'].shape[2]} keys, of which its cache tells {places.shape[-1]}")
    places = places.to(arguments["key"].device)
    mask = arguments.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim != 4:
        raise refuse("its cache dropped keys, and its mask does not say which it means: use attn_implementation='sdpa'")
    held = held_columns(places, total)
    # Fewer columns than places: some column was handed out more than once.
    if arguments["query"].shape[2] > 1 and int(held.sum()) != int((places >= 0).sum()):
        raise refuse("its cache hands out a key once for every query of a chunk: observe one token at a time")
    return {
        **arguments,
        "key": _spread(arguments["key"], places, total),
        "value": _spread(arguments["value"], places, total),
        "attention_mask": _mask_over_all(mask, arguments["query"], places, total),
    }


def _spread(kept: Float[Tensor, "batch heads kept dim"], places: Int[Tensor, "batch _ kept"], total: int) -> Tensor:
    """Kept keys or values at their columns, 0 elsewhere."""
    # One extra column takes entries without a place.
    index = places.where(places >= 0, total)[..., None].expand_as(kept)
    return kept.new_zeros(*kept.shape[:2], total + 1, kept.shape[-1]).scatter_(2, index, kept.detach())[:, :, :total]


def _mask_over_all(mask: Any, query: Tensor, places: Int[Tensor, "batch _ kept"], total: int) -> Any:
    """The mask over all columns: a `Kept` mask stays a mask value, any other is written out."""
    if isinstance(mask, Kept):
        return mask.spread()
    # Places are per key-value head, masks per query head.
    heads = places if places.shape[1] == 1 else places.repeat_interleave(query.shape[1] // places.shape[1], 1)
    if mask is None:
        return held_columns(heads, total)[:, :, None].expand(-1, -1, query.shape[2], -1)
    wide = max(mask.shape[1], heads.shape[1])
    shape = len(query), wide, mask.shape[2], heads.shape[-1]
    shown = mask[..., : shape[-1]].expand(shape)
    # As in `_spread`, an extra column takes entries without a place and is cut off.
    index = heads.where(heads >= 0, total)[:, :, None].expand(shape)
    nowhere = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return mask.new_full((*shape[:3], total + 1), nowhere).scatter_(-1, index, shown)[..., :total]
