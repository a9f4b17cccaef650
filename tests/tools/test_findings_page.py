"""The page of findings: what made-up records give, and that the committed page is what the committed records give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import Observed, Variation, above, findings, level
from sinkscope.experiments.question import task
from sinkscope.report.experiments import entry
from sinkscope.training.recipes import RECIPES
from tests.report.experiments.conftest import EVIL, found, question, run
from tools import findings_page
from tools.findings_text import BEFORE
from tools.pages import write


def test_every_experiment_with_its_verdicts_and_values(entries):
    page = findings_page.page(entries)
    assert "The verdicts: 2 supported, 1 inconclusive, 1 not run at this scale." in page
    assert "15 runs and 1.9 h of training" in page
    assert "Asked &lt;twice>." in page
    row = "| [normalisation](#nano-normalisation) | softmax has more by 3 points | > 3 | 9 (6.52 to 11.5) | 4.7 |"
    assert f"{row} 3 and 3 | supported |" in page
    assert "Varied: `attention`, in 2 variations of the `nano` recipe; 3 seeds each, 6 runs, 42 min." in page
    told = "(found 9 (6.52 to 11.5) in 3 and 3 seeds, asked > 3, these seeds could have shown 4.7)"
    assert f"- **supported** (primary): softmax has more by 3 points {told}" in page
    assert "| softmax | the recipe as it is | 10 (9 to 11) | 18.2 | 3 (3 to 3) | 3.73 |" in page
    assert "| sigmoid | `attention` = sigmoid | 1 (1 to 1) | 0.44 | 3.4 (3.4 to 3.4) | – |" in page
    assert "| inputs | Text? | Table 1 | no BOS |" in page
    assert "- versions: torch 2.13.0 · python 3.11.7" in page


def test_order_is_that_of_the_questions_whatever_the_verdict(entries):
    page = findings_page.page(entries)
    turned = findings_page.page(entries[::-1])
    assert page.index("### normalisation") < page.index("### weight-decay")
    assert turned.index("### weight-decay") < turned.index("### normalisation")


def test_runs_that_failed_or_diverged_stand_there(entries):
    page = findings_page.page(entries)
    assert "- *diverged*: 0, seed 2: the loss became NaN" in page
    assert "- *failed*: 2, seed 2: out of memory &lt;script>" in page


def test_a_figure_for_each_that_has_values(entries):
    made = findings_page.pages(entries)
    assert sorted(made) == [
        "figures/findings/nano-normalisation.svg",
        "figures/findings/nano-weight-decay.svg",
        "findings.md",
    ]
    alt = "sink rate at position 0 (%), mean over seeds: softmax 10, sigmoid 1. Published: softmax 18.2, sigmoid 0.44."
    escaped = alt.replace("_", "\\_")
    assert f"![{escaped}](figures/findings/nano-normalisation.svg)" in made["findings.md"]


def test_tables_show_what_decides_in_words_of_the_task():
    seen = Observed("one", "finished", 0, dict.fromkeys(("slot", "first", "total", "loss"), 0.25))
    claims = tuple(
        above(0.0, level(metric, "softmax"), metric, metric, "Table 4") for metric in ("total", "slot", "first")
    )
    variations = (Variation("softmax", {}, {"loss": 0.5}),)
    asked = question(variations=variations, assertions=claims, base=task("trigger_conditional"))
    page = findings_page.pages([entry(asked, found(softmax={0: seen}))])["findings.md"]
    weights = "mean weight on all tokens, elsewhere | mean weight on slots, elsewhere | mean weight on the first token"
    head = f"| variation | changes | {weights}, elsewhere | error (giving nothing: 1): ours | published |"
    assert head in page
    assert "| softmax | the recipe as it is | 0.25 | 0.25 | 0.25 | 0.25 | 0.5 |" in page
    assert "![error (giving nothing: 1), mean" not in page, "the loss comes last in figures"


def test_a_table_has_eight_metrics_at_most():
    names = [f"metric {index}" for index in range(10)]
    claims = tuple(above(0.0, level(name, "softmax"), name, name, "Tables 6 and 15") for name in names)
    asked = question(variations=(Variation("softmax"),), assertions=claims)
    page = findings_page.page([entry(asked, found(softmax={0: run("softmax", 0, 9.0)}))])
    assert f"| variation | changes | {' | '.join(names[:8])} |" in page


def test_sizes_that_are_told_are_those_of_the_recipes():
    nano, paper = (RECIPES[name] for name in ("nano", "60m"))
    read = [recipe.steps * recipe.batch_size * recipe.context for recipe in (nano, paper)]
    assert [round(read[0] / 1e6, 1), round(read[1] / 1e9), round(read[1] / read[0], -2)] == [6.1, 21, 3400]
    for words in ("6.1 million tokens", "21 billion tokens", "some 3,400 times as many"):
        assert words in " ".join(BEFORE.split())


def test_text_is_text(entries):
    page = findings_page.page(entries)
    assert EVIL not in page
    assert page == findings_page.page(entries)


def test_records_become_files(tmp_path, capsys):
    record = found(softmax={0: run("softmax", 0, 9.0)}, sigmoid={0: run("sigmoid", 0, 1.0)})
    findings.write(tmp_path / "results", record)
    write(findings_page.pages(findings_page.entries(tmp_path / "results")), tmp_path / "docs")
    written = [Path(line) for line in capsys.readouterr().out.split()]
    assert [path.relative_to(tmp_path / "docs").as_posix() for path in written] == [
        "findings.md",
        "figures/findings/nano-normalisation.svg",
    ]
    page = written[0].read_text()
    assert "### normalisation" in page
    assert "inconclusive: too few seeds |" in page
    assert "## Not run at this scale" in page


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano" / "broken.json").write_text('{"question": 3}')
    with pytest.raises(InputError, match=r"broken\.json"):
        findings_page.entries(tmp_path)


@pytest.mark.long
def test_the_module_writes_where_it_is_told(tmp_path):
    command = [sys.executable, "-m", "tools.findings_page", tmp_path / "none", tmp_path / "docs"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(tmp_path / "docs" / "findings.md")]
