"""Eviction in families that compute attention in code of their own, by policies that look at keys and values alone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from sinkscope.caches.budgets import Uniform
from sinkscope.caches.engine import Engine, Met, Plan
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import family, own_attention, text_config

# Their keys carry where they stood. What is not here sees keys by their index in the cache: ALiBi (BLOOM, MPT), local
# layers (GPT-Neo).
PLACED = ("gptj", "codegen", "falcon", "xglm")


class OwnEngine(Engine):
    """Scores behind each attention module, which has attended to all keys by then, and evicts.

    No query and no weight is known here, and the mask is transformers' own, so heads and rows keep equally many.
    """

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Follow the model's attention modules for as long as `stack` is open."""
        for module in own_attention(model):
            stack.callback(module.register_forward_hook(self._attended).remove)

    def edits(self, module: nn.Module) -> bool:
        return False

    def _attended(self, module: nn.Module, args: Any, output: Any) -> None:
        number = next((n for n, layer in enumerate(self.layers) if layer.met is not None), None)
        if self.plan is None or number is None:
            return
        layer = self.layers[number]
        assert layer.met is not None
        queries, layer.met = layer.met.queries, None
        if layer.pads is not None:
            raise UnsupportedModelError(
                f"family '{family(module)}' computes attention in code of its own, where rows with padding cannot be "
                "evicted from: give rows of one length"
            )
        keys, values = layer.slots["keys"], layer.slots["values"]
        call = self._call(layer, number, module, {"query": keys[:, :, -queries:], "key": keys, "value": values})
        with torch.no_grad():
            self._after(Met(layer, call, False), self.plan, keys)
        self.progress.unfinished -= 1
        if not self.progress.unfinished:
            self.stop()


def check_own(model: nn.Module, plan: Plan) -> None:
    """Raise `UnsupportedModelError` where a family's own attention leaves a plan no way."""
    name, policy = family(model), plan.policy
    if name not in PLACED or getattr(text_config(model), "alibi", False):
        raise UnsupportedModelError(
            f"family '{name}' computes attention in code of its own, which sees keys by where they stand in the cache: "
            f"eviction works for {', '.join(PLACED)} and for attention that dispatches through AttentionInterface"
        )
    if policy.reads_weights or policy.reads_rotation or policy.drops or policy.merges or policy.skipped:
        raise UnsupportedModelError(
            f"family '{name}' computes attention in code of its own, where queries and weights are not seen: "
            f"{type(policy).__name__} needs them; what works: streaming, random, key-norm, keydiff, lagkv"
        )
    if not isinstance(plan.budget, Uniform):
        raise UnsupportedModelError(
            f"family '{name}' computes attention in code of its own, where all heads and layers keep equally many: "
            "give a number or a share as the budget"
        )
