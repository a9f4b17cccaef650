"""Pilots: is there a sink without a fixed BOS, and does a model of more heads decide more in an hour?

What they find is kept whatever it says. `micro` is a recipe of its own, so its runs stand among those of nano.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinkscope.experiments.assertions import FRESH
from sinkscope.experiments.effects import level
from sinkscope.experiments.question import Question, Scale, Variation, above
from sinkscope.experiments.questions.variations import relative, times

if TYPE_CHECKING:
    from sinkscope.experiments.jobs import Job

ONLY_NANO: dict[Scale, str] = dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano")

longer = Question(
    name="rotary-without-bos",
    asks="Does a sink form without a fixed BOS in four times the steps?",
    source="Gu et al. 2025, Figure 4",
    shared={"data.bos": "none"},
    variations=(Variation("6,000 steps", {"steps": times(4.0)}, {"sink_0": 18.18}),),
    assertions=(
        above(
            0.33,
            level("sink_mass", "6,000 steps"),
            "a sink without a BOS",
            "without a fixed BOS, after four times the steps, the sink mass at position 0 is more than 0.33 %",
            "Gu et al. 2025, Table 3: a rate of 18.18 %",
            FRESH,
        ),
        above(
            1.0,
            level("sink_0", "6,000 steps"),
            "and a rate",
            "and more than 1 % of heads have their sink there",
            "Gu et al. 2025, Table 3: 18.18 %",
        ),
    ),
    base=relative,
    not_at=ONLY_NANO,
)


def micro(scale: str, changes: Mapping[str, Any]) -> Job:
    """The question's base: the recipe `micro`, with fields changed."""
    from sinkscope.experiments.jobs import LabTraining

    return LabTraining.changed("micro", changes)


def _shape(layers: int, heads: int) -> Variation:
    changes = {"model.num_hidden_layers": layers, "model.num_attention_heads": heads}
    return Variation(f"{layers} layers of {heads} heads", changes)


micro_pilot = Question(
    name="micro-pilot",
    asks="Which model of more heads shows a sink, and is it worth its hours?",
    source="our question",
    variations=(
        _shape(4, 8),
        _shape(6, 8),
        _shape(8, 4),
        Variation("k_bias, no BOS", {"attention": "k_bias", "data.bos": "none"}),
    ),
    assertions=(
        above(
            1.0,
            level("sink_mass", "6 layers of 8 heads"),
            "a sink",
            "6 layers of 8 heads have a sink mass of more than 1 % at position 0",
            "our question",
            FRESH,
        ),
        above(
            1.0,
            level("slot_mass", "k_bias, no BOS"),
            "on a key bias",
            "without a BOS the sink mass of a key bias is more than 1 %",
            "our question; Gu et al. 2025, Table 4",
            FRESH,
        ),
    ),
    base=micro,
    not_at=ONLY_NANO,
    note="The recipe is adopted as a scale where the effect over its spread, in an hour of a core, is at least one and "
    "a half times that of nano. It is not: a sink mass of 6.9 % with a standard deviation of 0.75 (three seeds) is 9.2 "
    "in 21 minutes, nano's 5.0 % with 0.70 (seven seeds) is 7.1 in 7 minutes of the same core. So micro gives 0.4 "
    "times as much.",
)

QUESTIONS = (longer, micro_pilot)
