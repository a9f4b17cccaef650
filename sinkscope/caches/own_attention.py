"""Eviction in families that compute attention in their own code, for policies that use keys and values alone."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.caches.budgets import Uniform
from sinkscope.caches.evictor import Evictor, PendingCall, Plan
from sinkscope.caches.positions import maker_of_alibi
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import family, own_attention, text_config

# Their keys carry their positions. Families in neither list see keys by their index in the cache: local layers
# (GPT-Neo), and Falcon's ALiBi, which is computed from indices in bfloat16.
PLACED = ("gptj", "codegen", "falcon", "xglm")
BIASED = {"bloom": "alibi", "mpt": "position_bias"}  # ALiBi, by the name of the attention modules' argument


class ModuleEvictor(Evictor):
    """Scores keys after each attention module, which has attended to all of them by then, and evicts.

    Neither queries nor weights are known here, and the mask is transformers' own, so all heads and rows keep the same
    number of keys.
    """

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Hook the model's attention modules for as long as `stack` is open."""
        name = family(model)
        for module in own_attention(model):
            stack.callback(module.register_forward_hook(self._attended).remove)
            if name in BIASED:
                before = partial(self._biased, name, _slopes(name, model))
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)

    def edits(self, module: nn.Module) -> bool:
        return False

    def _biased(
        self, name: str, slopes: Float[Tensor, " heads"], module: nn.Module, args: Any, inputs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Replace ALiBi by index in the cache with ALiBi by each key's place, head by head."""
        # Modules run in the order of layers, so this one's layer is the first whose `update` is still to come.
        layer = next((layer for layer in self.layers if layer.coming is not None), None)
        if self.plan is None or layer is None or layer.coming is None or layer.whole:
            return None  # the model's own bias is correct until something is dropped
        stored, coming, bias = layer.places, layer.coming, inputs[BIASED[name]]
        new = torch.arange(coming.seen, coming.total, device=stored.device).expand(*stored.shape[:2], -1)
        places = torch.cat([stored, new], -1).to(bias.device)
        # A constant per query drops out of the softmax; each family keeps its own (BLOOM from 0, MPT up to 0).
        if name == "bloom":  # (batch · heads, 1, key)
            biased = (slopes.to(bias.device)[:, None] * places).flatten(0, 1)[:, None]
        elif bool((places == places[:1]).all()):  # (heads, 1, key)
            biased = (slopes.to(bias.device)[:, None] * (places[0] - coming.total + 1))[:, None]
        else:
            raise UnsupportedModelError(
                f"family '{name}' has one bias for all rows, but these rows keep keys of different places: give one "
                "row at a time"
            )
        return args, inputs | {BIASED[name]: biased.to(bias.dtype)}

    def _attended(self, module: nn.Module, args: Any, output: Any) -> None:
        number = next((n for n, layer in enumerate(self.layers) if layer.pending is not None), None)
        if self.plan is None or number is None:
            return
        layer = self.layers[number]
        assert layer.pending is not None
        queries, layer.pending = layer.pending.queries, None
        if layer.pads is not None:
            raise UnsupportedModelError(
                f"family '{family(module)}' computes attention in its own code, where rows with padding cannot be "
                "evicted from: give rows of one length"
            )
        keys, values = layer.slots["keys"], layer.slots["values"]
        call = self._call(layer, number, module, {"query": keys[:, :, -queries:], "key": keys, "value": values})
        with torch.no_grad():
            self._after(PendingCall(layer, call, False), self.plan, keys)
        self.state.unfinished -= 1
        if not self.state.unfinished:
            self.stop()


def _slopes(name: str, model: nn.Module) -> Float[Tensor, " heads"]:
    """How much a family's own ALiBi grows from one column to the next, per head; fp32."""
    heads = text_config(model).num_attention_heads
    if name == "bloom":
        maker: Any = maker_of_alibi(model, "build_alibi_tensor")
        columns = maker.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    else:
        maker = maker_of_alibi(model, "build_mpt_alibi_tensor")
        columns = maker.build_mpt_alibi_tensor(heads, 2)
    return columns[:, 0, 1] - columns[:, 0, 0]


def check_own(model: nn.Module, plan: Plan) -> None:
    """Raise `UnsupportedModelError` if a family's own attention cannot follow a plan."""
    name, policy = family(model), plan.policy
    if name not in (*PLACED, *BIASED) or getattr(text_config(model), "alibi", False):
        raise UnsupportedModelError(
            f"family '{name}' computes attention in its own code, which sees keys by their index in the cache: "
            f"eviction works for {', '.join((*PLACED, *BIASED))} and for attention that dispatches through "
            "AttentionInterface"
        )
    if policy.reads_weights or policy.reads_rotation or policy.drops or policy.merges or policy.skipped:
        raise UnsupportedModelError(
            f"family '{name}' computes attention in its own code, where queries and weights are not seen: "
            f"{type(policy).__name__} needs them; what works: streaming, random, key-norm, keydiff, lagkv"
        )
    if not isinstance(plan.budget, Uniform):
        raise UnsupportedModelError(
            f"family '{name}' computes attention in its own code, where all heads and layers keep equally many: "
            "give a number or a share as the budget"
        )
