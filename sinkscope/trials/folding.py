"""What folding a sink costs head by head, and a stream that keeps no sink because it was folded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from sinkscope.caches import StreamingCache
from sinkscope.errors import InputError
from sinkscope.hooks import Editor, Invocation, OpenStream, Stream, checked_inputs, device_of, part, unwrapped, watching
from sinkscope.interventions import FoldSink
from sinkscope.interventions.inside import Calls, opened_layers
from sinkscope.measurement import full_precision
from sinkscope.trials.arm import Arm, Texts
from sinkscope.trials.derivatives import DRAWS, TOKENS, head_terms


def folded_heads(
    model: nn.Module, inputs: Any, folds: Mapping[str, FoldSink], *, draws: int | None = None, batch_size: int = 8
) -> xr.Dataset:
    """What it costs to fold the sink in one head alone, for every head and form, from one forward pass per text.

    A head returns (1 − c) o + c o', with o' its output when folded. Its cost at c = 1 is estimated at c = 0 by slope
    and curvature, g + F / 2 nats a token, as `derivatives.estimated_gains` has them: good for small costs; heads with
    much attention to the sink are to be folded for certainty (`FoldSink(heads=[...])`). Variables: `slope` g and
    `curvature` F / 2 (form, text, layer, head); `logit_mean`, `logit_std`: of q_t·k_p over texts and changed queries,
    and `mass`: their mean attention to the sink (layer, head). A head needs its logit to depend on the query where
    `logit+value` costs more than `key+value`.

    Args:
        model: A causal model.
        inputs: Texts, other than those of the constants.
        folds: By name, on the same tokens, in all layers and heads.
        draws: How many next tokens to draw for F, each a backward pass; default: as many as give texts × draws ≥ 48.
        batch_size: Texts per pass, at most.

    Raises `InputError` for folds of different tokens, and as `FoldSink` does.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    changes = list(folds.values())
    if not changes or any(each.targets.all_pairs() != changes[0].targets.all_pairs() for each in changes):
        raise InputError("folds: at least one, and all of the same tokens for the same queries")
    if any(each.layers is not None or each.gone for each in changes):
        raise InputError("folds: in all layers and heads, and not `gone`: each head is tested alone here")
    first = max(start for _, start in changes[0].targets.all_pairs())
    size = max(1, min(batch_size, TOKENS // checked["input_ids"].shape[1]))
    draws = math.ceil(DRAWS / samples) if draws is None else draws
    totals: dict[int, _LogitTotals] = {}
    slopes, bends = [], []
    for start in range(0, samples, size):
        stop = min(start + size, samples)
        batch = part(checked, slice(start, stop), samples, device_of(model))

        def mixing(stack: ExitStack) -> _FoldMixing:
            opened, chosen = opened_layers(model, None, stack)
            mixed = _FoldMixing(opened, Calls(model, opened, chosen), changes, totals)
            opened.edit_attention(mixed)
            stack.enter_context(watching(mixed))
            return mixed

        gain, bend = head_terms(model, batch, mixing, "loss", draws, start, first)
        slopes.append(-gain)
        bends.append(bend)
    layers = range(len(Stream.of(model).attention(model)))
    arrays = {
        name: (("form", "text", "layer", "head"), torch.cat(each).transpose(0, 1).numpy())
        for name, each in (("slope", slopes), ("curvature", bends))
    }
    most = arrays["slope"][1].shape[-1]
    for name in ("logit_mean", "logit_std", "mass"):
        rows = [getattr(totals[layer], name) for layer in layers]
        padded = [torch.nn.functional.pad(row, (0, most - len(row)), value=torch.nan) for row in rows]
        arrays[name] = ("layer", "head"), torch.stack(padded).numpy()  # type: ignore[assignment]
    return xr.Dataset(arrays, coords={"form": list(folds)})


@dataclass(eq=False)
class _LogitTotals:
    """Sums over texts and changed queries, of each head of a layer."""

    count: Tensor
    logit: Tensor
    square: Tensor
    weight: Tensor

    @property
    def logit_mean(self) -> Tensor:
        return self.logit / self.count

    @property
    def logit_std(self) -> Tensor:
        # E[x²] − E[x]² falls below 0 by rounding where x hardly varies.
        return (self.square / self.count - self.logit_mean**2).clamp(min=0).sqrt()

    @property
    def mass(self) -> Tensor:
        return self.weight / self.count


@dataclass(frozen=True, eq=False)
class _FoldMixing(Editor):
    """Lets heads return o + Σ_k c_k (o'_k − o) with o'_k folded; adds logits and weights of sinks to `totals`."""

    opened: OpenStream
    calls: Calls
    changes: Sequence[FoldSink]
    totals: dict[int, _LogitTotals]
    factors: dict[nn.Module, Tensor] = field(default_factory=dict)
    _met: dict[nn.Module, Invocation] = field(default_factory=dict)

    def edits(self, module: nn.Module) -> bool:
        return module in self.calls.layers

    def watches(self, module: nn.Module) -> bool:
        return module in self.calls.layers

    def attended(self, invocation: Invocation) -> None:
        self._met[invocation.module] = invocation

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        self.opened.edited(module)
        invocation = self._met.pop(module)
        apart = [torch.zeros_like(output, requires_grad=False) for _ in self.changes]
        with torch.no_grad(), full_precision(output.device):
            for rows in self.calls.rows(invocation, self.changes[0].targets):
                late = rows.reached.transpose(1, 2)[..., None]
                for change, difference in zip(self.changes, apart, strict=True):
                    folded = change.difference(rows).transpose(1, 2).where(late, 0.0)
                    difference[:, rows.rows] = folded.to(output.dtype)
                self._count(rows)
        batch, _, heads, _ = output.shape
        factors = torch.zeros(len(apart), batch, heads, device=output.device).requires_grad_()
        self.factors[module] = factors
        for factor, difference in zip(factors, apart, strict=True):
            output = output + factor[:, None, :, None].to(output.dtype) * difference
        return output

    def _count(self, rows: Any) -> None:
        scores = rows.logits.double()
        seen = (rows.hit & (scores > -torch.inf)).expand_as(scores)
        # Not multiplied by `seen`: −inf · 0 is NaN.
        logits, weights = scores.where(seen, 0.0), rows.token.double().where(seen, 0.0)
        sums = [each.sum((0, 2, 3)).cpu() for each in (seen.double(), logits, logits**2, weights)]
        if (totals := self.totals.get(rows.layer)) is None:
            self.totals[rows.layer] = _LogitTotals(*sums)
        else:
            for name, more in zip(("count", "logit", "square", "weight"), sums, strict=True):
                setattr(totals, name, getattr(totals, name) + more)


def folded_stream(name: str, fold: FoldSink, window: int) -> Arm:
    """An arm that reads through a `StreamingCache` without sinks: the last `window` tokens, and the folded constants.

    Compare it with `cached(name, lambda model: StreamingCache(model, sinks, window - sinks))`, which holds as many
    keys. Raises `InputError` for a form whose key has a position.
    """
    with_window = replace(fold, gone=True)

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[StreamingCache]:
        with with_window.applied(model):
            yield StreamingCache(model, 0, window)

    return Arm(name, opened, facts={"fold": with_window.describe(), "sinks": 0, "window": window})
