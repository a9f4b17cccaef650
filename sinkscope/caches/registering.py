"""Registration of policies from other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from sinkscope.caches.policies import POLICIES
from sinkscope.caches.policies.policy import Policy
from sinkscope.registry import check_kind, dashed, taking

Kind = TypeVar("Kind", bound=type[Policy])


@overload
def policy(kind: Kind) -> Kind: ...
@overload
def policy(kind: str) -> Callable[[Kind], Kind]: ...


@taking("policy")
def policy(kind: type[Policy] | str) -> type[Policy] | Callable[[type[Policy]], type[Policy]]:
    """Register a class of eviction policies: `@sinkscope.policy`, or `@sinkscope.policy("its-name")`.

    The name then selects the policy with its defaults wherever a policy is named: `ss.evicting(model, "long-values",
    64)`, `sinkscope cache --policy long-values`, and the lists in help. Without a name, `LongValues` is called
    `long-values`. Raises `InputError` for anything but a `Policy`, for one that needs arguments, and for a name that is
    taken.
    """
    if isinstance(kind, str):
        return lambda decorated: _registered(decorated, kind)
    return _registered(kind)


def _registered(kind: type[Policy], name: str | None = None) -> type[Policy]:
    check_kind(kind, Policy, "policy", "its name stands for it with its defaults")
    if name is None and kind in {*POLICIES.own.values(), *POLICIES.added.values()}:  # under the name that it has
        return kind
    POLICIES.add(name or dashed(kind.__name__), kind)
    return kind
