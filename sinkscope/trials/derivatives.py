"""The gain of each head alone under a calibration, for all heads and settings from one forward pass per batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.hooks import OpenStream, Stream, device_of, evaluating, frozen, part, watching
from sinkscope.interventions import HeadChange, Intervention
from sinkscope.interventions.reweigh import CallEditor, Change, Head, image_token, opening, required
from sinkscope.trials.journal import Journal
from sinkscope.trials.predictions import check_decoder, logits_of, next_tokens, objectives

DRAWS = 48  # texts × draws of next tokens, at least: the relative error of the curvature is about √(2 / DRAWS)
TOKENS = 1024  # tokens in a differentiated batch, approximately


@dataclass(frozen=True)
class HeadEstimate:
    """The gain of a head alone: `slope` = −g by the first derivative, minus `bend` = F / 2 by curvature."""

    slope: float
    bend: float

    @property
    def gain(self) -> float:
        return self.slope - self.bend

    @property
    def doubt(self) -> float:
        """How much the two disagree: the sign is certain if one of them is 0."""
        return min(max(self.slope, 0.0), self.bend)


def derivable(calibration: Intervention) -> bool:
    """Whether heads can be scored by derivatives: only under a `HeadChange`."""
    return isinstance(calibration, HeadChange)


def estimated_gains(
    model: nn.Module,
    inputs: Mapping[str, Any],
    options: Mapping[str, Intervention],
    heads: Sequence[Head],
    objective: str,
    batch_size: int,
    journal: Journal,
    counted: Callable[[int], object],
    from_token: int = 0,
) -> dict[str, dict[Head, HeadEstimate]]:
    """By how much each head alone lowers an objective under each option, a mean over texts: −g − F / 2.

    A head returns (1 − c) o + c o', with o' its output under the option: c = 0 is the model, c = 1 the option in this
    head. g = ∂J/∂c at c = 0. A trained model is near its optimum, so g is small and the curvature of the loss matters:
    F = E_y (∂ Σ_t log p(y_t) / ∂c)² / n over its n predictions t, with next tokens y drawn from the model itself (the
    Fisher information: the curvature of the loss without the part from the curvature of the logits in c). For entropy,
    F is omitted. One forward pass per batch, with one backward pass for g and one per draw for F, covers all heads and
    options.

    Args:
        model: A causal model.
        inputs: Checked inputs.
        options: Calibrations of all heads, by name.
        heads: The heads to estimate.
        objective: "loss" or "entropy".
        batch_size: Texts per pass, at most; fewer if they are long.
        journal: Records each batch.
        counted: Called with the number of texts that are done.
        from_token: Only predictions from this token on count.
    """
    samples = len(inputs["input_ids"])
    size = max(1, min(batch_size, TOKENS // inputs["input_ids"].shape[1]))
    draws = math.ceil(DRAWS / samples) if objective == "loss" else 0
    total: Tensor | float = 0.0
    for start in range(0, samples, size):
        stop = min(start + size, samples)
        terms = journal.estimates(start, stop)
        if terms is None:
            batch = part(inputs, slice(start, stop), samples, device_of(model))
            terms = [
                each.sum(0).tolist()
                for each in _terms(model, batch, list(options.values()), objective, draws, start, from_token)
            ]
            journal.keep({"rows": [start, stop], "estimates": terms})
        total = total + torch.tensor(terms, dtype=torch.float64)
        counted(stop - start)
    assert isinstance(total, Tensor)
    slope, bend = (total / samples).tolist()
    return {
        name: {
            (layer, head): HeadEstimate(slope[index][layer][head], bend[index][layer][head]) for layer, head in heads
        }
        for index, name in enumerate(options)
    }


def _terms(
    model: nn.Module,
    batch: dict[str, Any],
    options: Sequence[Any],
    objective: str,
    draws: int,
    first: int,
    from_token: int = 0,
) -> tuple[Float[Tensor, "text option layer head"], Float[Tensor, "text option layer head"]]:
    """−g and F / 2 of each text."""
    layers = Stream.of(model).attention(model)

    def mixing(stack: ExitStack) -> _Mixing:
        opened = opening(model, stack)
        required(opened, layers)
        mixing = _Mixing(opened, layers, [option.change(opened) for option in options])
        opened.edit_attention(mixing)
        stack.enter_context(watching(mixing))
        return mixing

    return head_terms(model, batch, mixing, objective, draws, first, from_token)


class HeadMixing(Protocol):
    """Lets heads return o + Σ_k c_k (o'_k − o); `factors`: c = 0, (option, text, head), of each layer after a pass."""

    @property
    def factors(self) -> Mapping[nn.Module, Tensor]: ...


def head_terms(
    model: nn.Module,
    batch: dict[str, Any],
    mixing: Callable[[ExitStack], HeadMixing],
    objective: str,
    draws: int,
    first: int,
    from_token: int = 0,
) -> tuple[Float[Tensor, "text option layer head"], Float[Tensor, "text option layer head"]]:
    """−g and F / 2 of each text, as `estimated_gains` has them, from one forward pass and 1 + `draws` backward passes.

    Args:
        model: A causal decoder.
        batch: Model inputs of a batch of texts.
        mixing: Mixes heads until the given stack closes.
        objective: The mean with the gradient g: "loss" or "entropy".
        draws: Samples from the model for F; with 0, F is 0.
        first: Number of the batch's first text, which seeds the draws.
        from_token: Only predictions from this token on count.
    """
    check_decoder(model, batch)
    layers = Stream.of(model).attention(model)
    with ExitStack() as stack, evaluating(model), frozen(model), torch.inference_mode(False), torch.enable_grad():
        mixed = mixing(stack)
        logits = logits_of(model, batch)
        token_logs, counted = next_tokens(logits, batch, image_token(model), from_token)
        value = objectives(token_logs, batch["input_ids"], counted, (objective,))[objective]
        factors = [mixed.factors[module] for module in layers]
        # Texts do not see each other and each has factors of its own, so the sum's gradient holds that of every text.
        slope = _stacked(torch.autograd.grad(value.sum(), factors, retain_graph=draws > 0))
        bend = torch.zeros_like(slope)
        number = counted.sum(-1)
        cumulative = token_logs.detach().exp().cumsum(-1).cpu() if draws else None
        for draw in range(draws):
            assert cumulative is not None
            drawn = draw_tokens(cumulative, first, draw).to(token_logs.device)
            log_p = (token_logs.gather(-1, drawn[..., None])[..., 0] * counted).sum(-1)
            score = _stacked(torch.autograd.grad(log_p.sum(), factors, retain_graph=draw + 1 < draws))
            # F / 2: per prediction, as the loss is, and a mean over draws.
            bend = bend + score**2 / number[:, None, None, None].to(score) / draws / 2
    return -slope, bend


def _stacked(by_layer: Sequence[Tensor]) -> Float[Tensor, "text option layer head"]:
    """Layers may have different numbers of heads: missing ones are 0."""
    most = max(each.shape[-1] for each in by_layer)
    whole = [torch.nn.functional.pad(each, (0, most - each.shape[-1])) for each in by_layer]
    # (option, text, head) of each layer → (text, option, layer, head)
    return torch.stack(whole, 2).transpose(0, 1).double().cpu()


def draw_tokens(cumulative: Float[Tensor, "text place vocabulary"], first: int, draw: int) -> Int[Tensor, "text place"]:
    """Next tokens drawn from the model's own predictions: the first whose cumulative probability exceeds a uniform u.

    Each text has its own generator, whatever batch it is in. (`torch.multinomial` draws one number per token of the
    vocabulary, and takes a fifth of the time of a forward pass.)
    """
    texts = []
    for row, probabilities in enumerate(cumulative):
        generator = torch.Generator().manual_seed(1_000_003 * draw + first + row)
        # A sum of probabilities in fp32 does not end at 1 exactly, so u is a share of what it ends at.
        uniform = torch.rand(len(probabilities), 1, generator=generator) * probabilities[:, -1:]
        # right=True: a token of probability 0, whose sum equals the one before, is never drawn.
        tokens = torch.searchsorted(probabilities, uniform, right=True)[:, 0]
        texts.append(tokens.clamp(max=probabilities.shape[-1] - 1))
    return torch.stack(texts)


class _Mixing(CallEditor):
    """Lets heads return o + Σ_k c_k (o'_k − o), with factors c = 0 of shape (option, text, head) for each layer.

    At c = 0 the derivative only needs the value of o'_k − o, so no gradient flows through the computation of o'_k.
    """

    def __init__(self, opened: OpenStream, layers: Sequence[nn.Module], changes: Sequence[Change]) -> None:
        super().__init__(opened, set(layers))
        self._changes = changes
        self.factors: dict[nn.Module, Tensor] = {}

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        run, call = self.take(module)
        with torch.no_grad():
            apart = [change(call).transpose(1, 2).to(output.dtype) - run.output for change in self._changes]
        batch, _, heads, _ = output.shape
        factors = torch.zeros(
            len(apart), batch, heads, device=output.device, dtype=torch.promote_types(output.dtype, torch.float32)
        ).requires_grad_()
        self.factors[module] = factors
        mixed = output
        for factor, difference in zip(factors, apart, strict=True):
            mixed = mixed + factor[:, None, :, None].to(output.dtype) * difference
        return mixed
