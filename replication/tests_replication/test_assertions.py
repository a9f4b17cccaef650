"""Claims in the words that questions share."""

from __future__ import annotations

import math

from sinkscope_replication.assertions import all_keep_sink

from sinkscope.experiments.effects import at_equal_loss
from tests.experiments.test_effects import straight


def test_a_claim_about_several_at_equal_loss_is_about_the_least():
    curves = {"a": (5.0, 5.0), "b": (3.0, 3.0), "base": (7.0, 7.0)}
    runs = {label: straight((4.0, 2.0), rates) for label, rates in curves.items()}
    assert at_equal_loss("a", "base")(runs) == 5.0
    claims = {one.claim.name: one for one in all_keep_sink(("a", "b"), "base", "a test")}
    assert claims["always a sink at equal loss"].effect(runs) == 3.0
    assert math.isnan(claims["always mass at equal loss"].effect(runs))  # runs of before keep no mass
