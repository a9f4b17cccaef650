"""Attention that a family computes in its own code, observed through its two products and its softmax.

BLOOM, MPT, Falcon, GPT-Neo, GPT-J, CodeGen and others multiply queries with keys, take the softmax, and multiply with
values in the `forward` of their attention modules. Each of the three can be read and changed there, with its inputs:
queries and keys after rotation and cache. A module's output is bit-identical unless an editor changes it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.dispatch import Editor, editors_of
from sinkscope.hooks.modules import family
from sinkscope.hooks.names import own_attention
from sinkscope.hooks.projections import head_count

SOFTMAXES = {functional.softmax, torch.softmax, torch.Tensor.softmax}
HIDDEN = 32  # scores below the dtype's minimum over this are masks: families add it, and divide by √(head width) after
REPLACED = (-1e4, -9984.0)  # what OpenAI GPT writes over hidden scores; the second is its bfloat16 rounding

Seen = Callable[[Float[Tensor, "*rows key"], Float[Tensor, "*rows key"]], object]


def unmasked(scores: Float[Tensor, "*rows key"], dtype: torch.dtype | None = None) -> Bool[Tensor, "*rows key"]:
    """True where no mask has hidden a score before the softmax; `dtype`: the model's, if scores may be wider.

    A mask leaves −inf, the lowest number of a dtype (over √(head width), if added before scores are scaled), or exactly
    −10,000. A score that is low by itself stays visible, even if its weight underflows to 0.
    """
    visible = scores > torch.finfo(dtype or scores.dtype).min / HIDDEN
    for value in REPLACED:
        visible &= scores != value
    return visible


def following_softmaxes(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """Show the scores and the weights of each softmax of the model's passes to `seen`, until `stack` closes.

    Several may follow a model at once: the modes of a pass end in the reverse of the order in which they began.
    """
    watching = _Watching(seen)
    begin = model.register_forward_pre_hook(lambda module, args: watching.begin())
    end = model.register_forward_hook(lambda module, args, output: watching.end(), always_call=True, prepend=True)
    for undo in (watching.end, end.remove, begin.remove):
        stack.callback(undo)


class _Watching(TorchFunctionMode):
    """The mode of one follower, on during a pass."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen, self._on = seen, False

    def begin(self) -> None:
        if not self._on:
            self._on = True
            self.__enter__()

    def end(self) -> None:
        """Also of a pass that ended in an error, and of one that never began."""
        if self._on:
            self._on = False
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SOFTMAXES:
            scores = args[0] if args else (kwargs or {})["input"]
            self._seen(scores.detach(), result.detach())
        return result


PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.bmm, torch.Tensor.bmm, torch.baddbmm, torch.Tensor.baddbmm}
WITH_ADDEND = {torch.baddbmm, torch.Tensor.baddbmm}


@dataclass(frozen=True, eq=False)
class Computed:
    """One use of a module with its own attention code: the inputs of its products.

    `query`, `key`, `value`, `output`: (batch, heads, position, dim), as they were multiplied; key-value heads may be
    fewer. `rows`: some of its queries, with their `scores` before the softmax; `visible`: keys that no mask had hidden.
    `arguments`: the module's tensors by name.
    """

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"]
    output: Float[Tensor, "batch heads query value_dim"]
    rows: tuple[int, ...]
    scores: Float[Tensor, "batch heads n key"]
    visible: Bool[Tensor, "batch _ query key"]
    arguments: dict[str, Tensor]


Reader = Callable[[nn.Module, "Computed | str"], object]


@dataclass(eq=False)
class _Entry:
    """The followers of a module, their number, and a `forward` that other code had set on it."""

    readers: list[Reader] = field(default_factory=list)
    users: int = 0
    before: Callable[..., Any] | None = None


_followed: dict[nn.Module, _Entry] = {}


