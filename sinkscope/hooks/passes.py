"""One forward pass of a model: its samples, padding and documents, the cache that it starts or continues, and its
end.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from sinkscope.attention import Document, TokenAxis
from sinkscope.attention.masks import leaves
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.dispatch import was_reordered
from sinkscope.hooks.inputs import device_of, evaluating
from sinkscope.hooks.modules import CACHE_NAMES, family, is_encoder_decoder, sink_tokens

Axis = Literal["tokens", "memory", "vision", "audio", "queries"]
Edit = Callable[[Tensor], Tensor]
MAIN_INPUTS = (
    "input_ids",
    "inputs_embeds",
    "decoder_input_ids",
    "decoder_inputs_embeds",
    "pixel_values",
    "input_features",
)
PATCHING = ("blt",)
TEXT = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "labels")
TEXT_MASKS = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask", "global_attention_mask")


def axes(stack: str, encoder_decoder: bool) -> tuple[Axis, Axis]:
    """Token axes of the queries and keys of a stack, in a model that is an encoder-decoder or not."""
    if stack == "vision":
        return "vision", "vision"
    if stack == "audio":
        return "audio", "audio"
    if stack == "queries":
        return "queries", "queries"
    if stack == "queries_cross":
        return "queries", "vision"
    if stack == "cross":
        return "tokens", "memory"
    return ("memory", "memory") if stack == "encoder" and encoder_decoder else ("tokens", "tokens")


@dataclass(frozen=True, eq=False)
class Forward:
    """The inputs of a forward pass.

    `seen`: tokens in the cache; `lengths`: tokens so far per token axis, if the inputs show them; `real`: for those
    axes, True for real tokens so far (no entry: all real). `tokens` are what the model reads or writes, `memory` is
    what the encoder of an encoder-decoder gives. `elsewhere`: axes whose padding mask covers something else, such as
    audio samples, so that only a layer's own mask shows its real tokens; `other_masks`: names of masks with padding
    that belong to no known axis; `text_alone`: whether all inputs are text. `prefix`: learned tokens that the model
    puts before its `ids`; they are real, and in the cache once it is filled. `main`: the input that has a row for each
    sample.
    """

    batch: int
    seen: int
    cache: Cache | None
    ids: Int[Tensor, "batch position"] | None
    real: Mapping[Axis, Bool[Tensor, "batch _"]] = field(default_factory=dict)
    prefix: int = 0
    lengths: Mapping[Axis, int] = field(default_factory=dict)
    elsewhere: frozenset[Axis] = frozenset()
    other_masks: tuple[str, ...] = ()
    text_alone: bool = False
    main: Tensor | None = None

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Forward:
        """Read the arguments of `model(*args, **kwargs)`. Raises `InputError` if there is no tensor among them."""
        named = arguments(model, args, kwargs)
        cache = given_cache(named)
        main = next((named[name] for name in MAIN_INPUTS if isinstance(named.get(name), Tensor)), None)
        main = main if main is not None else next((v for v in named.values() if isinstance(v, Tensor)), None)
        if main is None:
            raise InputError("the model was called without tensors")
        writes = is_encoder_decoder(model)
        prefix = "decoder_" if writes else ""
        new = _length(named, prefix)
        masks: dict[Axis, Any] = {
            "tokens": named.get(prefix + "attention_mask", None if writes or new is not None else _other_mask(named)),
            "memory": named.get("attention_mask" if writes else "encoder_attention_mask"),
        }
        padding = {axis: real for axis, mask in masks.items() if (real := _padding(mask)) is not None}
        learned = sink_tokens(model)
        if learned and "tokens" in padding:
            padding["tokens"] = functional.pad(padding["tokens"], (learned, 0), value=True)
        seen = 0 if cache is None else int(cache.get_seq_length())
        lengths: dict[Axis, int] = {}
        if new is not None:
            # Learned tokens are in the cache once it is filled, so they are added to the first pass only.
            lengths["tokens"] = (seen or learned) + new
        if (memory := _memory_length(named, writes)) is not None:
            lengths["memory"] = memory
        if padding and family(model) in PATCHING:
            raise UnsupportedModelError(
                f"family '{family(model)}' cuts its text into patches, padding as well: give samples of one length"
            )
        ids = named.get(prefix + "input_ids")
        return cls(
            batch=main.shape[0],
            seen=seen,
            cache=cache,
            ids=ids if isinstance(ids, Tensor) and ids.ndim == 2 and len(ids) == len(main) else None,
            real={axis: real for axis, real in padding.items() if axis in lengths},
            prefix=learned,
            lengths=lengths,
            elsewhere=frozenset(padding.keys() - lengths.keys()),
            text_alone=all(name in TEXT for name, value in named.items() if isinstance(value, Tensor)),
            other_masks=tuple(name for name in named if name.endswith("mask") and _hides(name, named[name])),
            main=main.detach(),
        )

    @cached_property
    def digests(self) -> list[int]:
        """A number for each row from what it says in this pass, without padded ids: the same in any batch."""
        rows = self.main if self.ids is None else self.ids
        assert rows is not None
        said = rows.detach().cpu().float().unbind()
        if self.ids is not None:
            start = self.seen or self.prefix
            real = self.tokens("tokens", start, start + rows.shape[1], torch.device("cpu")).valid
            if real is not None:
                said = tuple(row[keep] for row, keep in zip(said, real.expand(rows.shape), strict=True))
        return row_digests(said)

    def stated(self, axis: Axis, total: int) -> bool:
        """Whether the inputs show which of a layer's `total` tokens are real: they are the model's own sequence."""
        return self.lengths.get(axis) == total

    def start(self, axis: Axis) -> int:
        """Absolute position of the first column of this pass: only the tokens that a model writes are cached."""
        return self.seen if axis == "tokens" else 0

    def tokens(self, axis: Axis, start: int, stop: int, device: torch.device) -> TokenAxis:
        """The tokens of columns `start` … `stop` − 1, counted from the first cached one, followed by padding.

        Raises `UnsupportedModelError` if the model's mask covers something other than these tokens.
        """
        if axis in self.elsewhere:
            raise self._unknown(stop - start)
        real = self.real.get(axis)
        if real is None:
            return TokenAxis.plain(stop - start, start=start, device=device)
        real = functional.pad(real.to(device), (0, max(0, stop - real.shape[1])))
        return TokenAxis.padded(real).part(slice(start, stop))

    def at(self, axis: Axis, positions: tuple[int, ...] | None, hidden: Tensor) -> Bool[Tensor, "_ position"]:
        """Which columns of hidden states (batch, position, width) hold these positions; None: every real token."""
        start = self.start(axis)
        if axis in self.real and not self.stated(axis, start + hidden.shape[1]):
            raise self._unknown(hidden.shape[1])
        tokens = self.tokens(axis, start, start + hidden.shape[1], hidden.device)
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        return real if positions is None else real & torch.isin(tokens.order, tokens.order.new_tensor(positions))

    def _unknown(self, columns: int) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"the attention mask given to the model is not over the {columns} tokens of this stack, so which of them "
            "are real cannot be told: give samples of one length, without a mask"
        )


@dataclass(frozen=True, eq=False)
class Pass:
    """A running forward pass: how often each part was used so far, and what was noted as done.

    `masks`: the attention mask given to the first block of each stack, if blocks are read.
    """

    forward: Forward
    uses: dict[object, int] = field(default_factory=dict)
    noted: set[object] = field(default_factory=set)
    masks: dict[str, Tensor | None] = field(default_factory=dict)

    def use(self, owner: object) -> int:
        """Count a use of `owner`; returns the number of earlier uses in this pass."""
        count = self.uses.get(owner, 0)
        self.uses[owner] = count + 1
        return count

    def note(self, owner: object) -> None:
        """Note that `owner` did its part (`Passes.require`)."""
        self.noted.add(owner)


Opened = Callable[[Pass, tuple[Any, ...], dict[str, Any]], Any]
Closed = Callable[[Pass, Any], Any]


class Passes:
    """The forward passes of a model, one after the other.

    `opened(pass, args, kwargs)` runs before each and may return other (args, kwargs); `closed(pass, output)` runs after
    each that ended without an error and may return another output.
    """

    def __init__(self, model: nn.Module, opened: Opened | None = None, closed: Closed | None = None) -> None:
        self.model = model
        self.under_way: Pass | None = None
        self._last: Pass | None = None
        self._handled: BaseException | None = None
        self._opened, self._closed = opened, closed
        self._required: list[tuple[Callable[[Pass], bool], str]] = []

    def attach(self, stack: ExitStack, *, first: bool = False) -> None:
        """Follow the passes for as long as `stack` is open; `first`: end them before the caller's own hooks do."""
        begin = self.model.register_forward_pre_hook(self._begin, with_kwargs=True)
        end = self.model.register_forward_hook(self._end, always_call=True, prepend=first)
        stack.callback(begin.remove)
        stack.callback(end.remove)
        stack.callback(self._forget)

    def _forget(self) -> None:
        """Drop the callbacks: they hold this object, and a reference cycle would last until the collector runs."""
        self._opened = self._closed = None

    @property
    def now(self) -> Pass:
        """The running pass; while a backward pass recomputes a checkpoint, the checkpoint's pass. Raises `InputError`
        if none.
        """
        current = self._last if self.recomputing else self.under_way
        if current is None:
            raise InputError("the passes of a model are followed: call that model itself, not a part of it")
        return current

    @property
    def recomputing(self) -> bool:
        """Whether a backward pass runs parts of a finished pass again (gradient checkpointing)."""
        # There is a graph task only during a backward pass.
        return self.under_way is None and torch._C._current_graph_task_id() != -1

    def require(self, met: Callable[[Pass], bool], otherwise: str, stack: ExitStack) -> None:
        """Until `stack` closes, a pass for which `met` is false ends in an `UnsupportedModelError(otherwise)`.

        A hook that never fires looks like an edit without effect.
        """
        required = met, otherwise
        self._required.append(required)
        stack.callback(self._required.remove, required)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = Pass(Forward.of(model, args, kwargs))
        changed = None if self._opened is None else self._opened(begun, args, kwargs)
        # After `opened`, so that a pass that it refuses never begins.
        self.under_way = self._last = begun
        # The caller may run the model while handling an error, which is no failure of the pass.
        self._handled = sys.exception()
        return changed

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        done, self.under_way = self.under_way, None
        # An error in the model leaves no output. One in another hook, such as a refused pass, is being handled now.
        if done is None or output is None or sys.exception() is not self._handled:
            return None
        for met, otherwise in self._required:
            if not met(done):
                raise UnsupportedModelError(otherwise)
        return None if self._closed is None else self._closed(done, output)


def arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, including those passed through **kwargs."""
    names = _by_position(getattr(model.forward, "__func__", None))
    if len(args) <= len(names):  # binding would take as long as a small layer
        return dict(zip(names, args, strict=False)) | dict(kwargs)
    bound = parameters(model).bind_partial(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif bound.signature.parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL:
            named[name] = value
    return named


def parameters(model: nn.Module) -> inspect.Signature:
    """The signature of a model's forward, read once for each class: reading it takes as long as a small layer."""
    function = getattr(model.forward, "__func__", None)
    return inspect.signature(model.forward) if function is None else _without_self(function)


def cache_name(model: nn.Module) -> str | None:
    """The name under which a model's forward takes its cache of keys and values; None: it takes none."""
    return next((name for name in CACHE_NAMES if name in parameters(model).parameters), None)


def with_cache(model: nn.Module, cache: Cache | None) -> dict[str, Any]:
    """The cache as a named argument of `model`. Raises `UnsupportedModelError` for MiniMax, whose cache is its own."""
    if cache is not None and family(model) == "minimax":
        raise UnsupportedModelError("family 'minimax' brings a cache of its own")
    return {cache_name(model) or CACHE_NAMES[0]: cache}


def given_cache(named: Mapping[str, Any]) -> Cache | None:
    """The cache among the named arguments of a pass, under either name."""
    return next((named[name] for name in CACHE_NAMES if isinstance(named.get(name), Cache)), None)


