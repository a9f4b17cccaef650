"""What an arm predicts: in one pass over whole rows, or behind a context through a cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.quantization.studies.stepwise import CacheArm, scored
from sinkscope.hooks import Stream, device_of, evaluating, family, part
from sinkscope.interventions import Intervention
from sinkscope.quantization.studies.arms import FULL, Arm

HELD = 2**29  # bytes of predictions of the full model that are held at once
Opened = Callable[[Arm, slice], AbstractContextManager[Cache | None]]
"""The model as an arm has it, for some of the rows; with a cache where one is read through."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """Of one arm, a number for each row and place, NaN where nothing is scored.

    `nll`: −log p of the next token in nats, None where the model predicts none; `kl`: KL(full ‖ arm) of the prediction
    in nats. `held`: bytes of its cache a row at the end, where there is one.
    """

    nll: Float[Tensor, "row place"] | None
    kl: Float[Tensor, "row place"]
    held: float | None = None


@dataclass(frozen=True, eq=False)
class Passes:
    """Whole rows in one pass, `batch_size` at a time; predictions at the tokens that are `left_out` do not count."""

    model: nn.Module
    given: Mapping[str, Any]
    samples: int
    left_out: Bool[Tensor, "row position"]
    batch_size: int
    opened: Opened

    def predicted(self, arms: Sequence[Arm], watch: Callable[[int], None]) -> dict[str, Predicted]:
        """What every arm predicts; the first of them is the full model."""
        found: dict[str, list[tuple[Tensor | None, Tensor]]] = {arm.name: [] for arm in arms}
        for rows in self._groups():
            reference: list[Tensor] = []
            for arm in arms:
                for index, (batch, logits) in enumerate(self._logits(arm, rows)):
                    if arm.role == FULL:
                        reference.append(logits)
                    found[arm.name].append((self._nll(logits, batch), self._kl(reference[index], logits, batch)))
                    watch(batch.stop - batch.start)
        return {name: _joined(parts) for name, parts in found.items()}

    def _groups(self) -> Iterator[slice]:
        """Rows whose predictions by the full model are held together."""
        with evaluating(self.model), torch.no_grad():
            one = self._run(slice(0, 1))
        step = max(1, HELD // (4 * one.numel()) // self.batch_size) * self.batch_size
        for start in range(0, self.samples, step):
            yield slice(start, min(start + step, self.samples))

    def _logits(self, arm: Arm, rows: slice) -> Iterator[tuple[slice, Tensor]]:
        with evaluating(self.model), torch.no_grad(), self.opened(arm, rows):
            for start in range(rows.start, rows.stop, self.batch_size):
                batch = slice(start, min(start + self.batch_size, rows.stop))
                logits = self._run(batch)
                if not bool(logits.isfinite().any()) or bool(logits.isnan().any()):
                    raise InputError(f"predictions of '{arm.name}' are NaN, so there is nothing to compare")
                yield batch, logits

    def _run(self, rows: slice) -> Tensor:
        options = {"use_cache": False} if "use_cache" in inspect.signature(self.model.forward).parameters else {}
        inputs = part(self.given, rows, self.samples, device_of(self.model))
        logits = getattr(self.model(**inputs, **options), "logits", None)
        if not isinstance(logits, Tensor):
            raise UnsupportedModelError(
                f"family '{family(self.model)}', {type(self.model).__name__}: it has no logits, so there is nothing to "
                "compare; load the model with its head"
            )
        return logits.float().cpu()

    def _nll(self, logits: Tensor, rows: slice) -> Tensor | None:
        stream = Stream.of(self.model)
        ids = self.given.get(stream.mask_name.replace("attention_mask", "input_ids"))
        if not isinstance(ids, Tensor) or stream.stack != "decoder" or logits.shape[:2] != ids[rows].shape:
            return None
        next_token = ids[rows].cpu()[:, 1:, None]
        nll = -logits[:, :-1].log_softmax(-1).gather(-1, next_token)[..., 0].double()
        nll = torch.cat([nll, nll.new_full((len(nll), 1), torch.nan)], 1)
        counted = self._counted(logits, rows)
        behind = torch.cat([self._real(ids, rows)[:, 1:], torch.zeros(len(nll), 1, dtype=torch.bool)], 1)
        return nll.masked_fill(~(counted & behind), torch.nan)

    def _kl(self, reference: Tensor, logits: Tensor, rows: slice) -> Tensor:
        p, q = reference.log_softmax(-1), logits.log_softmax(-1)
        kl = (p.exp() * (p - q)).masked_fill(p == -torch.inf, 0.0).sum(-1, dtype=torch.float64)
        if kl.ndim == 1:  # a prediction of the whole row
            return kl[:, None]
        kl = kl.flatten(1)
        return kl.masked_fill(~self._counted(logits, rows), torch.nan) if logits.ndim == 3 else kl

    def _counted(self, logits: Tensor, rows: slice) -> Tensor:
        """Where predictions count: at real tokens that no arm spares."""
        left = self.left_out[rows][:, -logits.shape[1] :].cpu()
        if left.shape[1] != logits.shape[1]:
            return torch.ones(logits.shape[:2], dtype=torch.bool)
        return ~left

    def _real(self, ids: Tensor, rows: slice) -> Tensor:
        mask = self.given.get(Stream.of(self.model).mask_name)
        real = mask[rows].bool() if isinstance(mask, Tensor) and mask.ndim == 2 else torch.ones_like(ids[rows]).bool()
        return real.cpu()


@dataclass(frozen=True, eq=False)
class ThroughCache:
    """A context in one pass, then one given token at a time through a cache: `stepwise.scored`, arm by arm.

    `stores`: whether the arms' caches hold what is rounded, so that their bytes say something.
    """

    model: nn.Module
    ids: Tensor
    context: int
    left_out: Bool[Tensor, "row position"]
    batch_size: int
    opened: Opened
    stores: bool

    def predicted(self, arms: Sequence[Arm], watch: Callable[[int], None]) -> dict[str, Predicted]:
        """What every arm predicts behind the context; the first of them is the full model."""
        found: dict[str, list[Any]] = {arm.name: [] for arm in arms}
        for start in range(0, len(self.ids), self.batch_size):
            rows = slice(start, min(start + self.batch_size, len(self.ids)))
            opened = [CacheArm(arm.name, self._open(arm, rows)) for arm in arms]
            for name, one in scored(self.model, self.ids[rows], opened, context=self.context).items():
                found[name].append(one)
                watch(rows.stop - rows.start)
        left = self.left_out[:, self.context - 1 : -1].cpu()
        return {
            name: Predicted(
                torch.cat([one.nll for one in parts]).masked_fill(left, torch.nan),
                torch.cat([one.kl for one in parts]).masked_fill(left, torch.nan),
                parts[0].held[1] / len(parts[0].nll) if self.stores or name == FULL else None,
            )
            for name, parts in found.items()
        }

    def _open(self, arm: Arm, rows: slice) -> Callable[[nn.Module], AbstractContextManager[Cache]]:
        @contextmanager
        def opened(model: nn.Module) -> Iterator[Cache]:
            with self.opened(arm, rows) as cache:
                yield DynamicCache(config=model.config) if cache is None else cache

        return opened


def applied(intervention: Intervention | None, model: nn.Module) -> AbstractContextManager[None]:
    """The model under an intervention, or as it is."""
    return nullcontext() if intervention is None else intervention.applied(model)


def _joined(parts: list[tuple[Tensor | None, Tensor]]) -> Predicted:
    losses = [nll for nll, _ in parts if nll is not None]
    return Predicted(torch.cat(losses) if losses else None, torch.cat([kl for _, kl in parts]))
