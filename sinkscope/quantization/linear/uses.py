"""Checks that the changed maps were called: a hook that never fires looks like an edit without effect."""

from __future__ import annotations

from contextlib import ExitStack

from torch import nn

from sinkscope.hooks import Passes, family
from sinkscope.quantization.linear.maps import LinearMap


class Uses:
    """Refuses passes in which the block of a map ran but the map did not, until `stack` closes.

    Its weight was then read directly. Experts without a token are accepted, and so are keys and values of
    cross-attention, which a cache keeps.
    """

    def __init__(self, passes: Passes, stack: ExitStack) -> None:
        self._passes, self._stack = passes, stack
        self._noting: set[nn.Module] = set()

    @classmethod
    def of(cls, model: nn.Module, stack: ExitStack) -> Uses:
        """For a model whose passes nothing follows yet."""
        passes = Passes(model)
        passes.attach(stack, first=True)
        return cls(passes, stack)

    def require(self, one: LinearMap) -> None:
        """From now on, a pass that runs the block of `one` without `used(one)` raises `UnsupportedModelError`."""
        if one.block is None or one.routed or one.crosses:
            return
        block = one.block
        if block not in self._noting:
            self._noting.add(block)
            hook = block.register_forward_pre_hook(lambda module, args: self._note(module), prepend=True)
            self._stack.callback(hook.remove)
        self._passes.require(
            lambda done: one in done.noted or block not in done.noted,
            f"family '{family(self._passes.model)}': '{one.path}' was not called in this pass (its weight may be "
            "read directly), so its input was not changed; name it in skip",
            self._stack,
        )

    def used(self, one: LinearMap) -> None:
        """Note that `one` was called in this pass."""
        self._note(one)

    def _note(self, what: object) -> None:
        if self._passes.under_way is not None:
            self._passes.under_way.note(what)
