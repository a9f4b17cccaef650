"""Running an intervention beside its controls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope import metrics
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    Stream,
    checked_inputs,
    device_of,
    evaluating,
    family,
    in_batches,
    part,
    row_length,
    unwrapped,
)
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.outcome import Effect, Outcome
from sinkscope.probes import AttentionReceived, observe

DRAWS = 20  # of a control, for each that is wanted


def effect(
    model: nn.Module,
    inputs: Any,
    intervention: Intervention,
    *,
    controls: int = 5,
    seed: int = 0,
    epsilon: float = 0.3,
    position: int = 0,
    batch_size: int = 8,
    progress: Callable[[int, int], object] | None = None,
) -> Effect:
    """What `intervention` does to loss, predictions and sink rate at `position`, beside `controls` random controls.

    Every control spends the same budget elsewhere (`Intervention.control`), drawn from `seed`, each another one.
    `inputs` as in `measure`; `progress(done, total)` counts passes over a batch. Raises `InputError` without a control,
    where so many different ones do not exist, for positions that a row does not have, and as `measure` does;
    `UnsupportedModelError` for models without logits.
    """
    model = unwrapped(model)
    metrics.check_epsilon(epsilon)
    if controls < 1:
        raise InputError(f"controls = {controls}: an effect says nothing without a control, so at least 1")
    given, samples = checked_inputs(model, inputs, batch_size)
    length = row_length(model, given)
    for named in (position, *intervention.positions_named):
        if not 0 <= named < length:
            raise InputError(f"position {named} is in no row: rows have positions 0 to {length - 1}")
    drawn = _controls(model, given, intervention, controls, seed)
    variants: list[Intervention | None] = [None, intervention, *drawn]
    tallies = [_Tally() for _ in variants]
    run = _Run(model, Stream.of(model), given, samples, epsilon, position)
    done = 0

    def batch(rows: slice) -> None:
        nonlocal done
        reference: Tensor | None = None
        found = []
        for index, variant in enumerate(variants):
            logits, rates = run.under(variant, rows)
            reference = logits if reference is None else reference
            found.append((run.loss(logits, rows), run.divergence(reference, logits, rows), rates))
            if progress is not None:
                progress(done + (rows.stop - rows.start) * (index + 1), samples * len(variants))
        done += (rows.stop - rows.start) * len(variants)
        for tally, (loss, divergence, rates) in zip(tallies, found, strict=True):
            tally.add(loss, divergence, rates)

    with evaluating(model), torch.no_grad():
        in_batches(batch, samples, batch_size, f"of {length} tokens")
    outcomes = [tally.outcome() for tally in tallies]
    for variant, outcome in zip(variants, outcomes, strict=True):
        _check_finite(variant, outcome)
    baseline, intervened, *others = outcomes
    name = str(getattr(getattr(model, "config", None), "name_or_path", "") or family(model))
    described = (intervention.describe(), *(control.describe() for control in drawn))
    return Effect(name, baseline, intervened, tuple(others), described, position, epsilon, samples, length)


def _controls(
    model: nn.Module, given: Mapping[str, Any], intervention: Intervention, count: int, seed: int
) -> list[Intervention]:
    """Different controls: one that repeats another would make their spread look smaller than it is."""
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(DRAWS * count):
        control = intervention.control(generator, model, given)
        if control not in found:
            found.append(control)
        if len(found) == count:
            return found
    raise InputError(
        f"{count} controls were asked for, but {DRAWS * count} draws gave only {len(found)} different ones: ask for "
        f"controls={len(found)} at most (--controls), or change less, so that more is left to draw from"
    )


def _check_finite(variant: Intervention | None, outcome: Outcome) -> None:
    """Raises `InputError` for predictions that are NaN or infinite: no effect can be told then."""
    if np.isfinite([outcome.kl, outcome.loss or 0.0]).all():
        return
    whose = "the baseline" if variant is None else f"the model under {type(variant).__name__}"
    raise InputError(f"predictions of {whose} are NaN or infinite, so there is no effect to tell; measure says where")


@dataclass
class _Tally:
    """Sums of a variant over batches: (sum, count) of the loss and of the divergence, and rates per sample."""

    losses: list[tuple[float, int]] = field(default_factory=list)
    divergences: list[tuple[float, int]] = field(default_factory=list)
    rates: list[np.ndarray] = field(default_factory=list)

    def add(self, loss: tuple[float, int] | None, divergence: tuple[float, int], rates: np.ndarray) -> None:
        self.losses += [] if loss is None else [loss]
        self.divergences.append(divergence)
        self.rates.append(rates)

    def outcome(self) -> Outcome:
        rate = float(metrics.nanmean(np.concatenate(self.rates), 0))
        return Outcome(_mean(self.losses) if self.losses else None, _mean(self.divergences), rate)


@dataclass(frozen=True, eq=False)
class _Run:
    """A model on a part of its inputs, and what its logits are worth."""

    model: nn.Module
    stream: Stream
    given: Mapping[str, Any]
    samples: int
    epsilon: float
    position: int

    def under(self, variant: Intervention | None, rows: slice) -> tuple[Tensor, Float[np.ndarray, "sample"]]:
        """Logits, and the sink rate of every sample."""
        options = {"use_cache": False} if "use_cache" in inspect.signature(self.model.forward).parameters else {}
        inputs = part(self.given, rows, self.samples, device_of(self.model))
        changed = nullcontext() if variant is None else variant.applied(self.model)
        with changed, observe(self.model, AttentionReceived(positions=[self.position])) as seen:
            output = self.model(**inputs, **options)
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            raise UnsupportedModelError(
                f"family '{family(self.model)}', {type(self.model).__name__}: it has no logits, so there is neither a "
                "loss nor a divergence; load the model with its head"
            )
        data = seen.measurement().data
        own = [str(name) == self.stream.stack for name in data["stack"].values]
        return logits, metrics.sample_rates(data["attention_received"].values[:, own], self.epsilon)[:, 0]

    def loss(self, logits: Tensor, rows: slice) -> tuple[float, int] | None:
        """Sum and count of −log p(next token) over real tokens; None for a model that predicts no next token."""
        ids, real = self._ids(rows), self._real(rows)
        if ids is None or self.stream.stack != "decoder" or logits.shape[:2] != ids.shape:
            return None
        ids = ids.to(logits.device)
        log_p = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        counted = torch.ones_like(ids[:, 1:]).bool()
        if real is not None and real.shape == ids.shape:
            counted = (real[:, 1:] & real[:, :-1]).to(logits.device)
        return float(-log_p[counted].double().sum()), int(counted.sum())

    def divergence(self, reference: Tensor, logits: Tensor, rows: slice) -> tuple[float, int]:
        """Sum and count of KL(reference ‖ intervened) over real tokens, or over predictions that are no tokens.

        Raises `UnsupportedModelError` where there is padding and predictions are not of the tokens of its mask.
        """
        p, q = reference.float().log_softmax(-1), logits.float().log_softmax(-1)
        divergence = (p.exp() * (p - q)).masked_fill(p == -torch.inf, 0.0).sum(-1)
        real = self._real(rows)
        if real is not None and divergence.shape == real.shape:
            divergence = divergence[real.to(divergence.device)]
        elif real is not None and divergence.ndim == 2 and not bool(real.all()):
            raise UnsupportedModelError(
                f"family '{family(self.model)}': it predicts at {divergence.shape[1]} places, and its "
                f"{self.stream.mask_name} is over {real.shape[1]} tokens, so which predictions are of padding is not "
                "known: give rows of one length"
            )
        return float(divergence.double().sum()), divergence.numel()

    def _ids(self, rows: slice) -> Tensor | None:
        """The ids that the logits belong to."""
        ids = self.given.get(self.stream.mask_name.replace("attention_mask", "input_ids"))
        return ids[rows] if isinstance(ids, Tensor) else None

    def _real(self, rows: slice) -> Bool[Tensor, "batch position"] | None:
        """Which tokens are real, also where the model is given vectors for them; None where all are."""
        mask = self.given.get(self.stream.mask_name)
        return mask[rows].bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _mean(sums: list[tuple[float, int]]) -> float:
    total, count = (sum(column) for column in zip(*sums, strict=True))
    if not count:
        raise InputError("rows of one token have no next token, so there is no loss: give at least two")
    return total / count