@contextmanager
def following(model: nn.Module, read: Reader | None = None) -> Iterator[None]:
    """Let editors change attention that a model computes in its own code, and show each use of it to `read`.

    `read(module, computed)` gets a sentence instead of `Computed` if the factors cannot be identified. Any number may
    follow at once and end in any order; readers see the edited tensors. Does nothing for a model that dispatches.
    """
    modules = list(own_attention(model))
    for module in modules:
        _enter(model, module, read)
    try:
        yield
    finally:
        for module in modules:
            _leave(module, read)


def _enter(model: nn.Module, module: nn.Module, read: Reader | None) -> None:
    if module not in _followed:
        # Only a forward that was set on the instance is put back; deleting ours uncovers that of the class.
        _followed[module] = _Entry(before=vars(module).get("forward"))
        module.forward = _wrapped(module, module.forward, head_count(model, module))
    _followed[module].users += 1
    if read is not None:
        _followed[module].readers.append(read)


def _leave(module: nn.Module, read: Reader | None) -> None:
    entry = _followed[module]
    entry.users -= 1
    entry.readers = [other for other in entry.readers if other is not read]
    if not entry.users:
        del _followed[module]
        del module.forward
        if entry.before is not None:
            module.forward = entry.before


def _wrapped(module: nn.Module, forward: Callable[..., Any], heads: int) -> Callable[..., Any]:
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def followed(*args: Any, **kwargs: Any) -> Any:
        entry, editors = _followed.get(module, _Entry()), editors_of(module)
        if not entry.readers and not editors:
            return forward(*args, **kwargs)
        mode = _Products(module, heads, editors, keep=bool(entry.readers))
        with mode:
            result = forward(*args, **kwargs)
        if entry.readers:
            named = signature.bind_partial(*args, **kwargs).arguments
            computed = mode.computed({name: value for name, value in named.items() if isinstance(value, Tensor)})
            for read in entry.readers:
                read(module, computed)
        return result

    return followed


