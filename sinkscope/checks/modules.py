"""Which linear maps pay for activations in 8 bits: ranked by one backward pass, the first of them verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from sinkscope.checks.row import Row
from sinkscope.checks.section import Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.data import fed
from sinkscope.grids import EXACT, Grid
from sinkscope.hooks import Stream
from sinkscope.quantization import QuantizeLinear, linear_maps
from sinkscope.trials import OnePass, intervention_arm, rounding_costs, run

GRID = Grid(8, "tensor", symmetric=True)  # as in the scheme a8-tensor
VERIFIED = 3  # maps that are rounded alone on the scored texts
LISTED = 20


def module_rows(
    subject: CheckedModel, texts: TextSet, progress: Progress | None
) -> tuple[list[Row], dict[str, list[list[Any]]]]:
    """Rows of the dearest maps, rounded alone on the scored texts; and the rankings, estimates in nats a token.

    `modules`: path and cost; `layers`: block and cost.
    """
    rounded = QuantizeLinear(Grid(EXACT), GRID)
    costs = rounding_costs(subject.model, texts.choosing, rounded, subject.batch_size, subject.seed).maps
    modules = [[path, float(f"{cost:.3g}")] for path, cost in list(costs.items())[:LISTED]]
    ranking: dict[str, list[list[Any]]] = {"modules": modules, "layers": layer_costs(subject.model, costs)}
    dearest = [path for path, cost in list(costs.items())[:VERIFIED] if cost > 0]
    if not dearest:
        return [], ranking
    arms = []
    for path in dearest:
        others = tuple(name for name in linear_maps(subject.model) if name != path)
        alone = QuantizeLinear(Grid(EXACT), GRID, skip=("lm_head", *others))
        arms.append(intervention_arm(path, alone, subject.model, fed(subject.model, texts.ids)))
    trial = run(
        subject.model,
        texts.ids,
        arms,
        reading=OnePass(),
        controls=0,
        batch_size=subject.batch_size,
        seed=subject.seed,
        about={"kind": "int8-modules"},
        progress=progress,
    )
    rows = [
        Row(
            f"alone:{path}",
            f"a8-tensor, {path} alone",
            trial.cost(path),
            "KL a token",
            trial.texts,
            trial.word(path),
            trial.grade(path).why,
            values=tuple(trial.values(path).tolist()),
        )
        for path in dearest
    ]
    return rows, ranking


def layer_costs(model: PreTrainedModel, costs: Mapping[str, float]) -> list[list[Any]]:
    """Block and the sum of its maps' costs, the dearest first: what it would cost if errors added up."""
    paths = {module: path for path, module in model.named_modules()}
    sums: list[list[Any]] = []
    for number, block in enumerate(Stream.of(model).blocks):
        inside = [cost for path, cost in costs.items() if path.startswith(f"{paths[block]}.")]
        sums.append([number, float(f"{sum(inside):.3g}")])
    return sorted(sums, key=lambda pair: -pair[1])
