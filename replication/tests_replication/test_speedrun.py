"""Recipes for an early sink: what stops a run, what is kept of it, and the corpus of short documents."""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sinkscope.data import natural_windows
from sinkscope.errors import InputError
from sinkscope.model import load, load_tokenizer
from sinkscope.training import load_recipe
from sinkscope_replication import speedrun
from sinkscope_replication.speedrun import ATTEMPTS, Attempt, attempt_run, pieces_of, table

LOGS = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1]) / "run"
folder.mkdir(parents=True)
with (folder / "log.jsonl").open("w") as log:
    for step, rate in enumerate((0.0, 4.0, 12.0, 40.0)):
        row = {"step": step, "sink/position_0": rate, "sink/strongest": rate, "validation_loss": 3.0 - step / 10}
        log.write(json.dumps(row) + "\\n")
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


def training(monkeypatch, seconds: float, code: int = 0) -> None:
    """A training that writes four evaluations, waits, and ends."""
    monkeypatch.setattr(speedrun, "POLL", 0.02)
    monkeypatch.setattr(
        speedrun, "command", lambda attempt, seed, out: [sys.executable, "-c", LOGS, str(out), str(seconds), str(code)]
    )


def test_a_run_is_stopped_at_its_target(tmp_path, monkeypatch):
    training(monkeypatch, seconds=60)
    start = time.monotonic()
    row = attempt_run(Attempt("fast", "fast"), 100, tmp_path)
    assert time.monotonic() - start < 30
    assert (row["reached"], row["step"], row["rate"], row["loss"]) == (True, 2, 12.0, 2.8)
    assert row["curve"][1] == [1, 4.0, 2.9]


def test_a_run_that_is_not_there_in_time_is_given_up(tmp_path, monkeypatch):
    training(monkeypatch, seconds=60)
    monkeypatch.setattr(speedrun, "PATIENCE", 3)
    start = time.monotonic()
    row = attempt_run(Attempt("slow", "slow", target=speedrun.WITH_BOS, rate=speedrun.RATES[1]), 100, tmp_path / "with")
    assert time.monotonic() - start < 30
    assert row["reached"]  # at step 2, before its patience ends
    monkeypatch.setattr(speedrun, "WITH_BOS", 50.0)
    row = attempt_run(Attempt("slow", "slow", target=50.0), 100, tmp_path / "late")
    assert time.monotonic() - start < 30
    assert (row["reached"], row["step"]) == (False, 3)


def test_a_run_that_never_gets_there_says_so_and_one_that_fails_is_an_error(tmp_path, monkeypatch):
    training(monkeypatch, seconds=0)
    row = attempt_run(Attempt("slow", "slow", target=50.0), 100, tmp_path / "one")
    assert (row["reached"], row["step"], row["rate"]) == (False, 3, 40.0)
    training(monkeypatch, seconds=0, code=2)
    with pytest.raises(InputError, match="slow, seed 100: training failed"):
        attempt_run(Attempt("slow", "slow", target=50.0), 100, tmp_path / "other")


@pytest.mark.release
def test_short_documents_are_read_on_whole_windows(tmp_path, monkeypatch):
    """Not on themselves, where uniform attention is close to a sink."""
    texts = [json.dumps({"text": f"def function_{number}(argument):\n    return {number}\n"}) for number in range(2000)]
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(texts))
    monkeypatch.setattr(speedrun, "short_documents", lambda folder: short)
    small = {"steps": 1, "save_every": 1, "compile": False, "batch_size": 2, "data.tokenizer": "nano"}
    attempt = ATTEMPTS["restarts"]
    row = attempt_run(replace(attempt, changes={**attempt.changes, **small}), 100, tmp_path / "out")
    assert (row["reached"], row["rate"], [step for step, *_ in row["curve"]]) == (False, 0, [1])
    model = load(str(next(tmp_path.glob("out/restarts/100/*/model"))))
    rows = natural_windows(load_tokenizer("nano"), 64, 100, 0).input_ids
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    naive = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert row["loss"] == pytest.approx(float(naive), abs=1e-3)


def test_what_is_recorded_is_not_run_again(tmp_path, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(speedrun, "attempt_run", lambda attempt, seed, out: made.append(seed) or row_of("nano", seed))
    options = ["--records", str(tmp_path / "kept.jsonl"), "--out", str(tmp_path)]
    speedrun.main(["nano", "--seeds", "100", *options])
    speedrun.main(["nano", "--seeds", "100", "101", *options])
    assert made == [100, 101]
    capsys.readouterr()
    speedrun.main(options)
    assert "| `nano` | " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        speedrun.main(["nanno", *options])
    assert "did you mean 'nano'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n", "line 1 is not JSON"),
        ('{"step": 1}', "last line, 1, has no end"),
        ('{"step": 1}\n', "line 1 is no record of an attempt: it has no 'name'"),
    ],
)
def test_a_damaged_file_of_records_ends_in_one_line(text, words, tmp_path, capsys):
    (tmp_path / "kept.jsonl").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        speedrun.main(["nano", "--records", str(tmp_path / "kept.jsonl"), "--out", str(tmp_path)])
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "kept.jsonl").read_text() == text


