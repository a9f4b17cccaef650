"""Which linear maps 8-bit activations hurt most: ranked by one backward pass, the first ones verified."""

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

GRID = Grid(8, "tensor", symmetric=True)  # of the scheme a8-tensor
VERIFIED = 3  # maps that are rounded alone on the scored texts
LISTED = 20  # maps in the ranking


def module_rows(
    subject: CheckedModel, texts: TextSet, progress: Progress | None
) -> tuple[list[Row], dict[str, list[list[Any]]]]:
    """Rows for the most expensive maps, each rounded alone on the scored texts; and two rankings.

    The rankings are estimates in nats a token: `modules` lists path and cost, `layers` block and cost.
    """
    quantizer = QuantizeLinear(Grid(EXACT), GRID)
    costs = rounding_costs(subject.model, texts.calibration, quantizer, subject.batch_size, subject.seed).maps
    modules = [[path, float(f"{cost:.3g}")] for path, cost in list(costs.items())[:LISTED]]
    ranking: dict[str, list[list[Any]]] = {"modules": modules, "layers": layer_costs(subject.model, costs)}
    verified = [path for path, cost in list(costs.items())[:VERIFIED] if cost > 0]
    if not verified:
        return [], ranking
    arms = []
    for path in verified:
        others = tuple(name for name in linear_maps(subject.model) if name != path)
        quantizer = QuantizeLinear(Grid(EXACT), GRID, skip=("lm_head", *others))
        arms.append(intervention_arm(path, quantizer, subject.model, fed(subject.model, texts.ids)))
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
        for path in verified
    ]
    return rows, ranking


def layer_costs(model: PreTrainedModel, costs: Mapping[str, float]) -> list[list[Any]]:
    """Each block with the sum of its maps' costs, highest first; as if errors added up."""
    paths = {module: path for path, module in model.named_modules()}
    sums: list[list[Any]] = []
    for number, block in enumerate(Stream.of(model).blocks):
        block_costs = [cost for path, cost in costs.items() if path.startswith(f"{paths[block]}.")]
        sums.append([number, float(f"{sum(block_costs):.3g}")])
    return sorted(sums, key=lambda pair: -pair[1])
