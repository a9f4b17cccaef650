"""Properties of models that single questions ask for, on made-up runs."""

from __future__ import annotations

import math

import pytest

from sinkscope.experiments import Observed
from sinkscope_replication.questions import (
    domains,
    emergence,
    fixed_token,
    learning_rate,
    prefix_longer,
    random_tokens,
    sink_head,
)


def run(metrics: dict[str, float] | None = None, **curves: tuple[float, ...]) -> Observed:
    named = {name.replace("__", "/"): values for name, values in curves.items()}
    steps = tuple(range(1, 1 + max([len(values) for values in named.values()], default=0)))
    return Observed("r", "finished", 0, metrics or {}, steps, named)


RATE = "sink__position_0"


@pytest.mark.parametrize(
    ("has", "made", "answer"),
    [
        (emergence.grown, run(**{RATE: (0.0, 0.0, 1.0, 5.0)}), True),
        (emergence.grown, run(**{RATE: (5.0, 5.0, 5.0, 5.9)}), False),
        (emergence.grown, run(), None),
        (emergence.steady, run(sink__mass=(0.0, 1.0, 2.0, 3.0)), True),
        (emergence.steady, run(sink__mass=(3.0, 1.0, 2.0, 0.0)), False),
        (emergence.steady, run(), None),
        (learning_rate.early, run(**{RATE: (0.0, 0.0, 1.0, 5.0)}), True),
        (learning_rate.early, run(**{RATE: (0.0, 0.0, 0.0, 5.0)}), False),
        (learning_rate.early, run(), None),
        (prefix_longer.in_prefix, run({f"sink_{k}": 0.5 for k in range(1, 4)} | {"sink_4": 1.0}), True),
        (prefix_longer.in_prefix, run({"sink_0": 9.0} | {f"sink_{k}": 0.5 for k in range(1, 5)}), False),
        (prefix_longer.in_prefix, run({"sink_0": 9.0}), None),
        (domains.alike, run({f"sink_0/domain={name}": 5.0 for name in domains.DOMAINS}), True),
        (domains.alike, run({f"sink_0/domain={n}": 5.0 * i for i, n in enumerate(domains.DOMAINS)}), False),
        (domains.alike, run({"sink_0/domain=numpy": 5.0}), None),
        (sink_head.later_blocks, run({f"sink_mass/strongest/layer={k}": float(k) for k in range(4)}), True),
        (sink_head.later_blocks, run({f"sink_mass/strongest/layer={k}": 4.0 - k for k in range(4)}), False),
        (sink_head.later_blocks, run(), None),
    ],
)
def test_properties(has, made, answer):
    assert has(made) is answer


def test_a_token_is_fixed_at_one_position_and_nowhere_else():
    (token,) = fixed_token.fixed(2)["data.interventions"]
    assert (token["position"], token["token"], fixed_token.fixed(2)["data.bos"]) == (2, fixed_token.BOS, "none")
    assert math.isclose(random_tokens.drawn(1, 2)["data.interventions"][0]["stop"], 2)
