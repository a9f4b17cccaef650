"""`--observers`: sets, names, and classes of one's own."""

from __future__ import annotations

import pytest

from sinkscope.measurement import Measurement


@pytest.mark.slow
def test_observers_by_name_and_of_ones_own(sinkscope, model, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from sinkscope.measurement import Array, Observer, Piece\n"
        "@dataclass(frozen=True)\n"
        "class Ones(Observer):\n"
        "    def on_call(self, call):\n"
        "        yield Piece('ones', call.query.new_ones(call.query.shape[:2]))\n"
        "    def arrays(self, found):\n"
        "        return {'ones': Array(found.sums['ones'], None)} if 'ones' in found.sums else {}\n"
    )
    given = ("measure", model, "--input", "random", "--samples", 2, "--tokens", 12, "--out", "m")
    assert sinkscope(*given, "--observers", "SelfAttention,mine:Ones").code == 0
    data = Measurement.load(tmp_path / "m" / "measurement.nc").data
    assert {"ones", "self_attention", "attention_received", "hidden_norm"} <= set(data)
    assert "entropy" not in data
    assert sinkscope(*given, "--observers", "mine:One").error.endswith(
        "'mine:One': module 'mine' has no attribute 'One'"
    )
    assert "did you mean 'SelfAttention'" in sinkscope(*given, "--observers", "SelfAtention").error
