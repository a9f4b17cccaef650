"""A model that runs without being seen: for passes that are no part of what anybody watches, counts or changes."""

from __future__ import annotations

from torch import nn

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
    """A twin that shares parameters, buffers and settings, all the way down, but has no hooks and is nobody's layer."""
    twin: nn.Module = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__.update({name: type(hooks)() for name, hooks in module.__dict__.items() if name in _HOOKS})
    children = module._modules.items()
    twin.__dict__["_modules"] = {name: None if child is None else unobserved(child) for name, child in children}
    return twin
