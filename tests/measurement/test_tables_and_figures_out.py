"""Tables as files, the page in one call, figures by name."""

from __future__ import annotations

import builtins
from pathlib import Path

import pandas as pd
import pytest

import sinkscope as ss
from sinkscope.files.pictures import write_figure
from sinkscope.measurement import Measurement
from sinkscope.measurement.figures import PLOTS


def test_every_table_is_what_its_method_gives(complete: Measurement) -> None:
    tables = complete.tables(0.2)
    assert {"table", "definitions", "heads", "depths"} <= set(tables)
    pd.testing.assert_frame_equal(tables["heads"], complete.heads(0.2))
    pd.testing.assert_frame_equal(tables["table"], complete.table(0.2))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_come_back_from_their_files(form: str, complete: Measurement, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    paths = complete.write_tables(tmp_path / "t", form=form)
    assert {path.stem for path in paths} == set(complete.tables())
    read = pd.read_csv if form == "csv" else pd.read_parquet
    for path in paths:
        wanted = complete.tables()[path.stem]
        found = read(path)
        assert list(found.columns) == list(wanted.columns)
        assert len(found) == len(wanted)
    found, wanted = read(tmp_path / "t" / f"table.{form}"), complete.table()
    pd.testing.assert_series_equal(found["sink_rate"], wanted["sink_rate"])


def test_what_was_not_observed_has_no_table(complete: Measurement) -> None:
    few = Measurement(complete.data.drop_vars(["attention_received", "hidden_norm"]))
    assert "heads" not in few.tables()
    assert "depths" not in few.tables()


@pytest.mark.slow
def test_a_form_that_there_is_not(complete: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ss.InputError, match="unknown form of tables 'xlsx': choose from csv, parquet"):
        complete.write_tables(tmp_path / "t", form="xlsx")
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name in ("pyarrow", "kaleido"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ss.InputError, match=r"pip install 'sinkscope\[data\]'"):
        complete.write_tables(tmp_path / "t", form="parquet")
    with pytest.raises(ss.InputError, match=r"pip install 'sinkscope\[figures\]'"):
        write_figure(complete.plot(), tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_page_in_one_call(complete: Measurement, tmp_path: Path) -> None:
    path = ss.write_report(complete, tmp_path / "page.html", title="Mine & yours")
    text = path.read_text(encoding="utf-8")
    assert "Mine &amp; yours" in text
    assert "Every definition of a sink" in text
    with pytest.warns(DeprecationWarning, match="is sinkscope.write_report"):
        before = complete.report(tmp_path / "again.html", title="Mine & yours")
    assert before.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", PLOTS)
def test_figures_by_name(kind: str, complete: Measurement) -> None:
    figure = complete.plot(kind=kind)
    assert len(figure.data) > 0
    if kind in ("heads", "hidden", "values"):
        other = complete.plot(kind=kind, position=1)
        assert other.to_json() != figure.to_json()
    if kind in ("positions", "depths"):
        with pytest.raises(ss.InputError, match=f"plot '{kind}' shows every position"):
            complete.plot(kind=kind, position=1)


def test_a_figure_that_there_is_not(complete: Measurement, tmp_path: Path) -> None:
    with pytest.raises(ss.InputError, match="unknown plot 'head': did you mean 'heads'"):
        complete.plot(kind="head")
    with pytest.raises(ss.InputError, match=r"choose from .*map"):
        complete.plot(kind="nope")
    with pytest.raises(ss.InputError, match="position"):
        complete.plot(kind="heads", position=10_000)
    with pytest.raises(ss.InputError, match="unknown figure format 'gif': choose from svg, pdf, png"):
        write_figure(complete.plot(), tmp_path / "a.gif")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "starts"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_figures_as_files(kind: str, starts: bytes, complete: Measurement, tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="static figures need the extra figures")
    write_figure(complete.plot(), tmp_path / f"a.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes().startswith(starts)
