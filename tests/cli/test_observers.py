"""`--observers`: sets, names, and classes of one's own."""

from __future__ import annotations

import pytest

from sinkscope.measurement import Measurement

MINE = """from dataclasses import dataclass
from sinkscope.measurement import Array, Observer, Piece
@dataclass(frozen=True)
class Ones(Observer):
    def on_call(self, call):
        yield Piece('ones', call.query.new_ones(call.query.shape[:2]))
    def arrays(self, found):
        return {'ones': Array(found.sums['ones'], None)} if 'ones' in found.sums else {}
"""


@pytest.mark.slow
def test_observers_by_name_and_of_ones_own(sinkscope, model, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    given = ("measure", model, "--input", "random", "--samples", 2, "--tokens", 12, "--out", "m")
    assert sinkscope(*given, "--observers", "SelfAttention,mine:Ones").code == 0
    data = Measurement.load(tmp_path / "m" / "measurement.nc").data
    assert {"ones", "self_attention", "attention_received", "hidden_norm"} <= set(data)
    assert "entropy" not in data
    assert sinkscope(*given, "--observers", "mine:One").error.endswith(
        "'mine:One': module 'mine' has no attribute 'One'"
    )
    assert "did you mean 'SelfAttention'" in sinkscope(*given, "--observers", "SelfAtention").error


@pytest.mark.slow
def test_an_observer_of_ones_own_that_was_edited_is_measured_again(sinkscope, model, tmp_path):
    (tmp_path / "ours.py").write_text(MINE)
    given = ("measure", model, "--input", "random", "--samples", 2, "--tokens", 12)
    call = (*given, "--out", "m", "--observers", "ours:Ones")
    assert sinkscope(*call).code == 0
    assert "not measured again" in sinkscope(*call).err
    (tmp_path / "ours.py").write_text(f"{MINE}# changed\n")
    answer = sinkscope(*call)
    assert answer.code == 0
    assert "not measured again" not in answer.err
