"""The calling conventions of attention functions in libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sinkscope.attention.oracle.cases import Case, Problem

Returned = tuple[Tensor, Tensor | None]


@runtime_checkable
class Style(Protocol):
    """A way to call a function."""

    def missing(self, function: Callable[..., Any], case: Case) -> str | None:
        """What this case needs and the function's signature lacks; None if it takes everything."""
        ...

    def call(self, function: Callable[..., Any], problem: Problem) -> Returned:
        """Its output (batch, heads, query, width), and log-sum-exp (batch, heads, query) if it gives one."""
        ...


class Plain:
    """function(query, key, value, *, scaling, causal[, window, softcap, sink, cu_seqlens]) -> output or (output, lse).

    Heads come before tokens: query (B, H, T, D), key (B, K, S, D), value (B, K, S, E), output (B, H, T, E), lse (B, H,
    T) in nats. Query head h reads key head h // (H / K). Queries are the last of the keys. A query at position t sees
    keys k ≤ t where causal, and |t − k| < window. `sink`: (H,), added to the denominator as it is. `cu_seqlens`: where
    packed texts begin, and the end, int32; B is 1 then. Arguments that a case does not need are not passed, so a
    function may take fewer.
    """

    def missing(self, function: Callable[..., Any], case: Case) -> str | None:
        wanted = [name for name in ("window", "softcap", "sink") if getattr(case, name) is not None]
        return _untaken(function, [*wanted, *(["cu_seqlens"] if case.texts else [])])

    def call(self, function: Callable[..., Any], problem: Problem) -> Returned:
        case = problem.case
        further: dict[str, Any] = {"window": case.window, "softcap": case.softcap, "sink": problem.sink}
        further["cu_seqlens"] = problem.ends if case.texts else None
        options = {name: value for name, value in further.items() if value is not None}
        returned = function(
            problem.query, problem.key, problem.value, scaling=problem.scaling, causal=case.causal, **options
        )
        return returned if isinstance(returned, tuple) else (returned, None)


class Interface:
    """function(module, query, key, value, attention_mask, scaling=…, dropout=0.0, …), as transformers calls it.

    The mask, window included, is written out as 0 and the dtype's lowest number, (B, 1, T, S); `sliding_window`,
    `softcap` and `s_aux` are passed where a case has them, and `is_causal`. `module` has `num_key_value_groups`,
    `sinks` and `is_causal`, is in eval mode, and has no config. Output (B, T, H, E), and what follows it is not read.
    """

    def missing(self, function: Callable[..., Any], case: Case) -> str | None:
        if "empty" in case.features and type(self) is Interface:
            return "a mask of numbers hides no whole row: what a query that sees nothing gets is not defined"
        return _untaken(function, ["softcap"] if case.softcap is not None else [])

    def call(self, function: Callable[..., Any], problem: Problem) -> Returned:
        case, module = problem.case, nn.Module().eval()
        known: Mapping[str, Any] = {
            "num_key_value_groups": case.heads // case.kv_heads,
            "sinks": problem.sink,
            "is_causal": case.causal,
            "scaling": problem.scaling,
            **self.further(),
        }
        for name, value in known.items():
            object.__setattr__(module, name, value)
        further = {"sliding_window": case.window, "softcap": case.softcap, "s_aux": problem.sink}
        options = {name: value for name, value in further.items() if value is not None}
        keywords = {
            "scaling": problem.scaling,
            "dropout": 0.0,
            "is_causal": case.causal,
            **options,
            **self.keywords(problem),
        }
        tensors = problem.query, problem.key, problem.value, self.mask(problem)
        returned = function(module, *tensors, **_taken(function, keywords))
        return returned[0].transpose(1, 2), None

    def mask(self, problem: Problem) -> Tensor | None:
        """The mask, as the function takes it."""
        hidden = torch.zeros(problem.case.queries, problem.case.keys, dtype=problem.query.dtype)
        hidden = hidden.to(problem.query.device).masked_fill(~problem.allowed(), torch.finfo(hidden.dtype).min)
        return hidden[None, None].expand(len(problem.query), 1, -1, -1)

    def keywords(self, problem: Problem) -> dict[str, Any]:
        """Further keyword arguments of the function."""
        return {}

    def further(self) -> dict[str, Any]:
        """Further attributes of the module."""
        return {}


class Unmasked(Interface):
    """As "transformers", but without a mask, for functions that mask by `is_causal` and `sliding_window`.

    These are the flash attentions; packed texts come as `cu_seq_lens_q` and so on, as transformers does. `module`
    has a `config` with `_attn_implementation`, by which transformers finds their kernel.
    """

    def __init__(self, implementation: str = "") -> None:
        self.implementation = implementation

    def mask(self, problem: Problem) -> None:
        return None

    def keywords(self, problem: Problem) -> dict[str, Any]:
        if not problem.case.texts:
            return {}
        ends, longest = problem.ends, max(problem.case.texts)
        return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}

    def further(self) -> dict[str, Any]:
        return {"config": SimpleNamespace(_attn_implementation=self.implementation)}


class Sdpa:
    """function(query, key, value, attn_mask=…, is_causal=…, scale=…, enable_gqa=…), as torch's own is called.

    `is_causal` where queries are the keys and there is no window, else a boolean mask. No sink, no softcap.
    """

    def missing(self, function: Callable[..., Any], case: Case) -> str | None:
        wanted = [name for name in ("softcap", "sink") if getattr(case, name) is not None]
        return f"takes no '{wanted[0]}'" if wanted else None

    def call(self, function: Callable[..., Any], problem: Problem) -> Returned:
        case = problem.case
        options: dict[str, Any] = {"scale": problem.scaling}
        if case.kv_heads != case.heads:
            options["enable_gqa"] = True
        if case.causal and case.window is None and case.queries == case.keys and not case.texts:
            options["is_causal"] = True
        elif case.causal or case.window is not None or case.texts:
            options["attn_mask"] = problem.allowed()
        returned = function(problem.query, problem.key, problem.value, **options)
        return returned if isinstance(returned, tuple) else (returned, None)


STYLES: dict[str, Style] = {
    "plain": Plain(),
    "transformers": Interface(),
    "unmasked": Unmasked(),
    "sdpa": Sdpa(),
}


def _untaken(function: Callable[..., Any], names: list[str]) -> str | None:
    """The first of these names that the function's signature lacks."""
    taken = _parameters(function)
    return next((f"takes no '{name}'" for name in names if taken is not None and name not in taken), None)


def _taken(function: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    taken = _parameters(function)
    return {name: value for name, value in keywords.items() if taken is None or name in taken}


def _parameters(function: Callable[..., Any]) -> set[str] | None:
    """Names of its parameters; None if it takes any, or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return None if any(one.kind is one.VAR_KEYWORD for one in parameters) else {one.name for one in parameters}
