"""The size of attention logits (Dehghani et al. 2023; Wortsman et al. 2023a)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import RowKind, RowScores
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, Piece, in_every


@in_every
@dataclass(frozen=True)
class MaximalLogits(Observer):
    """max over real queries and the keys they see of |s_tk|: `max_logit` (sample, layer, head).

    Scores as the normalizer receives them: of feature maps if there are any, scaled, softcapped, with position bias and
    forgetting; the larger of two if weights are a difference; slots do not count. Growing logits mark unstable
    training. Source: Dehghani et al. 2023 (ViT-22B), Wortsman et al. 2023a. Cost: two cheap passes over the scores in
    chunks; operations without a softmax compute their scores once more.
    """

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.is_softmax

    @property
    def reads_rows(self) -> tuple[RowKind, ...]:
        return ("largest",)

    def on_rows(self, call: AttentionCall, row_scores: RowScores) -> Iterable[Piece]:
        yield _over_rows(call, row_scores.largest, slice(0, len(row_scores.largest)), slice(0, call.query.shape[2]))

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.is_softmax:
            return
        for rows in call.row_parts():
            for scores in call.operation_logits(rows):
                seen = scores.masked_fill(scores == -torch.inf, 0.0)  # a 0 changes no maximum of magnitudes
                yield _over_rows(call, torch.maximum(seen.amax(-1), -seen.amin(-1)), slice(0, len(scores)), rows)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"max_logit": Array(layer.sums["logit"], None)} if "logit" in layer.sums else {}


def _over_rows(call: AttentionCall, largest: Tensor, samples: slice, rows: slice) -> Piece:
    if call.real is not None:
        largest = largest.masked_fill(~call.real[samples, None, rows], -torch.inf)
    return Piece("logit", largest.amax(-1), None, samples, "max")