class _Products(TorchFunctionMode):
    """Intercepts the products and the softmax of one use of a module, and lets its editors change them."""

    def __init__(self, module: nn.Module, heads: int, editors: list[Editor], keep: bool) -> None:
        super().__init__()
        self._module, self._heads, self._editors, self._keep = module, heads, editors, keep
        self._before: list[tuple[Tensor, Tensor, torch.Size]] = []  # factors of products until the softmax, and shapes
        self._softmaxes = 0
        self._weights: torch.Size | None = None
        self._factors: tuple[Tensor, Tensor] | None = None
        self._scores: Tensor | None = None
        self._visible: Tensor | None = None
        self._value: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in SOFTMAXES:
            return self._softmax(func, args, kwargs)
        result = func(*args, **kwargs)
        return self._product(func, args, kwargs, result) if func in PRODUCTS else result

    def computed(self, arguments: dict[str, Tensor]) -> Computed | str:
        """The factors of the products, or why they cannot be identified."""
        if self._softmaxes != 1 or self._scores is None or self._visible is None:
            return f"it takes {self._softmaxes} softmaxes of scores (head, query, key) where one was looked for"
        if self._factors is None:
            return "its scores are not one product of queries and keys"
        if self._value is None:
            return "its weights are not multiplied with values"
        batch, heads, queries, keys = self._visible.shape
        parts = (*self._factors, *self._value)
        if any(part.ndim not in (3, 4) or part.shape[:-2].numel() % batch for part in parts):
            return "its queries, keys and values are no vectors of (sample, head, position)"
        query, key, value, output = (part.reshape(batch, -1, *part.shape[-2:]) for part in parts)
        # The second factor of the scores is Kᵀ, (batch, kv_heads, dim, key).
        expected = (heads, queries), (keys, keys), (heads, queries)
        if (query.shape[1:3], (key.shape[3], value.shape[2]), output.shape[1:3]) != expected or heads % key.shape[1]:
            return "its queries, keys and values do not fit to each other"
        shared = self._visible[:, :1]
        return Computed(
            query=query,
            key=key.mT,
            value=value,
            output=output,
            rows=_rows(queries),
            scores=self._scores,
            visible=shared if bool((self._visible == shared).all()) else self._visible,
            arguments=arguments,
        )

    def _softmax(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        named = "input" if not args else None
        scores: Tensor = args[0] if named is None else kwargs[named]
        if not self._are_scores(scores):
            return func(*args, **kwargs)
        self._softmaxes += 1
        size = scores.numel(), scores.shape[-2:]
        # If a single product since the last softmax has the scores' size, it is q·k; among several it is unknown.
        products = [(a, b) for a, b, shape in self._before if (shape.numel(), shape[-2:]) == size]
        self._factors = products[0] if len(products) == 1 else None
        self._before.clear()
        scores = self._edited(scores)
        self._weights = scores.shape
        if self._keep:
            # (batch · heads, query, key) or (batch, heads, query, key) → (batch, heads, query, key)
            inside = scores.detach().reshape(-1, self._heads, *scores.shape[-2:])
            self._visible = unmasked(inside, self._dtype(scores))
            self._scores = inside[:, :, list(_rows(inside.shape[2]))]
        return func(scores, *args[1:], **kwargs) if named is None else func(**{**kwargs, named: scores})

    def _product(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Tensor) -> Tensor:
        one, other = _factors(func, args, kwargs)
        if self._weights is None:
            if result.ndim >= 3:
                self._before.append((one.detach(), other.detach(), result.shape))
            return result
        # The first product whose left factor has the shape of the weights is Σ A v.
        if self._value is None and one.numel() == self._weights.numel() and one.shape[-2:] == self._weights[-2:]:
            self._value = other.detach(), result.detach()
            for editor in self._editors:
                heads = result.reshape(-1, self._heads, *result.shape[-2:]).transpose(1, 2)
                result = editor.returned(self._module, heads).transpose(1, 2).reshape(result.shape)
        return result

    def _are_scores(self, scores: Tensor) -> bool:
        """Whether the rows of a softmax are those of this module's heads: (batch · heads, query, key)."""
        return scores.ndim in (3, 4) and scores.shape[-3] % self._heads == 0 and scores.shape[-2:].numel() > 0

    def _edited(self, scores: Tensor) -> Tensor:
        """The scores with what the editors hide set to the lowest number."""
        if not self._editors:
            return scores
        inside = scores.reshape(-1, self._heads, *scores.shape[-2:])
        visible = unmasked(inside, self._dtype(scores))
        # Queries and keys are not at hand: empty ones let editors read the sizes, and show below if one is replaced.
        query, key = inside.new_empty(*inside.shape[:3], 0), inside.new_empty(*inside.shape[:2], inside.shape[3], 0)
        arguments: dict[str, Any] = {"query": query, "key": key, "value": key, "attention_mask": visible}
        for editor in self._editors:
            changed = editor.given(self._module, "eager", arguments)
            if any(changed.get(name) is not value for name, value in arguments.items() if name != "attention_mask"):
                raise UnsupportedModelError(
                    f"family '{family(self._module)}', {type(self._module).__name__}: it computes attention in code "
                    "of its own, in which visibility and head outputs can be changed, but not queries, keys and "
                    "values; edit its projections"
                )
            arguments = changed
        # Scores that the model has hidden keep the value that it gave them.
        hidden = visible & ~arguments["attention_mask"]
        return inside.masked_fill(hidden, torch.finfo(scores.dtype).min).reshape(scores.shape)

    def _dtype(self, scores: Tensor) -> torch.dtype:
        """The module's dtype, in which masks are made; scores may be wider."""
        dtypes = (parameter.dtype for parameter in self._module.parameters() if parameter.is_floating_point())
        return next(dtypes, scores.dtype)


def _rows(queries: int) -> tuple[int, ...]:
    return tuple(sorted({queries // 2, queries - 1}))


def _factors(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The two factors of a product, by the names in its signature."""
    known = list(args[1:] if func in WITH_ADDEND else args)
    named = (kwargs[name] for name in ("batch1", "batch2", "tensor1", "mat2", "other") if name in kwargs)
    one, other, *_ = (*known, *named)
    return one, other
