"""`sinkscope compare`: models and saved measurements, one folder, one page."""

from __future__ import annotations

import pandas as pd
import pytest

FEW = ("--samples", 6, "--tokens", 16)


@pytest.mark.slow
def test_models_and_saved_measurements(sinkscope, model, text, tmp_path):
    read = ("--text", text, *FEW)
    assert sinkscope("measure", model, *read, "--observers", "few", "--out", "m").code == 0
    found = sinkscope("compare", "m", model, *read, "--out", "c", "--json").json
    assert found["paired"]
    assert found["names"] == ["m", model.name]
    assert all(row["difference"] == 0 for row in found["heads"])
    files = {"compare.json", "figure.html", "heads.csv", "table.csv"}
    assert {path.name for path in (tmp_path / "c").iterdir()} == files
    assert len(pd.read_csv(tmp_path / "c" / "heads.csv")) == len(found["heads"])
    answer = sinkscope("compare", "m", "m", "m", "--out", "c")
    assert answer.code == 0
    assert "m (2)" in answer.out
    assert set(pd.read_csv(tmp_path / "c" / "heads.csv")["of"]) == {"m (2)", "m (3)"}


def test_what_cannot_be_compared(sinkscope, model, tmp_path):
    assert "at least two" in sinkscope("compare", model).error
    assert "no such folder: './nowhere'" in sinkscope("compare", model, "./nowhere", *FEW, "--input", "random").error
