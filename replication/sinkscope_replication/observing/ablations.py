"""A model under ablations: heads zeroed, positions exchanged, a token changed.

Source: Gu et al. 2025, section 7 and Table 7; Barbero et al. 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.experiments import Metrics
from sinkscope.experiments.readings import masses, rates
from sinkscope.hooks import position_embedding
from sinkscope.interventions import (
    Intervention,
    ReplacePosition,
    SwapPositions,
    ZeroHeads,
    perturbation_spread,
    sink_heads,
)
from sinkscope.measurement import AttentionReceived, Measurement, measure, metrics
from sinkscope.trials import OnePass, intervention_arm, run
from sinkscope_replication.questions.moved_positions import OTHERS

CONTROLS = 3
MOVED = 8  # the token that is perturbed


def sink_heads_zeroed(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], measured: Measurement, epsilon: float, batch_size: int
) -> Metrics:
    """How much sink heads write compared with the others, and how far the loss (nats) rises without them.

    `sink_heads`: how many there are; `output_norm/sink_heads`, `output_norm/other_heads`: mean ‖Σ_j A_tj v_j‖ over
    queries t > 0; `zeroing/sink_heads`: by how much the loss rises when the strongest of them, at most half of all
    heads, give zero, `zeroing/other_heads` when as many others do (mean of three draws, of all where there are fewer).
    Without sink heads only their number, 0. Source: Gu et al. 2025, section 7.
    """
    try:
        heads = sink_heads(model, measured, epsilon)
    except InputError:
        yield "sink_heads", 0.0
        return
    yield "sink_heads", float(len(heads))
    norms = metrics.nanmean(metrics.mean_elsewhere(measured.data["output_norm"].values, 0), 0)
    is_sink = np.zeros(norms.shape, dtype=bool)
    is_sink[tuple(np.array(heads).T)] = True
    yield "output_norm/sink_heads", float(norms[is_sink].mean())
    if is_sink.all():
        return
    yield "output_norm/other_heads", float(norms[~is_sink].mean())
    chosen = heads[: max(1, norms.size // 2)]
    draws = min(CONTROLS, comb(norms.size - len(chosen), len(chosen)))
    arm = intervention_arm("zeroed", ZeroHeads(chosen), model, inputs)
    trial = run(
        model, dict(inputs), [arm], reading=OnePass(), controls=draws, score=("kl", "nats"), batch_size=batch_size
    )
    nats = trial.data["nats"].mean("text")
    yield "zeroing/sink_heads", float(nats.sel(arm="zeroed") - nats[0])
    yield "zeroing/other_heads", float(nats.sel(arm=trial.controls("zeroed")).mean() - nats[0])


def moved_positions(model: PreTrainedModel, ids: Tensor, epsilon: float, batch_size: int) -> Metrics:
    """Sink rates at 0 and t where position embedding 0 is replaced by, or exchanged with, that of t (0-based).

    `sink_0/replaced=9`, `sink_9/replaced=9`, `sink_0/swapped=9`, `sink_9/swapped=9`, and as masses `sink_mass/…` and
    `sink_mass_9/…`; nothing for models without a table of absolute positions. Source: Gu et al. 2025, Table 7.
    """
    try:
        position_embedding(model)
    except UnsupportedModelError:
        return
    for other in (other for other in OTHERS if other < ids.shape[1]):
        changes: dict[str, Intervention] = {
            "replaced": ReplacePosition(0, other),
            "swapped": SwapPositions(0, other),
        }
        for name, change in changes.items():
            with change.applied(model):
                measured = measure(model, ids, [AttentionReceived([0, other])], batch_size=batch_size, apart=False)
            for position, rate, mass in zip((0, other), rates(measured, epsilon), masses(measured), strict=True):
                yield f"sink_{position}/{name}={other}", rate
                yield f"sink_mass{f'_{position}' if position else ''}/{name}={other}", mass


def spread_of_a_change(
    model: PreTrainedModel, text: Mapping[str, Tensor], without_first: Mapping[str, Tensor], batch_size: int
) -> Metrics:
    """How far a change of one token reaches the later ones, with the window's first token and without it.

    `perturbation`: mean of ‖Δh_j‖ / ‖δ‖ at the last depth over the same later tokens j, where δ is added to the same
    token's vector (`perturbation_spread`); `perturbation/without_first`: in the window that lacks its first token.
    Source: Barbero et al. 2025.
    """
    length = min(text["input_ids"].shape[1], without_first["input_ids"].shape[1] + 1)
    if length <= MOVED + 1:
        return
    for name, inputs, moved in (
        ("perturbation", text, MOVED),
        ("perturbation/without_first", without_first, MOVED - 1),
    ):
        spread = perturbation_spread(model, inputs, moved, batch_size=batch_size).values[:, -1]
        yield name, float(spread[:, moved + 1 : moved + length - MOVED].mean())