def test_a_training_that_fails_ends_in_one_line(tmp_path, monkeypatch, capsys):
    training(monkeypatch, seconds=0, code=2)
    monkeypatch.setitem(ATTEMPTS, "slow", Attempt("slow", "slow", target=50.0))
    with pytest.raises(SystemExit, match="2"):
        speedrun.main(["slow", "--records", str(tmp_path / "kept.jsonl"), "--out", str(tmp_path)])
    assert "slow, seed 100: training failed" in capsys.readouterr().err.splitlines()[-1]


def row_of(name: str, seed: int, step: int = 900, reached: bool = True) -> dict[str, object]:
    return {
        "name": name,
        "seed": seed,
        "reached": reached,
        "core_minutes": 9.0,
        "step": step,
        "rate": 10.5,
        "loss": 3.2,
    }


def test_the_fewest_steps_come_first_and_what_missed_its_target_last():
    recorded = [row_of("nano", 0, 1000), row_of("plain", 0, 50, reached=False), row_of("bf16", 0, 1100)]
    lines = list(table([*recorded, row_of("bf16-lr2", 0, 50, reached=False)]))
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        *(ATTEMPTS[name].words for name in ("nano", "bf16")),
        "`nano`, no BOS",
    ]
    assert " 0/1 | – | – | – | – |" in lines[-1]
    assert " 1,000 | 9.0 | 10.5 % |" in lines[0]


def test_numbers_are_shown_where_half_reach_the_target():
    def numbers(*rows: dict[str, object]) -> list[str]:
        (line,) = table(rows)
        return line.strip("| ").split(" | ")[1:6]

    one, two = row_of("nano", 0, 1000), row_of("nano", 1, 1100) | {"core_minutes": 10.0, "rate": 12.5, "loss": 3.0}
    missed = [row_of("nano", seed, 1500, reached=False) for seed in (2, 3, 4)]
    assert numbers(one, two, *missed[:1]) == ["2/3", "1,100", "10.0", "11.5 %", "3.10"]
    assert numbers(one, two, *missed[:2]) == ["2/4", "1,100", "10.0", "11.5 %", "3.10"]
    assert numbers(one, two, *missed) == ["2/5", "–", "–", "–", "–"]
    on_gpu = two | {"core_minutes": None}
    assert numbers(one, on_gpu) == ["2/2", "1,050", "9.0", "11.5 %", "3.10"]
    assert numbers(on_gpu) == ["1/1", "1,100", "–", "12.5 %", "3.00"]


def test_minutes_of_a_gpu_are_no_core_minutes():
    by_device = {row["seed"]: row["core_minutes"] for row in speedrun.of_the_study() if row["name"] == "nano"}
    assert all((minutes is None) == (seed in range(25, 31)) for seed, minutes in by_device.items())


def test_the_readme_has_the_attempts_of_the_records():
    lines = list(table([*speedrun.of_the_study(), *speedrun.rows()]))
    shown = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= len(speedrun.STUDIED)
    assert [line for line in lines if line not in shown] == []


@pytest.mark.parametrize("name", ATTEMPTS)
def test_every_attempt_is_a_recipe(name, tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun, "short_documents", lambda folder: folder / "short.jsonl")
    words = speedrun.command(ATTEMPTS[name], 100, tmp_path / "a" / "b")
    sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
    recipe = load_recipe("nano", sets)
    assert recipe.seed == 100
    assert (recipe.data.bos == "none") == (ATTEMPTS[name].target == speedrun.WITHOUT_BOS)


def test_short_documents_are_whole_lines_in_order():
    tokenizer = load_tokenizer("nano")
    lines = [f"def function_{number}(argument):  # {'word ' * (number % 90)}\n" for number in range(200)]
    text = "".join(lines)
    pieces = pieces_of(text, tokenizer)
    assert pieces
    assert all(len(tokenizer(piece, add_special_tokens=False)["input_ids"]) <= speedrun.LONGEST + 2 for piece in pieces)
    assert [line for piece in pieces for line in piece.splitlines(keepends=True)] == [
        line for line in lines if any(line in piece for piece in pieces)
    ]
    assert len(pieces) < sum(piece.count("\n") for piece in pieces)  # some hold several lines
    assert pieces_of("x\n", tokenizer) == []
