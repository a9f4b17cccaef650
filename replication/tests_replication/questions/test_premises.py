"""Properties of models that single questions ask for, on made-up runs."""

from __future__ import annotations

import math

import pytest

from sinkscope.experiments import Observed
from sinkscope_replication.questions import data, loss, mechanism, mixture, optimization, reading


def run(metrics: dict[str, float] | None = None, **curves: tuple[float, ...]) -> Observed:
    named = {name.replace("__", "/"): values for name, values in curves.items()}
    steps = tuple(range(1, 1 + max([len(values) for values in named.values()], default=0)))
    return Observed("r", "finished", 0, metrics or {}, steps, named)


RATE = "sink__position_0"


@pytest.mark.parametrize(
    ("has", "made", "answer"),
    [
        (reading.grown, run(**{RATE: (0.0, 0.0, 1.0, 5.0)}), True),
        (reading.grown, run(**{RATE: (5.0, 5.0, 5.0, 5.9)}), False),
        (reading.grown, run(), None),
        (reading.steady, run(sink__mass=(0.0, 1.0, 2.0, 3.0)), True),
        (reading.steady, run(sink__mass=(3.0, 1.0, 2.0, 0.0)), False),
        (reading.steady, run(), None),
        (optimization.early, run(**{RATE: (0.0, 0.0, 1.0, 5.0)}), True),
        (optimization.early, run(**{RATE: (0.0, 0.0, 0.0, 5.0)}), False),
        (optimization.early, run(), None),
        (loss.in_prefix, run({f"sink_{k}": 0.5 for k in range(1, 4)} | {"sink_4": 1.0}), True),
        (loss.in_prefix, run({"sink_0": 9.0} | {f"sink_{k}": 0.5 for k in range(1, 5)}), False),
        (loss.in_prefix, run({"sink_0": 9.0}), None),
        (mixture.alike, run({f"sink_0/domain={name}": 5.0 for name in mixture.DOMAINS}), True),
        (mixture.alike, run({f"sink_0/domain={n}": 5.0 * i for i, n in enumerate(mixture.DOMAINS)}), False),
        (mixture.alike, run({"sink_0/domain=numpy": 5.0}), None),
        (mechanism.later_blocks, run({f"sink_mass/strongest/layer={k}": float(k) for k in range(4)}), True),
        (mechanism.later_blocks, run({f"sink_mass/strongest/layer={k}": 4.0 - k for k in range(4)}), False),
        (mechanism.later_blocks, run(), None),
    ],
)
def test_properties(has, made, answer):
    assert has(made) is answer


def test_a_token_is_fixed_at_one_position_and_nowhere_else():
    (token,) = data.fixed(2)["data.interventions"]
    assert (token["position"], token["token"], data.fixed(2)["data.bos"]) == (2, data.BOS, "none")
    assert math.isclose(data.drawn(1, 2)["data.interventions"][0]["stop"], 2)
