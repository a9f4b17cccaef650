"""Families with attention of their own, pass by pass: the maps that they return, and the vectors behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn

from sinkscope.hooks import Computed, Forward, Passes, following, following_softmaxes
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.collected import Collector, Request
from sinkscope.measurement.calls.own import OwnCalls
from sinkscope.measurement.observers.observer import Observer

ALONE = "the family has attention of its own, of which weights are all that can be read"


class ReturnedMaps:
    """Asks a model for its maps in every pass, and gives the caller what they asked for.

    Raises `UnsupportedModelError` for a model that has no maps to give, or none under its implementation.
    """

    def __init__(self, model: nn.Module) -> None:
        self._collector, self._own = Collector(model), OwnCalls(model)
        self._request = Request(maps=False, as_tuple=False)
        self._unread: dict[str, str] = {}  # reason → the first layer

    def follow(self, model: nn.Module, passes: Passes, stack: ExitStack, vectors: bool) -> None:
        """Read masks from the scores of softmaxes, until `stack` closes; with `vectors`, keep what modules with
        attention of their own multiply."""
        following_softmaxes(model, self._collector.softmaxes.take, stack)
        if not vectors:
            return

        def attended(module: nn.Module, computed: Computed | str) -> None:
            if passes.under_way is not None:
                self._own.take(module, computed)

        stack.enter_context(following(model, attended))

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, all by name, with which the model gives its maps."""
        self._own.begin()
        asked, self._request = self._collector.ask(args, kwargs)
        return asked

    def calls(
        self, output: Any, forward: Forward, vectors: bool
    ) -> Iterator[tuple[AttentionCall, AttentionCall | None]]:
        """Layer by layer the map; where `vectors` are wanted and known, a call with queries, keys and values beside."""
        for returned in self._collector.calls(output, forward, self._request.encoded):
            known = self._own.call(returned) if vectors else None
            if isinstance(known, str):
                self._unread.setdefault(known, returned.layer.name)
                known = None
            yield returned, known

    def answer(self, output: Any) -> Any:
        """The model's output as the caller wants it."""
        return self._collector.answer(output, self._request)

    def not_measured(self, blind: Iterable[Observer]) -> dict[str, str]:
        """Why the `blind` observers, to whom maps alone say nothing, have no numbers, or not of every layer."""
        if not self._unread:
            return {}
        reasons = "; ".join(f"layer '{layer}': {reason}" for reason, layer in self._unread.items())
        return {type(observer).__name__: f"{ALONE}: {reasons}" for observer in blind}