def row_digests(rows: Iterable[Tensor]) -> list[int]:
    """A number for each row from the bytes of its values."""
    hashes = (hashlib.sha256(np.ascontiguousarray(row.numpy()).tobytes()) for row in rows)
    return [int.from_bytes(each.digest()[:6], "big") for each in hashes]


def without_cache(model: nn.Module) -> dict[str, bool]:
    """`use_cache=False` for a pass that keeps no keys and values; nothing for a model that does not take it."""
    return {"use_cache": False} if "use_cache" in parameters(model).parameters else {}


def without_logits(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a pass whose logits are not read: `use_cache=False` and `logits_to_keep=1`, if the model takes them.

    This saves the unembedding, a fifth of a small model's pass. With labels all logits are kept, since the loss needs
    them.
    """
    fewest = {} if "labels" in inputs else kept_logits(model)
    return fewest | without_cache(model)


def kept_logits(model: nn.Module) -> dict[str, Any]:
    """The argument that asks for the last token's logits only, if the model has it."""
    return {"logits_to_keep": 1} if "logits_to_keep" in parameters(model).parameters else {}


@lru_cache(maxsize=256)
def _by_position(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names of a method's positional parameters; empty unless it is a plain method."""
    if function is None:
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in _without_self(function).parameters.items() if one.kind in kinds)


@lru_cache(maxsize=256)
def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _other_mask(arguments: Mapping[str, Any]) -> Tensor | None:
    """The mask of a model without ids, under another name such as `padding_mask`."""
    masks = (value for name, value in arguments.items() if name.endswith("_mask") and isinstance(value, Tensor))
    return next((mask for mask in masks if mask.ndim == 2), None)


def _length(arguments: Mapping[str, Any], prefix: str) -> int | None:
    """Number of tokens in the inputs, as ids or embeddings; None for other inputs."""
    inputs = (arguments.get(prefix + name) for name in ("input_ids", "inputs_embeds"))
    return next((value.shape[1] for value in inputs if isinstance(value, Tensor)), None)


def _memory_length(arguments: Mapping[str, Any], writes: bool) -> int | None:
    """Number of tokens that cross-attention sees: encoder states in the inputs, or the encoder's inputs."""
    encoded = arguments.get("encoder_outputs" if writes else "encoder_hidden_states")
    states = encoded if isinstance(encoded, Tensor) else encoded[0] if encoded else None
    if isinstance(states, Tensor) and states.ndim == 3:
        return states.shape[1]
    return _length(arguments, "") if writes else None


def _hides(name: str, mask: Any) -> bool:
    """Whether an argument is a mask with padding that is not one of the text masks."""
    return name not in TEXT_MASKS and "head" not in name and _padding(mask) is not None


def _padding(mask: Any) -> Bool[Tensor, "batch position"] | None:
    """True for real tokens; None if the mask hides nothing, or is not a two-dimensional padding mask."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
        return None
    return mask.bool()


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def unobserved(module: nn.Module) -> nn.Module:
    """A copy of the module tree that shares parameters, buffers and settings, but has no hooks and is not observed."""
    # Without `__init__`, which would make weights again.
    twin: nn.Module = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__.update({name: type(hooks)() for name, hooks in module.__dict__.items() if name in _HOOKS})
    children = module._modules.items()
    twin.__dict__["_modules"] = {name: None if child is None else unobserved(child) for name, child in children}
    return twin


@dataclass(eq=False)
class Samples:
    """Samples that go through a model together, from their first pass to the last that continues their cache.

    `first`: tokens that were in the cache before the first pass; `length`: tokens by now.
    """

    size: int
    first: int
    length: int = 0
    prefix: int = 0
    cache: Cache | None = None
    ids: list[Tensor] = field(default_factory=list)
    real: dict[Axis, Tensor] = field(default_factory=dict)

    def continues(self, forward: Forward) -> bool:
        """Whether `forward` continues their cache. Raises `InputError` if the cache was changed in between."""
        if forward.seen == 0 or forward.cache is not self.cache or self.cache is None:
            return False
        if forward.seen != self.length or forward.batch != self.size:
            raise InputError(
                f"the cache holds {forward.batch} rows of {forward.seen} tokens, but {self.size} rows of {self.length} "
                "were observed: it was cropped or expanded between two passes (as assisted decoding does), and what "
                "was counted cannot be taken back; observe a plain decoding loop"
            )
        return True

    def extend(self, forward: Forward, length: int, cache: Cache | None) -> None:
        """Add the inputs of a finished pass, and keep its cache."""
        self.cache, self.length = cache, length
        self.real |= forward.real
        if forward.ids is not None:
            self.ids.append(forward.ids.detach())

    def token_ids(self) -> Int[np.ndarray, "batch position"] | None:
        """Ids of the real tokens, moved to the front, −1 after them and for learned tokens; None if some were not given
        as ids.
        """
        if not self.ids or self.first:  # nothing is known of tokens that were cached before
            return None
        ids = functional.pad(torch.cat(self.ids, 1).cpu(), (self.prefix, 0), value=-1)
        real = self.real["tokens"][:, : ids.shape[1]].cpu() if "tokens" in self.real else torch.ones_like(ids).bool()
        if real.shape != ids.shape:
            return None
        order = torch.argsort((~real).int(), dim=-1, stable=True)
        front = ids.gather(1, order)
        return front.masked_fill(torch.arange(ids.shape[1]) >= real.sum(-1, keepdim=True), -1).numpy()


def check_order(forward: Forward) -> None:
    """Raises `InputError` if beam search permuted the rows of the cache while something was watched or edited."""
    if forward.cache is not None and forward.seen and was_reordered(forward.cache):
        raise InputError("beam search reorders the rows of its cache, so they are no samples: observe one beam")


def cache_of(output: Any) -> Cache | None:
    """The cache that a forward pass returned, from a model output or a tuple."""
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else ()
    return next((value for value in values if isinstance(value, Cache)), None)


# Whether a model reads several tokens after its cache exactly as in one pass.
#
# transformers' Mamba layers start a scan of several tokens from an empty state, whatever the cache holds: silently, and
# in `generate` too. Single tokens are correct. Only a trial shows it.

PROBED = 4  # tokens, after as many
APART = 30  # this many times the one-by-one difference is more than rounding
_known: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def difference_behind(
    model: nn.Module, ids: Int[Tensor, "1 position"], first: int, cache: Cache | None = None, places: bool = False
) -> float:
    """Largest logit difference between reading later tokens at once after a cache of the first ones, and one pass.

    0 if rounding explains it. Rounding is the difference of reading tokens one by one, at most 1e-3 of the largest
    logit (0.05 in half precision).

    Args:
        model: A decoder.
        ids: The tokens of one row.
        first: How many of them are in the cache.
        cache: A cache of these; None: the model's own.
        places: Pass position ids, without which some families count from 0 in each pass.
    """
    positions_given = places and "position_ids" in parameters(model).parameters

    def read(start: int, stop: int, held: Cache | None) -> Any:
        at = {"position_ids": torch.arange(start, stop, device=ids.device)[None]} if positions_given else {}
        return model(ids[:, start:stop], **with_cache(model, held), use_cache=True, **at)

    with evaluating(model), torch.no_grad():
        whole = model(ids).logits[:, first:]
        held = cache_of(read(0, first, None)) if cache is None else cache
        # A pass writes into the cache that it is given, so each reading gets a copy.
        at_once = read(first, ids.shape[1], deepcopy(held)).logits.float()
        held = deepcopy(held)
        single = torch.cat([read(one, one + 1, held).logits.float() for one in range(first, ids.shape[1])], 1)
    half, whole = whole.dtype in (torch.float16, torch.bfloat16), whole.float()
    largest = float(whole.abs().max())
    rounding = max(APART * float((single - whole).abs().max()), APART * torch.finfo(torch.float32).eps * largest)
    apart = float((at_once - whole).abs().max())
    return 0.0 if apart <= min(rounding, (0.05 if half else 1e-3) * largest) else apart


def keeps_states(cache: Cache) -> bool:
    """Whether a cache holds states besides keys and values, which a pass may ignore."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in getattr(cache, "layers", ()))


def reads_at_once(model: nn.Module, cache: Cache) -> bool:
    """Whether several tokens after this cache may be read in one pass; tried once per model with states, on a few
    tokens.
    """
    if not keeps_states(cache):
        return True
    if model not in _known:
        ids = torch.arange(1, 2 * PROBED + 1, device=device_of(model))[None]
        _known[model] = difference_behind(unobserved(model), ids, PROBED, places=True)
    return _known[model] == 0


def check_continued(model: nn.Module, forward: Forward) -> None:
    """Raises `UnsupportedModelError` if a pass of several tokens continues states that the model forgets, or if a pass
    of a single token takes padding into the states: transformers masks padding only in passes of several tokens.
    """
    queries = forward.lengths.get("tokens", 0) - forward.seen
    real = forward.real.get("tokens")
    padded = real is not None and not bool(real[:, forward.seen :].all())
    if queries == 1 and padded and forward.cache is not None and keeps_states(forward.cache):
        raise UnsupportedModelError(
            f"family '{family(model)}': a pass of a single token takes padding into its states, so what follows would "
            "be wrong: read padded rows in passes of several tokens, or rows without padding"
        )
    if forward.cache is None or forward.seen == 0 or queries < 2 or reads_at_once(model, forward.cache):
        return
    raise UnsupportedModelError(
        f"family '{family(model)}': it reads {queries} tokens after its cache otherwise than in one pass (logits "
        f"differ by {_known[model]:.2g}, transformers' Mamba layers drop their state there): read the whole text at "
        "once, or go on token by token"
    )


def documents_of(
    model: nn.Module, forward: Forward, arguments: Mapping[str, Any], total: int
) -> Int[Tensor, "_ position"] | None:
    """The document number of each of `total` columns; None if the inputs do not separate documents.

    From `document_ids` of a lab model whose masks separate documents, from restarting positions (which transformers
    reads without a mask or cache), or from `cu_seq_lens` of one row. `arguments`: by name. Raises `InputError` for
    `document_ids` of another length.
    """
    numbers, places = arguments.get("document_ids"), arguments.get("position_ids")
    if isinstance(numbers, Tensor) and _keeps_documents_apart(model):
        if numbers.shape[-1] + forward.prefix != total:
            raise InputError(
                f"document_ids {tuple(numbers.shape)}: expected (batch, {total - forward.prefix}), one number for each "
                "token so far"
            )
        # Learned tokens get a number that no document has.
        return functional.pad(numbers, (forward.prefix, 0), value=int(numbers.min()) - 1)
    if arguments.get("attention_mask") is not None or forward.cache is not None or forward.prefix:
        return None
    if isinstance(places, Tensor) and places.ndim == 2 and places.shape[1] == total:
        # A document begins where a position does not follow the one before.
        anew = functional.pad(places.diff(dim=-1) != 1, (1, 0), value=False)
        if bool(anew.any()):
            return anew.cumsum(-1)
    ends = arguments.get("cu_seq_lens_q")
    if isinstance(ends, Tensor) and ends.ndim == 1 and forward.batch == 1 and int(ends[-1]) == total:
        # ends = [0, e₁, e₂, …]: the number of ends at or before a column is its document's.
        return torch.searchsorted(ends, torch.arange(total, device=ends.device), right=True)[None]
    return None


def _keeps_documents_apart(model: nn.Module) -> bool:
    """Whether some mask of a lab model separates documents."""
    specs = getattr(getattr(model, "config", None), "specs", ())
    return any(isinstance(leaf, Document) for spec in specs for leaf in leaves(spec.mask))
