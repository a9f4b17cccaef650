import json
import math

import numpy as np
import pytest

from sinkscope.report.terminal import flat, only_json, plain, show, show_json, table


def test_json_has_no_nan(capsys):
    show_json({"loss": math.nan, "rows": [(1.5, -math.inf)], "name": "α", "rate": np.float64("nan")})
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=lambda name: name) == {
        "loss": None,
        "rows": [[1.5, None]],
        "name": "α",
        "rate": None,
    }
    assert "α" in out


def test_only_json_sends_everything_else_to_stderr(capsys):
    with only_json(True):
        print("a library's remark")
    assert capsys.readouterr() == ("", "a library's remark\n")
    with only_json(False):
        print("a result")
    assert capsys.readouterr().out == "a result\n"


def test_text_is_shown_as_it_is(capsys):
    show(plain("[bold]x[/bold] \x1b[31m\x07 α"))
    assert capsys.readouterr().out == "[bold]x[/bold] �[31m� α\n"


def test_cells_are_text_too(capsys):
    show(table(("name [red]", "n"), [("[link=http://x]model[/link]", 3)]))
    assert "[link=http://x]model[/link]" in capsys.readouterr().out


def test_flat_names_what_is_nested():
    nested = {"a": {"b": 1, "c": [{"d": 2}, {"d": 3}]}, "e": [1, 2], "f": {}}
    assert flat(nested) == [("a.b", 1), ("a.c[0].d", 2), ("a.c[1].d", 3), ("e", [1, 2]), ("f", {})]


def test_narrow_tables_break_lines_between_words(capsys, monkeypatch):
    """Columns of single words stay whole; a path is broken before it pushes everything else out."""
    monkeypatch.setenv("COLUMNS", "50")
    path = "/a/folder" * 8
    show(table(("experiment", "question", "verdict"), [("normalisation", "why " * 20, "inconclusive")]))
    show(table(("file", "kind"), [(path, "record")]))
    out = capsys.readouterr().out
    assert "normalisation" in out
    assert "inconclusive" in out
    assert path not in out
    assert path in "".join(line[:42].strip() for line in out.split("kind")[1].split("\n"))
    assert all(len(line) <= 50 for line in out.split("\n"))


def test_no_line_is_broken_in_a_pipe_unless_a_width_is_asked_for(capsys, monkeypatch):
    rows = [("arm", *["+0.045 (0.004 to 0.086)"] * 9)] * 2
    monkeypatch.delenv("COLUMNS", raising=False)
    show(table(["what", *map(str, range(9))], rows))
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "80")
    show(table(["what", *map(str, range(9))], rows))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("width", [30, 37, 50, 64, 80, 106, 107, 300])
def test_no_number_is_cut(capsys, monkeypatch, width):
    """Where not all columns fit, the later ones follow below, beside the first two again."""
    monkeypatch.setenv("COLUMNS", str(width))
    names = ("variation", "seed", *(f"metric_{index}" for index in range(9)))
    rows = [("window of 16", 0, *range(1000, 1009)), ("causal", 1, *range(2000, 2009))]
    show(table(names, rows, numbers_from=1, keys=2))
    out = capsys.readouterr().out
    lines = out.splitlines()
    words = out.split()
    for word in (*names[2:], *map(str, [*range(1000, 1009), *range(2000, 2009)])):
        assert words.count(word) == 1, word
    blocks = words.count("seed")
    assert blocks == words.count("causal") == words.count("variation")
    assert (blocks == 1) == (width >= 107)  # 9 + 4 + 9 * 8 and two spaces behind each of the eleven
    assert all(len(line) <= width for line in lines)


def test_a_verdict_stays_beside_its_claim(capsys, monkeypatch):
    """Phrases give way until all columns fit; short cells give way last."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ("experiment", "claim", "asked", "effect ± spread", "seeds", "cost", "verdict")
    row = ("backcopy-minimal", "one of them looks there " * 4, "> 0.5 in 3 seeds", "0.96 ± 0.0031", 3, "2.8 min")
    show(table(names, [(*row, "inconclusive")], numbers_from=len(names)))
    out = capsys.readouterr().out
    assert out.split().count("experiment") == 1
    assert "2.8 min  inconclusive" in out


@pytest.mark.parametrize("width", [17, 40, 80])
@pytest.mark.parametrize("names", [("name", "loss", "sinks"), ("", "", "")])
def test_lines_that_fit_are_those_of_a_table_that_breaks_them(capsys, monkeypatch, names, width):
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [(f"run {index}" * (index % 3), f"{index / 7:.2f}", *(("测试",) if index % 2 else ())) for index in range(9)]
    shown = table(names, rows)
    show(shown)
    written = capsys.readouterr().out
    monkeypatch.setattr(type(shown), "_fits", lambda self, widths: False)
    show(shown)
    assert written == capsys.readouterr().out
