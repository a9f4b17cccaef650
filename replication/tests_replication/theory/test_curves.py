"""The curves of the figure: measurements that lie on their closed forms, and a collapse that sinks slow down."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sinkscope_replication.theory import curves
from sinkscope_replication.theory.repeated import RELATIVE


def test_measurements_lie_on_their_closed_forms(monkeypatch):
    monkeypatch.setattr(curves, "LENGTHS", (4, 32))
    found = curves.sinks_by_length()
    assert [curve.name for curve in found] == list(RELATIVE)
    for curve in found:
        assert curve.found == pytest.approx(curve.expected, abs=1e-6)
    assert found[0].expected == pytest.approx((25 / 48, 0.126828), abs=1e-6)


def test_a_stronger_sink_leaves_a_larger_spread():
    found = curves.spread_by_depth()
    assert [curve.name for curve in found] == list(curves.SINKS)
    for weaker, stronger in pairwise(found):
        assert all(before < after for before, after in zip(weaker.found[1:], stronger.found[1:], strict=True))
    assert found[0].found[-1] < 0.05
    assert found[-1].found[-1] > 0.9
