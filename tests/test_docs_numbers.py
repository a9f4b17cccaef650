"""Numbers that stand in tables of the documentation are those that the commands above them write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import sinkscope as ss
from sinkscope.cli import main
from sinkscope.data import build_inputs
from sinkscope.experiments import SHIPPED
from sinkscope.experiments.findings import read
from sinkscope.model import load_tokenizer

DOCS = Path(__file__).parent.parent / "docs"
TEXT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAMPLES = ("--samples", "20")


def tables(page: str) -> list[list[list[str]]]:
    """The words of each block of text, line by line."""
    return [[line.split() for line in block.splitlines()] for block in TEXT.findall((DOCS / page).read_text())]


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the Markdown table that begins with this head."""
    lines = (DOCS / page).read_text().partition(f"\n{head}")[2].splitlines()
    start = [line.strip("|").split("|") for line in lines[2:]]
    return [[cell.strip() for cell in row] for row in start[: next(i for i, row in enumerate(start) if len(row) < 3)]]


def says(written: str, number: float) -> bool:
    """Whether a written number is this one, in the digits that it has."""
    digits = len(written.partition(".")[2])
    return abs(float(written) - number) <= 0.51 * 10**-digits


def test_a_written_number_is_compared_in_its_digits() -> None:
    assert says("0.52", 0.5168)
    assert not says("0.52", 0.5268)
    assert says("100", 99.7)


def test_the_seed_of_sigmoid_that_reads_high_is_told_of() -> None:
    found = read(SHIPPED, "normalisation", "nano")
    assert found is not None
    rates = {seed: run.metrics["sink_0"] for seed, run in found.runs["sigmoid"].items() if seed < 3}
    told = re.search(r"first three seeds\s+has a rate of ([\d.]+) %", (DOCS.parent / "README.md").read_text())
    assert told is not None
    assert says(told[1], max(rates.values()))
    assert max(rates, key=rates.__getitem__) == 1


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command of the page on mechanisms leaves."""
    folder = tmp_path_factory.mktemp("nano")
    assert main(["measure", "nano", *SAMPLES, "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("number", "file"), [(0, "heads.csv"), (1, "depths.csv")])
def test_the_tables_of_mechanisms_are_what_is_measured(nano: Path, number: int, file: str) -> None:
    (names, *lines), found = tables("by_which_mechanism.md")[number], pd.read_csv(nano / file)
    keys = [name for name in ("layer", "head", "depth") if name in names]
    assert len(lines) >= 4
    for line in lines:
        row = dict(zip(names, line, strict=True))
        at = found
        for key in keys:
            at = at[at[key] == int(row[key])]
        [(_, there)] = at.iterrows()
        for name, written in row.items():
            value = there[name]
            assert value == written if isinstance(value, str) else says(written, float(value)), (name, written, value)


def signed(written: str) -> list[float]:
    """The numbers of "**+0.079** (0.055 to 0.102)"."""
    return [float(number) for number in re.findall(r"[-+]?[0-9.]+", written.replace("−", "-").replace("*", ""))]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["remove-onset", "zero-massive", "suppress-bands"])
def test_the_table_of_interventions_is_what_they_do(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = [row for row in rows("does_it_matter.md", "| `--what` | acts on") if row[0] == f"`{what}`"]
    assert main(["intervene", "nano", "--what", what, *SAMPLES, "--out", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    trial = ss.trials.load(tmp_path / "trial.nc")
    for written, found in ((row[2], trial.cost(what, "nats")), (row[3], trial.difference(what, score="nats"))):
        assert signed(written) == pytest.approx([found.value, found.low, found.high], abs=6e-4)
        assert written.startswith("**") == (written == row[3] and (found.low > 0 or found.high < 0))


@pytest.mark.slow
def test_the_output_of_the_question_is_what_the_command_finds(tmp_path: Path) -> None:
    assert main(["intervene", "nano", *SAMPLES, "--out", str(tmp_path)]) == 0
    trial, page = ss.trials.load(tmp_path / "trial.nc"), (DOCS / "does_it_matter.md").read_text()
    for arm in trial.named("arm"):
        [line] = [line for line in page.splitlines() if line.startswith(f"{arm} ") and "(" in line]
        cost = trial.cost(arm, "nats")
        assert signed(line.removeprefix(arm))[:3] == pytest.approx([cost.value, cost.low, cost.high], abs=6e-4)


@pytest.mark.slow
def test_the_kinds_of_tokens_of_the_encoder_are_what_is_measured() -> None:
    model, tokenizer = ss.load("nano-encoder"), load_tokenizer("nano-encoder")
    size = model.config.vocab_size
    text = build_inputs("natural", tokenizer=tokenizer, vocab_size=size, tokens=128, samples=100, seed=0)
    found = ss.measure(model, text.input_ids, [ss.AttentionReceived("all")], tokenizer=tokenizer).token_kinds()
    written = rows("encoder_and_hybrid.md", "| kind | tokens")
    assert [row[0].strip("`") for row in written] == found["kind"].tolist()
    for row, (_, there) in zip(written, found.iterrows(), strict=True):
        assert says(row[1], there["occurrences"])
        assert says(row[2], there["alpha"])
        assert says(row[3], there["alpha"] * 128)
        assert says(row[4].removesuffix(" %"), there["sink_rate"])


def test_the_table_of_quantized_caches_is_what_the_benchmark_wrote() -> None:
    record = json.loads((DOCS.parent / "results" / "benchmarks" / "quantized_cache.json").read_text())
    found = record["details"]["nano, predictions and bytes a text"]
    table = [row for row in rows("quantized_cache.md", "| cache") if row[0] in found]
    assert len(table) == 19
    for name, divergence, held, at_end in (row[:4] for row in table):
        written = re.findall(r"[\d.]+", divergence)
        for number, field in zip(written, ("kl", "kl_low", "kl_high"), strict=True):
            assert says(number, found[name][field]), (name, field)
        assert says(held, found[name]["held"] / 1024)
        assert says(at_end, found[name]["held_at_end"] / 1024)


def test_the_readme_s_snippet_prints_what_stands_beside_it(capsys: pytest.CaptureFixture[str]):
    readme = (DOCS.parent / "README.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "print(" in block)
    said = re.findall(r"^print\(.*\)  # → (.*?)(?::.*)?$", code, re.MULTILINE)
    assert len(said) == code.count("print(") >= 2
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == said
