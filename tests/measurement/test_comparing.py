"""`ss.compare`: planted differences found, of what is saved, of models, and of several beside the first."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.measurement import Comparison, Comparisons, distinct
from sinkscope.report.comparison_page import comparison_page

IDS = torch.randint(0, 101, (24, 16), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def base() -> ss.Measurement:
    from tests.plugin import tiny_llama

    return ss.measure(tiny_llama.__wrapped__(), IDS)


def moved(measurement: ss.Measurement, by: float, sha256: str | None = None) -> ss.Measurement:
    """Layer 1, head 2 gives position 0 more, by as much in every sample."""
    data = measurement.data.copy(deep=True)
    data["attention_received"].loc[{"layer": 1, "head": 2, "position": 0}] += by
    record = measurement.record
    if sha256 is not None:
        record["input"]["sha256"] = sha256
    return ss.Measurement(data.assign_attrs(record=json.dumps(record)))


def test_a_planted_difference_is_found_in_its_head_alone(base: ss.Measurement) -> None:
    heads = ss.compare(base, moved(base, 0.07)).heads()
    assert len(heads) == 8
    found = heads[heads["differs"]]
    assert found[["layer", "head"]].to_numpy().tolist() == [[1, 2]]
    np.testing.assert_allclose(found[["difference", "low", "high"]].to_numpy(), 0.07, atol=1e-6)
    assert (heads[~heads["differs"]]["difference"] == 0).all()


def test_samples_that_are_not_the_same_are_drawn_apart(base: ss.Measurement) -> None:
    """The same numbers of other tokens: the spread of both samples stands in the interval."""
    apart = ss.compare(base, moved(base, 0.0, sha256="other"))
    assert not apart.paired
    assert ss.compare(base, base).paired
    row = apart.heads().iloc[0]
    values = base.data["attention_received"].transpose("sample", "layer", "head", "position").values[:, 0, 0, 0]
    standard = np.std(values) * np.sqrt(2 / len(values))
    assert (row["high"] - row["low"]) / (2 * 1.96 * standard) == pytest.approx(1, rel=0.15)
    assert row["low"] < 0 < row["high"]


@pytest.mark.slow
def test_models_checkpoints_and_files_are_the_same_thing(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    other = deepcopy(tiny_llama)
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight *= 0.5
    folders = [tmp_path / "a" / "checkpoint", tmp_path / "b"]
    for model, folder in zip((tiny_llama, other), folders, strict=True):
        model.save_pretrained(folder)
    measured = [ss.measure(model, IDS) for model in (tiny_llama, other)]
    (tmp_path / "m").mkdir()
    measured[1].save(tmp_path / "m" / "measurement.nc")
    wanted = ss.compare(*measured).heads()
    for pair in (folders, (measured[0], tmp_path / "m"), (tiny_llama, tmp_path / "m" / "measurement.nc")):
        given = {"inputs": IDS} if not isinstance(pair[0], ss.Measurement) else {}
        found = ss.compare(*pair, **given)
        assert found.paired
        pd.testing.assert_frame_equal(found.heads(), wanted, atol=1e-5)
        assert found.names[1].endswith(str(Path(pair[1]).name))


def test_several_stand_beside_the_first(base: ss.Measurement) -> None:
    both = ss.compare(base, moved(base, 0.07), moved(base, -0.05), names=("base", "up", "down"))
    assert isinstance(both, Comparisons)
    assert [part.names for part in both] == [("base", "up"), ("base", "down")]
    heads = both.heads()
    differences = heads[heads["differs"]].set_index("of")["difference"]
    assert differences.round(6).to_dict() == {"up": 0.07, "down": -0.05}
    assert json.loads(json.dumps(both.to_json()))["comparisons"][1]["names"] == ["base", "down"]
    assert distinct(["a", "b", "a"]) == ("a (1)", "b", "a (2)")


def test_heads_without_partners_are_not_compared(base: ss.Measurement) -> None:
    fewer = ss.Measurement(base.data.isel(layer=[0]))
    found = ss.compare(base, fewer, names=("big", "small"))
    assert not found.has_partners
    with pytest.raises(ss.InputError, match=r"heads of big and small have no partners: 2 × 4 and 1 × 4"):
        found.heads()
    assert found.to_json()["heads"] is None
    assert [section.title for section in comparison_page(found).sections] == ["Numbers of both"]


def test_what_cannot_be_compared(base: ss.Measurement, tmp_path: Path) -> None:
    base.save(tmp_path / "m.nc")
    for call, said in (
        (lambda: ss.compare(base, "nano"), "'nano' is to be measured: pass inputs=… or texts=…"),
        (lambda: ss.compare(base, base, inputs=IDS), "everything was measured already: inputs would change nothing"),
        (lambda: ss.compare(base, tmp_path / "n.nc"), "no measurement at"),
        (lambda: ss.compare(base, base, names=("one",)), "2 measurements have 1 names"),
        (lambda: ss.compare(base, base).heads(99), "position"),
    ):
        with pytest.raises(ss.InputError, match=said):
            call()


def test_the_map_is_scaled_by_what_differs(base: ss.Measurement) -> None:
    figure = ss.compare(base, moved(base, 0.07)).plot()
    assert figure.data[0].zmax == pytest.approx(7.0, abs=1e-3)
    nothing = ss.compare(base, base).plot()
    assert (nothing.data[0].zmin, nothing.data[0].zmax) == (-1.0, 1.0)
    assert len(nothing.data[1].x) == 0


def test_a_page_has_both_and_escapes_their_names(base: ss.Measurement, tmp_path: Path) -> None:
    from sinkscope.report.page import render

    both = ss.compare(base, moved(base, 0.07), names=("a<script>", "b"))
    assert isinstance(both, Comparison)
    page = comparison_page(both)
    assert [section.title for section in page.sections] == ["Numbers of both", "Heads"]
    assert "1 of 8 heads" in page.sections[1].sentence
    assert "a<script>" not in render(page)
