"""Attention calls, watched or edited through the one lookup where every attention layer finds its function.

The original function runs with its original arguments; only then do the watchers of that module see them. Name, mask
and keyword arguments are unchanged unless an editor changes them, other models are unaffected, and when the last
watcher and editor are gone the lookup is restored. Compiled models would skip the wrapper, so everything runs eagerly
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, Cache, EncoderDecoderCache

from sinkscope.attention import Bias, Causal, Full, Mask, TokenAxis, Visibility
from sinkscope.attention.functional import DenseVisibility
from sinkscope.errors import UnsupportedModelError

# The call of an attention layer of a transformers model with an attached operation.
#
# Its attention function receives a mask in transformers' form, a tensor or None, and not the block's input. The values
# that it uses instead are stored on the module during a call, so that observers read what the layer used.

IMPLEMENTATION = "sinkscope_attached"  # the name under which attached layers find their attention function
EVERYTHING = Full()
PLACE = "hosted"  # the attribute of an attention module that holds its current call


@dataclass(frozen=True, eq=False)
class Hosted:
    """One call of an attached layer: its block's input, tokens in its cache before (a tensor in a graph with a static
    cache), and, as soon as its attention function has run, the mask as a `Visibility` and what was added to the scores.
    """

    hidden: Float[Tensor, "batch query width"]
    seen: int | Tensor = 0
    visibility: Visibility | None = None
    bias: Bias | None = None


def hosted(module: nn.Module) -> dict[str, Any]:
    """Replacements for arguments of an attached layer's attention function; empty for any other layer."""
    call = getattr(module, PLACE, None)
    if not isinstance(call, Hosted) or call.visibility is None:
        return {}
    known = {"attention_mask": call.visibility, "hidden_states": call.hidden, "bias": call.bias}
    # A softcap is part of the bias; the host's own sink is one of the operation's slots.
    return known | {"carried": None, "softcap": None, "s_aux": None}


@dataclass(frozen=True, eq=False)
class Joined:
    """An operation's mask and what a host may say without a tensor, joined in advance: during tracing no mask can be
    constructed (constructors validate). `added` is the operation's mask, None if it adds nothing.
    """

    added: Mask | None
    causal: Mask
    full: Mask

    @classmethod
    def of(cls, mask: Mask) -> Joined:
        """The default, `Causal()`, adds nothing, so that a bidirectional host stays one."""
        return cls(None, Causal(), Full()) if mask == Causal() else cls(mask, Causal() & mask, Full() & mask)


def visibility_of(
    mask: Tensor | None,
    joined: Joined,
    causal: bool,
    query: TokenAxis,
    key: TokenAxis,
    refuse: Callable[[str], Exception],
) -> Visibility:
    """The host's mask and an operation's, combined.

    Args:
        mask: What transformers' `sdpa_mask` gives, booleans (batch, 1, query, key), longer than the keys if a static
            cache has room; None for "everything, or everything up to the query where the layer is `causal`".
        joined: The operation's mask.
        causal: Whether queries of this layer see no later keys.
        query, key: Places in the row, including padding.
        refuse: Makes the error that is raised for a mask of the wrong shape, or one that does more than hide keys.
    """
    if mask is None:
        # With as many queries as keys, one object for both: by that identity a square call is recognized.
        return Visibility(joined.causal if causal else joined.full, key if query.count == key.count else query, key)
    allowed = _booleans(mask, refuse)[..., : key.count]
    if allowed.ndim != 4 or allowed.shape[1] != 1 or allowed.shape[2:] != (query.count, key.count):
        raise refuse(f"its mask {tuple(mask.shape)} is not (batch, 1, {query.count} queries, {key.count} keys)")
    place = (allowed.sum(-1)[:, 0] - 1).clamp(min=0)  # in a causal row without a window: real tokens before it
    if joined.added is not None:
        allowed = allowed & joined.added.visible(query, key)[:, None]
    return DenseVisibility(EVERYTHING, TokenAxis(place, None, allowed.any(-1)[:, 0]), key, allowed)


