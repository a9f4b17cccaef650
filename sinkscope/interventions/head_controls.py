"""Which other heads are zeroed as the control of zeroed heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf, log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    OpenStream,
    Projection,
    Stream,
    batches,
    checked_inputs,
    evaluating,
    family,
    head_count,
    projection,
    unwrapped,
    without_logits,
)
from sinkscope.interventions.intervention import draw

Head = tuple[int, int]
NEAREST = 6  # candidates for each head: the remaining heads nearest to it in norm


@dataclass(frozen=True)
class HeadControl(ABC):
    """A way to draw as many heads (layer, head) as were chosen from those that were not."""

    @abstractmethod
    def remaining(self, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        """The heads from which a control is drawn."""

    @abstractmethod
    def drawn(self, generator: torch.Generator, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        """One control. Raises `InputError` if too few heads remain."""

    @abstractmethod
    def describe(self) -> str:
        """The control in words."""


@dataclass(frozen=True)
class AnyHeads(HeadControl):
    """As many heads, at random among all others of the model."""

    def remaining(self, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        return tuple(head for head in heads if head not in chosen)

    def drawn(self, generator: torch.Generator, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        return draw(generator, self.remaining(chosen, heads), len(chosen), "heads")

    def describe(self) -> str:
        return "as many other heads of any layer"


ANY_HEADS = AnyHeads()


@dataclass(frozen=True)
class SameLayer(HeadControl):
    """In each layer, as many other heads as were chosen there: early layers matter more than late ones."""

    def remaining(self, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        layers = {layer for layer, _ in chosen}
        return tuple(head for head in heads if head not in chosen and head[0] in layers)

    def drawn(self, generator: torch.Generator, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        others, sample = self.remaining(chosen, heads), list[Head]()
        for layer, count in sorted(Counter(layer for layer, _ in chosen).items()):
            layer_heads = [head for head in others if head[0] == layer]
            sample += draw(generator, layer_heads, count, f"heads of layer {layer}")
        return tuple(sample)

    def describe(self) -> str:
        return "as many other heads of the same layers"


@dataclass(frozen=True)
class SameNorm(HeadControl):
    """For each chosen head, another that writes about as much: one of the six remaining heads nearest in log norm.

    `norms`: how much each head of each layer writes, (layer, head), from `head_norms`.
    """

    norms: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "norms", tuple(tuple(map(float, layer)) for layer in self.norms))

    @classmethod
    def of(cls, model: nn.Module, inputs: Any, batch_size: int = 8) -> SameNorm:
        """With the norms of what heads write on these inputs."""
        return cls(head_norms(model, inputs, batch_size))

    def remaining(self, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        return ANY_HEADS.remaining(chosen, heads)

    def drawn(self, generator: torch.Generator, chosen: Sequence[Head], heads: Sequence[Head]) -> tuple[Head, ...]:
        left, sample = list(self.remaining(chosen, heads)), []
        # In random order: each draw takes a head away from those after it.
        for index in torch.randperm(len(chosen), generator=generator).tolist():
            near = sorted(left, key=lambda head: self._apart(chosen[index], head))[:NEAREST]
            [picked] = draw(generator, near, 1, "heads")
            left.remove(picked)
            sample.append(picked)
        return tuple(sorted(sample))

    def describe(self) -> str:
        return "as many other heads, each of about the output norm of one of them"

    def _apart(self, one: Head, other: Head) -> float:
        mine, theirs = self._norm(one), self._norm(other)
        # A head that writes nothing has no logarithm; it is near only to others that write nothing.
        return abs(log(mine) - log(theirs)) if mine > 0 and theirs > 0 else 0.0 if mine == theirs else inf

    def _norm(self, head: Head) -> float:
        layer, index = head
        if layer >= len(self.norms) or index >= len(self.norms[layer]):
            raise InputError(f"head {layer}.{index} has no norm: use SameNorm.of(model, inputs)")
        return self.norms[layer][index]


def every_head(model: nn.Module) -> tuple[Head, ...]:
    """All heads (layer, head) of the changed stack. Raises `UnsupportedModelError` if none can be changed."""
    layers = Stream.of(model).attention(model)
    return tuple((layer, head) for layer, module in enumerate(layers) for head in range(head_count(model, module)))


def head_norms(model: nn.Module, inputs: Any, batch_size: int = 8) -> tuple[tuple[float, ...], ...]:
    """mean_t ‖W_O^h z_t^h‖₂ over real tokens for each layer and head h: the length of what a head writes.

    z^h is the head's part of the input of the output projection, W_O^h its columns. Costs one pass. Raises
    `UnsupportedModelError` for an output projection whose input is not the concatenation of heads.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    layers = Stream.of(model).attention(model)
    totals = [torch.zeros(head_count(model, module), dtype=torch.float64) for module in layers]
    tokens = [0] * len(layers)
    with ExitStack() as stack, evaluating(model), torch.no_grad():
        opened = OpenStream(model, stack)
        for index, module in enumerate(layers):
            output, heads = projection(model, module, "output"), len(totals[index])
            if output.weight.shape[1] % heads:
                raise UnsupportedModelError(
                    f"family '{family(model)}': '{output.path}' has {output.weight.shape[1]} inputs, which "
                    f"{heads} heads do not divide, so it is unknown what a head writes; choose another control"
                )

            def read(x: Tensor, index: int = index, output: Projection = output) -> None:
                real = opened.at(None, x).expand(x.shape[:2])
                totals[index] += _written(x[real], output.weight.detach(), len(totals[index]))
                tokens[index] += int(real.sum())

            output.read_input(read, stack)
        for batch in batches(model, checked, samples, batch_size):
            model(**batch | without_logits(model, batch))
    return tuple(tuple((total / max(count, 1)).tolist()) for total, count in zip(totals, tokens, strict=True))


def _written(
    x: Float[Tensor, "token columns"], weight: Float[Tensor, "out columns"], heads: int
) -> Float[Tensor, "heads"]:
    """Σ_t ‖W^h z_t^h‖ of each head."""
    # W_O z = Σ_h W_O^h z^h: inputs and columns are the heads one after another, (token, head_dim), (out, head_dim).
    parts = zip(x.float().chunk(heads, -1), weight.float().chunk(heads, -1), strict=True)
    return torch.stack([(columns @ head_weight.mT).norm(dim=-1).double().sum() for columns, head_weight in parts]).cpu()


CONTROLS: Mapping[str, str] = {
    "any": ANY_HEADS.describe(),
    "layer": SameLayer().describe(),
    "norm": SameNorm(()).describe(),
}


def control_named(name: str, model: nn.Module, inputs: Any, batch_size: int = 8) -> HeadControl:
    """The control "any", "layer" or "norm". Raises `InputError` for another name."""
    if name == "norm":
        return SameNorm.of(model, inputs, batch_size)
    if name not in CONTROLS:
        raise InputError(f"control '{name}': expected one of {', '.join(CONTROLS)}")
    return ANY_HEADS if name == "any" else SameLayer()
