"""`sinkscope export`: a result for an engine, a model as a plain folder, bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.checks import Answered, Card, Part, Row
from sinkscope.cli import app
from sinkscope.statistics import Interval


def test_a_card_becomes_lines_and_a_model_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = Row("vllm-fp8", "vllm-fp8", Interval(0.001, 0.0, 0.002), "KL a token", 24, "free", advice="use it")
    parts = (Part("cache", "Bits of the cache", {"prose": Answered(rows=(row,))}),)
    card = Card({"model": "nano", "texts": [{"name": "prose", "says": "24 texts", "n": 24, "sha256": ""}]}, parts)
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "card.json").write_text(json.dumps(card.to_json()))
    assert app.main(["export", str(tmp_path / "card"), "--for", "vllm", "--out", str(tmp_path / "serve")]) == 0
    assert "--kv-cache-dtype fp8" in capsys.readouterr().out
    assert app.main(["export", "nano", "--out", str(tmp_path / "plain"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert {"config.json", "model.safetensors"} <= {Path(path).name for path in written}
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["model_type"] == "llama"


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["export", "nano", "--for", "vLLM", "--out", str(tmp_path / "x")]) == 2
    assert app.main(["export", str(tmp_path / "nothing"), "--out", str(tmp_path / "x")]) == 2
    (tmp_path / "card.json").write_text("{}")
    assert app.main(["export", str(tmp_path), "--for", "vLLM", "--out", str(tmp_path / "x")]) == 2
    assert app.main(["export", "nothere.json", "--for", "vLLM", "--out", str(tmp_path / "x")]) == 2
    assert app.main(["export", "sinkscope-check/nothere", "--for", "vLLM", "--out", str(tmp_path / "x")]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 5
    assert "no such file: 'nothere.json'" in errors[3]
    assert "'sinkscope-check/nothere' holds no result" in errors[4]