def _booleans(mask: Tensor, refuse: Callable[[str], Exception]) -> Bool[Tensor, "_ _ query key"]:
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise refuse(f"a mask of {mask.dtype} is ambiguous: use booleans, True = may attend")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if bool(((mask != 0) & ~hidden).any()):
        raise refuse("its mask adds numbers to scores, which is no mask but a bias")
    return ~hidden


ARGUMENTS = ("query", "key", "value", "attention_mask")  # of an attention function, by position
_COMPOSITE = torch.ops.aten.scaled_dot_product_attention.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _cannot(**changed: Any) -> Tensor:
    raise UnsupportedModelError("this attention call was read off elsewhere: its function is not at hand to run again")


@dataclass(frozen=True, eq=False)
class Invocation:
    """One use of an attention function: the name under which it was looked up, its arguments, and its output.

    `arguments`: by name, including those of `ARGUMENTS`; queries and keys (batch, heads, position, dim) after rotation
    and cache. `output`: (batch, query, heads, dim), transformers' layout. `kernel_lse`: the log-sum-exp of the CPU
    flash kernel, fp32 (batch, heads, query), if that kernel ran; invalid if its number of queries differs from the
    call's. `again(value=…)` runs the function again with these arguments replaced, and returns its output; watchers do
    not see that call.
    """

    module: nn.Module
    implementation: str | None
    arguments: Mapping[str, Any]
    output: Tensor
    kernel_lse: Tensor | None
    again: Callable[..., Tensor] = field(default=_cannot, repr=False)


@runtime_checkable
class Watcher(Protocol):
    """Something that watches attention calls."""

    def watches(self, module: nn.Module) -> bool:
        """Whether to see calls of this module."""

    def attended(self, invocation: Invocation) -> None:
        """Called with each call after it ran."""


class Editor:
    """Something that changes the arguments or outputs of attention functions.

    Watchers see the arguments after all edits, and the output before any. `masks`: whether it changes which keys a
    query sees, so that a mask no longer shows what the model separates.
    """

    masks: ClassVar[bool] = False

    def edits(self, module: nn.Module) -> bool:
        """Whether to change calls of this module."""
        raise NotImplementedError

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, by name, to use instead of these."""
        return arguments

    def attending(self, module: nn.Module, attend: Callable[..., Any]) -> Callable[..., Any]:
        """The attention function to run instead of this one. It must return the same kind of output."""
        return attend

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        """The output (batch, query, heads, dim) to use instead of this one."""
        return output


class KernelLse(TorchDispatchMode):
    """Runs every operator unchanged, and keeps the CPU flash kernel's second result: lse, fp32 (batch, heads, query).

    Outputs are bit-identical. `lse` is None if another kernel ran, and for several calls unless they are consecutive
    blocks of queries (`in_blocks`).
    """

    supports_higher_order_operators = True  # flex_attention is one; without this torch refuses to run it here

    def __init__(self, in_blocks: bool = False) -> None:
        super().__init__()
        self._in_blocks = in_blocks
        self._seen: list[Tensor] = []

    @property
    def lse(self) -> Tensor | None:
        if len(self._seen) < 2:
            return self._seen[0] if self._seen else None
        joinable = self._in_blocks and len({lse.shape[:2] for lse in self._seen}) == 1
        return torch.cat(self._seen, 2) if joinable else None

    def __torch_dispatch__(
        self, operator: Any, types: Sequence[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operator is _COMPOSITE:  # in inference mode it arrives undecomposed; we need its parts
            # A mode is off while it handles an operator; entered again, it sees the parts.
            with self:
                return operator.decompose(*args, **kwargs)
        result = operator(*args, **kwargs)
        if operator is _FLASH:
            self._seen.append(result[1].detach())
        return result


def _called(
    attend: Callable[..., Any], module: nn.Module, positional: tuple[Any, ...], arguments: Mapping[str, Any]
) -> Any:
    """Call the function on these arguments, as many of them by position as in `positional`."""
    # Positional arguments stay positional: not every attention function uses these names.
    names = ARGUMENTS[: len(positional)]
    named = {name: value for name, value in arguments.items() if name not in names}
    return attend(module, *(arguments[name] for name in names), *positional[len(ARGUMENTS) :], **named)


_watchers: list[Watcher] = []
_editors: list[Editor] = []
_installed = ExitStack()
_reordered: WeakSet[Cache] = WeakSet()


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Show `watcher` the attention calls that it watches. Any number may watch at once and end in any order."""
    with _member(watcher, _watchers):
        yield


