"""The one lookup through which every attention layer finds its function, wrapped while something is observed.

The original function runs with the arguments it was given; only then do the observers of that module's model see them.
Name, mask and keyword arguments stay as they are unless an intervention edits them, other models are untouched, and
when the last observation and the last intervention end the lookup is what it was before. Compiled models would skip the
wrapper, so everything runs eagerly meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, EncoderDecoderCache

from sinkscope.probes.calls import kernel


@dataclass(frozen=True, eq=False)
class Invocation:
    """One use of an attention function: the name it was looked up by, what it was given, and what it returned.

    `output` is (batch, query, heads, dim), the layout that transformers asks for.
    """

    module: nn.Module
    implementation: str | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor
    kernel_lse: Tensor | None


@runtime_checkable
class Watcher(Protocol):
    """Who wants to see attention calls."""

    def watches(self, module: nn.Module) -> bool: ...

    def attended(self, invocation: Invocation) -> None: ...


class Editor:
    """Who changes what attention functions are given, or what they return. Watchers see what ran in between."""

    def edits(self, module: nn.Module) -> bool:
        """Whether calls of this module are changed."""
        raise NotImplementedError

    def given(
        self, module: nn.Module, implementation: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to run with, in place of these."""
        return args, kwargs

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        """The output (batch, query, heads, dim) to go on with, in place of this one."""
        return output


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
            editors = [editor for editor in _editors if editor.edits(module)]
            for editor in editors:
                args, kwargs = editor.given(module, implementation, args, kwargs)
            result = seen(module, *args, **kwargs)
            for editor in editors:
                result = (editor.returned(module, result[0]), *result[1:])
            return result

        def seen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            watchers = [watcher for watcher in _watchers if watcher.watches(module)]
            if not watchers:
                return attend(module, *args, **kwargs)
            result, lse = kernel.run(attend, module, *args, **kwargs)
            for watcher in watchers:
                watcher.attended(Invocation(module, implementation, args, kwargs, result[0], lse))
            return result

        return observed

    return get_interface


def _noted_reorder(original: Callable[..., Any]) -> Callable[..., Any]:
    def reorder_cache(self: Cache, *args: Any, **kwargs: Any) -> Any:
        _reordered.add(self)
        return original(self, *args, **kwargs)

    return reorder_cache
