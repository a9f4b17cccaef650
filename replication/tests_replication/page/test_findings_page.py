"""The page of findings: what made-up records give, and that page and terminal say the same of the study's runs."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from sinkscope.experiments import (
    Observed,
    Variation,
    Withdrawn,
    above,
    level,
    task,
)
from sinkscope.report.experiments import entry
from sinkscope.training import RECIPES
from sinkscope_replication.page import page as findings_page
from sinkscope_replication.page.markdown import escaped
from sinkscope_replication.page.text import SIZES
from sinkscope_replication.paper import STATEMENTS, parts
from tests.report.experiments.conftest import EVIL, found, question, run


@pytest.fixture(scope="module")
def study():
    """The experiments of the study, and their page."""
    entries = findings_page.entries()
    return entries, findings_page.page(entries)


def test_every_experiment_with_its_verdicts_and_values(entries):
    page = findings_page.page(entries)
    assert "All claims together: 2 supported, 1 inconclusive, 1 not run at this scale." in page
    assert "15 runs, 1.9 h of training" in page
    assert "Asked &lt;twice>." in page
    numbers = "> 3 | 9 (6.52 to 11.5) | 3 and 3 | 4.69"
    assert f"| softmax has more by 3 points | primary | {numbers} | **supported** |" in page
    assert "| and by 1 point at equal loss | exploratory | > 1 |" in page
    assert "Varied: `attention`, in 2 variations of the `nano` recipe; 3 seeds each, 6 runs, 42 min." in page
    told = "The primary claim holds: softmax has more by 3 points (we find 9 (6.52 to 11.5), from 3 and 3 seeds)."
    assert told in page
    assert "| softmax | the recipe as it is | 10 (9 to 11) | 18.2 | 3 (3 to 3) | 3.73 |" in page
    assert "| sigmoid | `attention` = sigmoid | 1 (1 to 1) | 0.44 | 3.4 (3.4 to 3.4) | – |" in page
    assert "**inputs**: Text? Source: Table 1. Why not: no BOS." in page
    assert "- versions: torch 2.13.0 · python 3.11.7" in page


def test_variations_with_unequal_seeds_say_so(entries):
    asked = entries[0]
    runs = {
        label: dict(list(seeds.items())[: 2 if label == "sigmoid" else 3])
        for label, seeds in asked.findings.runs.items()
    }
    fewer = replace(asked, findings=replace(asked.findings, runs=runs))
    page = findings_page.page([fewer, *entries[1:]])
    assert "in 2 variations of the `nano` recipe; 2 to 3 seeds each, 5 runs" in page


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
    assert f"![{escaped} " in made["findings.md"], "each panel's part after the other"
    assert "svg)" not in findings_page.page(entries), "a figure that is not drawn is not shown"


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
        assert words in " ".join(SIZES.split())


def test_text_is_text(entries):
    page = findings_page.page(entries)
    assert EVIL not in page
    assert page == findings_page.page(entries)


@pytest.mark.release
def test_the_module_writes_where_it_is_told(tmp_path):
    subprocess.run([sys.executable, "-m", "sinkscope_replication.page", tmp_path / "docs"], check=True)
    assert (tmp_path / "docs" / "findings.md").read_text().startswith("# What the experiments found")
    assert len(list((tmp_path / "docs" / "figures" / "findings").glob("*.svg"))) > 50


def test_page_and_terminal_say_the_same_from_the_same_records(sinkscope, study):
    """Row by row: statement, verdict and claim; then every claim's effect, seeds and verdict."""
    told = sinkscope("experiment", "verdict", "--all", "--json").json
    entries, page = study
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    judged = {each.name: [one.verdict for one in each.claims] for each in entries}
    for said in (said for group in STATEMENTS.values() for said in group):
        [at] = [place for place, line in enumerate(rows) if line.startswith(f"| {escaped(said.says)} (")]
        ran = [part for part in parts(said, judged) if part.verdict.outcome != "not run at this scale"]
        for row, part in zip(rows[at:], ran, strict=False):
            assert f"| {escaped(part.verdict.claim.name)}" in row
            assert f"| {part.verdict.said} | [{part.question}]" in row
    ours = {each.name: each for each in entries}
    for verdict in told["verdicts"]:
        claims = {one.verdict.claim.name: one for one in ours[verdict["experiment"]].claims}
        one = claims[verdict["claim"]["name"]]
        assert one.verdict.to_dict() == {key: verdict[key] for key in one.verdict.to_dict()}
        assert one.primary == verdict["primary"]
    for gone in told["withdrawn"]:
        assert f"{escaped(gone['statement'])}. Reason: {escaped(gone['reason'])}." in page


def test_every_row_leads_to_its_experiment(study):
    _, page = study
    places = re.findall(r'^<a id="([^"]+)"></a>$', page, re.MULTILINE)
    assert len(places) == len(set(places)), "and each stands in a line of its own, as the site wants it"
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(places)


def test_withdrawn_claims_stand_there_with_their_reasons():
    gone = Withdrawn("a", "it was _so_", "it could not fail")
    asked = question(withdrawn=(gone,))
    page = findings_page.page([entry(asked, found(softmax={0: run("softmax", 0, 9.0)}))])
    assert "- *Withdrawn* from normalisation: it was \\_so\\_. Reason: it could not fail." in page
    absent = findings_page.page([entry(asked, None)])
    assert "Reason: it could not fail." in absent.partition("## Not run at this scale")[2]


def test_no_text_of_the_page_names_a_metric_as_the_code_does(study):
    """In prose, that is: fields of recipes are named in code marks, claims by their names in tables."""
    _, page = study
    prose = [line for line in page.splitlines() if line[:1].isalpha()]
    for line in prose:
        assert not re.search(r"[a-z]+\\\\_[a-z]+", re.sub(r"'[^']*'", "", line)), line
