"""A temperature on the logits of chosen heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sinkscope.attention import KeySlot, LatentSlots, operation_of
from sinkscope.attention.scores import wide
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, OpenStream, family
from sinkscope.interventions.head_controls import every_head
from sinkscope.interventions.intervention import draw
from sinkscope.interventions.reweigh.call import Call, check_call
from sinkscope.interventions.reweigh.head_changes import Change, HeadChange, heads_of, opening, pairs, required
from sinkscope.interventions.reweigh.reweigh import check_factor


@dataclass(frozen=True)
class Temperature(HeadChange):
    """A' = softmax(s / τ) for the logits s of a row on tokens: τ < 1 sharpens, τ > 1 flattens, 1 changes nothing.

    τ divides scaled products after a softcap, and position biases; learned sinks keep their logits, and masked keys
    stay masked. The factor is applied to queries, so every kernel computes it and observers read the resulting weights;
    query norms that they read are those of scaled queries. `heads`: (layer, head), None for all of the changed stack.
    Raises `InputError` for τ ≤ 0, and when applied, `UnsupportedModelError` if a softcap or a bias would have to differ
    between heads and cannot. Control: as many other heads; for all heads, the inverse temperature.
    """

    tau: float
    heads: Sequence[Any] | None = None
    controlled_by_heads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_factor("tau", self.tau)
        if self.tau == 0:
            raise InputError("tau = 0: expected a positive temperature; 1 changes nothing")
        object.__setattr__(self, "heads", pairs(self.heads))

    def change(self, opened: OpenStream) -> Change:
        def changed(call: Call) -> Tensor:
            heads = {call.module: tuple(range(call.query.shape[1]))}
            arguments = _Tempering(opened, heads, self.tau).tempered(call.module, dict(call.run.arguments))
            return wide(call.run.again(**arguments).transpose(1, 2))

        return changed

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = opening(model, stack)
        heads = heads_of(model, opened, self.heads)
        required(opened, heads)
        opened.edit_attention(_Tempering(opened, heads, self.tau))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Temperature:
        if self.heads is None:
            return replace(self, tau=1 / self.tau)
        others = [head for head in every_head(model) if head not in self.heads]
        return replace(self, heads=draw(generator, others, len(self.heads), "heads"))


@dataclass(frozen=True, eq=False)
class _Tempering(Editor):
    """Scales the arguments from which attention functions compute logits."""

    opened: OpenStream
    heads: Mapping[nn.Module, Sequence[int]]
    tau: float

    def edits(self, module: nn.Module) -> bool:
        return module in self.heads

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        check_call(module, arguments, self.opened)
        self.opened.edited(module)
        return self.tempered(module, arguments)

    def tempered(self, module: nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the temperature applied."""
        query: Tensor = arguments["query"]
        factor = query.new_ones(query.shape[1], dtype=torch.float32)
        factor[list(self.heads[module])] = 1 / self.tau
        self._refuse(module, arguments, bool((factor == factor[0]).all()))
        # (heads, 1, 1), in fp32, so that the product of half-precision queries is rounded once.
        changed = arguments | {"query": (query * factor[:, None, None]).to(query.dtype)}
        if arguments.get("softcap") is not None:  # c · tanh(x / c) / τ = (c / τ) · tanh((x / τ) / (c / τ))
            changed["softcap"] = arguments["softcap"] / self.tau
        if (bias := arguments.get("position_bias")) is not None:
            changed["position_bias"] = bias * factor[:, None, None].to(bias.dtype)
        return changed

    def _refuse(self, module: nn.Module, arguments: Mapping[str, Any], alike: bool) -> None:
        name = f"family '{family(module)}', {type(module).__name__}"
        operation = operation_of(module)
        slots = () if operation is None else operation.spec.slots
        products = operation is None or (operation.spec.is_plain_softmax and arguments.get("bias") is None)
        if not products or any(isinstance(slot, KeySlot | LatentSlots) for slot in slots):
            raise UnsupportedModelError(
                f"{name}: its logits are more than scaled products, so scaling queries is not enough"
            )
        if arguments.get("softcap") is not None and not alike:
            raise UnsupportedModelError(
                f"{name}: its softcap is shared by all heads, so they need one temperature: choose all heads of a layer"
            )