@contextmanager
def editing(editor: Editor) -> Iterator[None]:
    """Let `editor` change attention calls; several edit in order of entry.

    Watchers see the changed arguments and the output computed from them, whichever came first.
    """
    with _member(editor, _editors):
        yield


def editors_of(module: nn.Module) -> list[Editor]:
    """The current editors of this module, in order of entry."""
    return [editor for editor in _editors if editor.edits(module)]


def masked(module: nn.Module, but: Editor | None = None) -> bool:
    """Whether an editor, except `but`, changes which keys the queries of this module see."""
    return any(editor.masks and editor is not but for editor in editors_of(module))


def was_reordered(cache: Cache) -> bool:
    """Whether beam search permuted the rows of this cache while something was observed."""
    return cache in _reordered


@contextmanager
def _member(one: Any, members: list[Any]) -> Iterator[None]:
    """Keep `one` among `members` inside the block; the lookup is wrapped while there are members."""
    if not _watchers and not _editors:
        _install()
    members.append(one)
    try:
        yield
    finally:
        # In place, because the wrapper reads this list; by identity, because members may compare equal.
        members[:] = [other for other in members if other is not one]
        if not _watchers and not _editors:
            _installed.close()


def _install() -> None:
    _replace(AttentionInterface, "get_interface", _observed_lookup)
    for kind in (Cache, EncoderDecoderCache):
        _replace(kind, "reorder_cache", _noted_reorder)
    _installed.callback(_reordered.clear)
    _installed.enter_context(torch.compiler.set_stance("force_eager"))


def _replace(owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = vars(owner)[name]
    wrapped = wrap(original)
    setattr(owner, name, wrapped)

    def restore() -> None:
        # If other code has wrapped it since, that stays; our wrapper inside passes calls on when it has no members.
        if vars(owner)[name] is wrapped:
            setattr(owner, name, original)

    _installed.callback(restore)


def _observed_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_interface(self: AttentionInterface, implementation: str | None, default: Callable[..., Any]) -> Any:
        attend = original(self, implementation, default)

        def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            editors = editors_of(module)
            watchers = [watcher for watcher in _watchers if watcher.watches(module)]
            if not editors and not watchers:
                return attend(module, *args, **kwargs)
            arguments = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
            for editor in editors:
                arguments = editor.given(module, implementation, arguments)
            chosen = attend
            for editor in editors:
                chosen = editor.attending(module, chosen)
            function = partial(_called, chosen, module, args)
            # Lab and attached layers run the kernel once per block of queries; other layers may split calls in any way.
            kernel = KernelLse(in_blocks=hasattr(module, "operation")) if watchers else nullcontext()
            with kernel:
                result = function(arguments)
            # Watchers before `returned`: the output they see must follow from the arguments they see.
            for watcher in watchers:
                shown = Invocation(
                    module,
                    implementation,
                    arguments,
                    result[0],
                    kernel.lse if isinstance(kernel, KernelLse) else None,
                    lambda **changed: function(arguments | changed)[0],
                )
                watcher.attended(shown)
            for editor in editors:
                changed = editor.returned(module, result[0])
                if changed is not result[0]:
                    changed = changed.contiguous()  # some hosts view it as (batch, query, width)
                result = (changed, *result[1:])
            return result

        return observed

    return get_interface


def _noted_reorder(original: Callable[..., Any]) -> Callable[..., Any]:
    def reorder_cache(self: Cache, *args: Any, **kwargs: Any) -> Any:
        _reordered.add(self)
        return original(self, *args, **kwargs)

    return reorder_cache
