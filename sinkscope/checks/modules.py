"""Which linear maps 8-bit activations hurt most: ranked by one backward pass, the first ones verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from sinkscope.checks.row import Row
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.data import fed
from sinkscope.grids import EXACT, Grid
from sinkscope.hooks import Stream
from sinkscope.quantization import QuantizeLinear, linear_maps
from sinkscope.trials import Arm, Trial, intervention_arm, rounding_costs

GRID = Grid(8, "tensor", symmetric=True)  # of the scheme a8-tensor
VERIFIED = 3  # maps that are rounded alone on the scored texts
LISTED = 20  # maps in the ranking


@dataclass(frozen=True)
class RankedModules:
    """Two rankings by estimated cost, in nats a token: `modules` lists path and cost, `layers` block and cost.

    `verified`: the first maps, which are to be rounded alone.
    """

    modules: list[list[Any]]
    layers: list[list[Any]]
    verified: tuple[str, ...]

    @property
    def facts(self) -> dict[str, list[list[Any]]]:
        """The rankings, for the card."""
        return {"modules": self.modules, "layers": self.layers}


def ranked_modules(subject: CheckedModel, texts: TextSet) -> RankedModules:
    """The model's linear maps by what 8-bit inputs cost, on the texts that are not scored."""
    quantizer = QuantizeLinear(Grid(EXACT), GRID)
    costs = rounding_costs(subject.model, texts.calibration, quantizer, subject.batch_size, subject.seed).maps
    return RankedModules(
        [[path, float(f"{cost:.3g}")] for path, cost in list(costs.items())[:LISTED]],
        layer_costs(subject.model, costs),
        tuple(path for path, cost in list(costs.items())[:VERIFIED] if cost > 0),
    )


def map_arms(subject: CheckedModel, texts: TextSet, paths: Sequence[str]) -> list[Arm]:
    """For each map an arm that rounds its input alone; without controls."""
    arms = []
    for path in paths:
        others = tuple(name for name in linear_maps(subject.model) if name != path)
        quantizer = QuantizeLinear(Grid(EXACT), GRID, skip=("lm_head", *others))
        arms.append(
            replace(intervention_arm(path, quantizer, subject.model, fed(subject.model, texts.ids)), control=None)
        )
    return arms


def module_rows(trial: Trial, paths: Sequence[str]) -> list[Row]:
    """A row for each map that was rounded alone."""
    return [
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
        for path in paths
    ]


def layer_costs(model: PreTrainedModel, costs: Mapping[str, float]) -> list[list[Any]]:
    """Each block with the sum of its maps' costs, highest first; as if errors added up."""
    paths = {module: path for path, module in model.named_modules()}
    sums: list[list[Any]] = []
    for number, block in enumerate(Stream.of(model).blocks):
        block_costs = [cost for path, cost in costs.items() if path.startswith(f"{paths[block]}.")]
        sums.append([number, float(f"{sum(block_costs):.3g}")])
    return sorted(sums, key=lambda pair: -pair[1])
