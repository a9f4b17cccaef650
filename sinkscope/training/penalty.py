"""A term of the training loss that keeps activations small (Bondarenko et al. 2023; Kaul et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.errors.invalid import ConfigPart
from sinkscope.model import LabForCausalLM

Activation = Literal["stream", "attention", "feedforward"]
GUARD = 1e-6  # added to the squared variance, as in the outlier metric
THRESHOLD = 3.0  # of TWEO


class ActivationPenalty(ConfigPart):
    """loss + strength · mean over depths of p(h), with h the activations of a sequence's tokens there, in fp32.

    Sink tokens count among the tokens. Kurtosis of layer outputs: Nrusimha et al. 2024 (2404.03605), who combine it
    with quantization-aware training. The squared norm: Merity et al. 2017, section 4.

    Attributes:
        kind: p, one of `l2`, `infinity`, `kurtosis` and `tweo` (see the functions of these names), averaged over
            sequences.
        of: the residual `stream` after a block, or what the block's `attention` (a hybrid's mixer) or `feedforward`
            adds to it, before any gain and norm of the branch.
        depths: numbers of blocks, from 1; 0 is the embeddings, for the stream only; None for all blocks.
    """

    kind: Literal["l2", "infinity", "kurtosis", "tweo"] = "kurtosis"
    strength: NonNegativeFloat
    of: Activation = "stream"
    depths: tuple[int, ...] | None = Field(default=None, min_length=1)

    def at(self, blocks: int) -> tuple[int, ...]:
        """The depths in a model of `blocks` blocks. Raises `InputError` for depths that it does not have."""
        depths = tuple(range(1, blocks + 1)) if self.depths is None else self.depths
        least = 0 if self.of == "stream" else 1
        for depth in depths:
            if not least <= depth <= blocks:
                raise InputError(
                    f"loss.activation_penalty.depths: {depth} is outside the {self.of}'s depths, {least} to {blocks}"
                )
        return depths


def l2(hidden: Float[Tensor, "batch position width"]) -> Float[Tensor, ""]:
    """Mean over tokens of ‖h_t‖² / width."""
    return hidden.square().mean()


def infinity(hidden: Float[Tensor, "batch position width"]) -> Float[Tensor, ""]:
    """Mean over sequences of max |h| over tokens and channels, the infinity norm of Bondarenko et al. 2023."""
    return hidden.abs().flatten(1).amax(1).mean()


def kurtosis(hidden: Float[Tensor, "batch position width"]) -> Float[Tensor, ""]:
    """Mean over sequences of E(h − μ)⁴ / (σ⁴ + 1e-6) over tokens and channels, as Bondarenko et al. 2023 measure it."""
    flat = hidden.flatten(1)
    centered = flat - flat.mean(1, keepdim=True)
    return (centered.pow(4).mean(1) / (centered.square().mean(1).square() + GUARD)).mean()


def tweo(hidden: Float[Tensor, "batch position width"]) -> Float[Tensor, ""]:
    """Mean of (|h| / (τ + ε))⁴ with τ = 3, ε = 1e-6: next to nothing below τ, steep above it.

    Source: 2511.23225, by third-party notes, with strength 0.01; its ε is not known.
    """
    return (hidden / (THRESHOLD + GUARD)).square().square().mean()


FORMULAS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "l2": l2,
    "infinity": infinity,
    "kurtosis": kurtosis,
    "tweo": tweo,
}


class PenalizedActivations:
    """Keeps the penalized activations of a forward pass in training until the penalty is computed from them.

    Its hooks stay on the model; register them before the model is compiled or distributed. Raises `InputError` for a
    model that is not a lab model.
    """

    def __init__(self, penalty: ActivationPenalty, model: nn.Module) -> None:
        if not isinstance(model, LabForCausalLM):
            raise InputError(f"loss.activation_penalty: {type(model).__name__} is not a lab model")
        self.penalty = penalty
        self._activations: dict[int, Tensor] = {}
        for depth in penalty.at(len(model.model.layers)):
            _penalized(penalty, model, depth).register_forward_hook(partial(self._note, depth))

    def term(self) -> Float[Tensor, ""]:
        """strength · p of the latest forward pass, with its gradient."""
        formula = FORMULAS[self.penalty.kind]
        # Handed over rather than read: the notes hold the graph of the pass, which must end with its backward pass.
        activations, self._activations = self._activations, {}
        terms = [formula(hidden.float()) for _, hidden in sorted(activations.items())]
        return self.penalty.strength * torch.stack(terms).mean()

    def _note(self, depth: int, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training:
            self._activations[depth] = output[0] if isinstance(output, tuple) else output


def _penalized(penalty: ActivationPenalty, model: LabForCausalLM, depth: int) -> nn.Module:
    """The module whose output is the activation at a depth."""
    if depth == 0:
        return model.model.embed_tokens
    block = model.model.layers[depth - 1]
    mixer = "self_attn" if block.attends else "mamba"
    # The empty path is the block itself.
    return block.get_submodule({"stream": "", "attention": mixer, "feedforward": "mlp"}[penalty.of])
