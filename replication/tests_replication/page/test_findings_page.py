"""The page of findings: what made-up records give, and that the committed page is what the committed records give."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sinkscope.experiments.identities import identities
from tools.pages.markdown import escaped

from sinkscope.errors import InputError
from sinkscope.experiments import (
    QUESTIONS,
    STATEMENTS,
    Findings,
    Observed,
    Variation,
    Withdrawn,
    above,
    findings,
    level,
    task,
)
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.names import number
from sinkscope.training.recipes import RECIPES
from sinkscope_replication.page import page as findings_page
from sinkscope_replication.page.text import FADES, SIZES
from tests.report.experiments.conftest import EVIL, found, question, run
from tools.pages import write


def test_every_experiment_with_its_verdicts_and_values(entries):
    page = findings_page.page(entries)
    assert "All claims together: 2 supported, 1 inconclusive, 1 not run at this scale." in page
    assert "15 runs, 1.9 h of training" in page
    assert "Asked &lt;twice>." in page
    numbers = "> 3 | 9 (6.52 to 11.5) | 3 and 3 | 4.69"
    assert f"| softmax has more by 3 points | primary | {numbers} | – | **supported** |" in page
    assert "| and by 1 point at equal loss | exploratory | > 1 |" in page
    assert "Varied: `attention`, in 2 variations of the `nano` recipe; 3 seeds each, 6 runs, 42 min." in page
    told = "The primary claim holds: softmax has more by 3 points (we find 9 (6.52 to 11.5), from 3 and 3 seeds)."
    assert told in page
    assert "| softmax | the recipe as it is | 10 (9 to 11) | 18.2 | 3 (3 to 3) | 3.73 |" in page
    assert "| sigmoid | `attention` = sigmoid | 1 (1 to 1) | 0.44 | 3.4 (3.4 to 3.4) | – |" in page
    assert "**inputs**: Text? Source: Table 1. Why not: no BOS." in page
    assert "- versions: torch 2.13.0 · python 3.11.7" in page


def test_a_primary_claim_that_does_not_hold_among_all_says_so(entries):
    """Of two that are supported alone, that with the larger p-value is corrected for both first."""
    close = {"softmax": (4.4, 4.7, 5.0), "sigmoid": (0.9, 1.0, 1.1)}
    runs = {label: {s: run(label, s, rate) for s, rate in enumerate(rates)} for label, rates in close.items()}
    alone = entry(question(), found(**runs))
    others = [replace(alone, name=f"other-{each}") for each in range(4)]
    assert alone.claims[0].verdict.outcome == "supported"
    assert FADES not in findings_page.page([alone])
    assert findings_page.page([alone, *others]).count(FADES) == 5


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
    assert page.index("## What the paper says") < page.index("## What models of this size can show")
    assert "## Not run at this scale" in page


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano" / "broken.json").write_text('{"question": 3}')
    with pytest.raises(InputError, match=r"broken\.json"):
        findings_page.entries(tmp_path)


@pytest.mark.long
def test_the_module_writes_where_it_is_told(tmp_path):
    command = [sys.executable, "-m", "sinkscope_replication.page", tmp_path / "none", tmp_path / "docs"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(tmp_path / "docs" / "findings.md")]


def said(answer):
    """What the first table of the page says of an answer: effect, seeds, smallest effect, verdict."""
    by = answer["by"]
    words = answer["verdict"]
    return answer["says"], f"**{words}**" if words.startswith(("supported", "refuted")) else words, by and by["claim"]


def test_page_and_terminal_say_the_same_from_the_same_records(sinkscope):
    """Row by row: statement, verdict and deciding claim; then every claim's effect, seeds and verdict."""
    told = sinkscope("experiment", "verdict", "--all", "--json").json
    made = findings_page.entries()
    page = findings_page.page(made, findings_page.notes())
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for answer in told["paper"]:
        says, words, claim = said(answer)
        [row] = [line for line in rows if line.startswith(f"| {escaped(says)} (")]
        assert f"| {words}" in row
        assert claim is None or f"), {escaped(claim)}" in row
    ours = {each.name: each for each in made if each.scale == "nano"}
    for verdict in told["verdicts"]:
        claims = {one.verdict.claim.name: one for one in ours[verdict["experiment"]].claims}
        one = claims[verdict["claim"]["name"]]
        assert one.verdict.to_dict() == {key: verdict[key] for key in one.verdict.to_dict()}
        assert one.primary == verdict["primary"]
        assert one.stated.when == verdict["stated"]["when"]
    for name, p in told["p_after_holm"].items():
        assert any(f"[{name}](#nano-{name})" in row and f"| {number(p)} | " in row for row in rows), name
    for note in told["notes"]:
        assert f"- {escaped(note)}" in page
    for gone in told["withdrawn"]:
        assert f"{escaped(gone['statement'])}. Reason: {escaped(gone['reason'])}." in page


def test_what_is_not_judged_is_told(tmp_path):
    """A run under another name, one with other numbers, one in another layout: none is lost in silence."""
    layout = identities(QUESTIONS["emergence"], "nano")["softmax"].layout
    for name, run_ in {
        "emergence": Observed("new-0", "finished", 0, {"sink_0": 9.0}, layout=layout),
        "inputs": Observed("new-0", "finished", 0, {"sink_0": 8.0}, layout=layout),
        "domains": Observed("old-0", "finished", 0, {"sink_0": 9.0}, layout=layout),
        "biases": Observed("new-0", "finished", 0, {"sink_0": 9.0}, layout=1),
    }.items():
        findings.write(tmp_path, Findings(name, "nano", 1, {"softmax": {0: run_}}))
    notes = findings_page.notes(tmp_path)
    words = ("with different numbers", "made by another version of the code", "read in layout 1")
    assert all(any(word in note for note in notes) for word in words), notes
    page = findings_page.page(findings_page.entries(tmp_path), notes)
    told = page.partition("## Runs that are not judged")[2]
    assert all(word in told for word in words)
    assert "## Runs that are not judged" not in findings_page.page(findings_page.entries(tmp_path))


def test_every_row_leads_to_its_experiment():
    page = findings_page.page(findings_page.entries())
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


def test_the_readme_shows_the_abstract(entries):
    made = findings_page.entries()
    text = findings_page.readme(made, "before\n<!-- findings -->\nold\n<!-- end of findings -->\nafter\n")
    assert text.startswith("before\n<!-- findings -->\n| the paper says |")
    assert text.endswith("|\n<!-- end of findings -->\nafter\n")
    assert "old" not in text
    assert len(text.splitlines()) == 6 + len(next(iter(STATEMENTS.values())))
    with pytest.raises(ValueError, match="no <!-- findings -->"):
        findings_page.readme(made, "nothing")


def test_no_text_of_the_page_names_a_metric_as_the_code_does(entries):
    """In prose, that is: fields of recipes are named in code marks, claims by their names in tables."""
    page = findings_page.page(findings_page.entries())
    prose = [line for line in page.splitlines() if line[:1].isalpha()]
    for line in prose:
        assert not re.search(r"[a-z]+\\\\_[a-z]+", re.sub(r"'[^']*'", "", line)), line
