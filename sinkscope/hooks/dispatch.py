"""Attention calls, watched or edited through the one lookup where every attention layer finds its function.

The original function runs with the arguments it was given; only then do the watchers of that module see them. Name,
mask and keyword arguments stay as they are unless an editor changes them, other models are left alone, and when the
last watcher and the last editor are gone the lookup is what it was before. Compiled models would skip the wrapper, so
everything runs eagerly meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, Cache, EncoderDecoderCache

from sinkscope.errors import UnsupportedModelError

ARGUMENTS = ("query", "key", "value", "attention_mask")  # of an attention function, by position
_COMPOSITE = torch.ops.aten.scaled_dot_product_attention.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _cannot(**changed: Any) -> Tensor:
    raise UnsupportedModelError("this attention call was read off elsewhere: its function is not at hand to run again")


@dataclass(frozen=True, eq=False)
class Invocation:
    """One use of an attention function: the name it was looked up by, what it was given, and what it returned.

    `arguments`: by name, those of `ARGUMENTS` among them, queries and keys (batch, heads, position, dim) as they are
    behind rotation and cache. `output`: (batch, query, heads, dim), the layout that transformers asks for.
    `kernel_lse`: the log-sum-exp that the CPU flash kernel computed, fp32 (batch, heads, query), where it was that; not
    to be read where its queries are more or fewer than those of the call. `again(value=…)` runs the function once more
    with other arguments in the place of these, and returns its output; nobody is shown that call.
    """

    module: nn.Module
    implementation: str | None
    arguments: Mapping[str, Any]
    output: Tensor
    kernel_lse: Tensor | None
    again: Callable[..., Tensor] = field(default=_cannot, repr=False)


@runtime_checkable
class Watcher(Protocol):
    """Who wants to see attention calls."""

    def watches(self, module: nn.Module) -> bool:
        """Whether calls of this module are shown."""

    def attended(self, invocation: Invocation) -> None:
        """Take in a call, after it ran."""


class Editor:
    """Who changes what attention functions are given, or what they return.

    Watchers see what the function was given after all edits, and what it returned before any. `masks`: whether it
    changes which keys a query sees, so that a mask no longer tells what the model keeps apart.
    """

    masks: ClassVar[bool] = False

    def edits(self, module: nn.Module) -> bool:
        """Whether calls of this module are changed."""
        raise NotImplementedError

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, by name, to run with in place of these."""
        return arguments

    def attending(self, module: nn.Module, attend: Callable[..., Any]) -> Callable[..., Any]:
        """The attention function to run in place of this one. It must give what that one gives."""
        return attend

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        """The output (batch, query, heads, dim) to go on with, in place of this one."""
        return output


class KernelLse(TorchDispatchMode):
    """Runs every operator as it is, and keeps the second result of the CPU flash kernel: lse, fp32 (batch, heads,
    query).

    Nothing is replaced, so outputs are bit-identical. `lse` stays None where another kernel ran, which keeps no
    log-sum-exp. Of several calls it is None too, unless they are `in_blocks` of queries, one after the other.
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
        if operator is _COMPOSITE:  # arrives whole in inference mode; its parts are what we look for
            with self:
                return operator.decompose(*args, **kwargs)
        result = operator(*args, **kwargs)
        if operator is _FLASH:
            self._seen.append(result[1].detach())
        return result


Called = Callable[[Mapping[str, Any]], Any]  # an attention function with its module, by its arguments' names


def _called(attend: Callable[..., Any], module: nn.Module, given: tuple[Any, ...], arguments: Mapping[str, Any]) -> Any:
    """The function on these arguments, as many of them by position as were `given`."""
    # Positional ones stay positional: not every attention function gives them these names.
    names = ARGUMENTS[: len(given)]
    named = {name: value for name, value in arguments.items() if name not in names}
    return attend(module, *(arguments[name] for name in names), *given[len(ARGUMENTS) :], **named)


def _run_with_lse(function: Called, module: nn.Module, arguments: Mapping[str, Any]) -> tuple[Any, Tensor | None]:
    """The function's result, and the kernel's log-sum-exp where there was one."""
    own = hasattr(module, "operation")  # lab and attached layers; others may cut as they like
    with KernelLse(in_blocks=own) as mode:
        result = function(arguments)
    return result, mode.lse


def _run(function: Called, module: nn.Module, arguments: Mapping[str, Any]) -> tuple[Any, None]:
    return function(arguments), None


_watchers: list[Watcher] = []
_editors: list[Editor] = []
_installed = ExitStack()
_reordered: WeakSet[Cache] = WeakSet()


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Show all attention calls that `watcher` watches to it. Any number may watch at once and end in any order."""
    with _member(watcher, _watchers):
        yield


@contextmanager
def editing(editor: Editor) -> Iterator[None]:
    """Let `editor` change attention calls; several edit one after the other, the oldest first.

    Watchers see the changed arguments, whoever of them and the editors came first, and the output that follows from
    them.
    """
    with _member(editor, _editors):
        yield


def editors_of(module: nn.Module) -> list[Editor]:
    """Who changes calls of this module now, the oldest first."""
    return [editor for editor in _editors if editor.edits(module)]


def masked(module: nn.Module, but: Editor | None = None) -> bool:
    """Whether an editor, other than `but`, changes which keys the queries of this module see."""
    return any(editor.masks and editor is not but for editor in editors_of(module))


def was_reordered(cache: Cache) -> bool:
    """Whether beam search permuted the rows of this cache while something was observed."""
    return cache in _reordered


@contextmanager
def _member(one: Any, members: list[Any]) -> Iterator[None]:
    """`one` among `members` for as long as the block lasts; the lookup is wrapped while there is any member."""
    if not _watchers and not _editors:
        _install()
    members.append(one)
    try:
        yield
    finally:
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
            result, lse = (_run_with_lse if watchers else _run)(function, module, arguments)
            for watcher in watchers:
                shown = Invocation(
                    module,
                    implementation,
                    arguments,
                    result[0],
                    lse,
                    lambda **changed: function(arguments | changed)[0],
                )
                watcher.attended(shown)
            for editor in editors:
                result = (editor.returned(module, result[0]), *result[1:])
            return result

        return observed

    return get_interface


def _noted_reorder(original: Callable[..., Any]) -> Callable[..., Any]:
    def reorder_cache(self: Cache, *args: Any, **kwargs: Any) -> Any:
        _reordered.add(self)
        return original(self, *args, **kwargs)

    return reorder_cache
