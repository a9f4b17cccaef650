"""The page of experiments: verdicts, and the way from each of them down to its runs; text as text; many runs."""

from __future__ import annotations

import json
import re
import time
from html import unescape

from sinkscope.report.experiments.page import experiment_sections, headlines, provenance
from sinkscope.report.page import render
from sinkscope.report.stored import Stored
from sinkscope.report.writing import results_page
from tests.report.experiments.conftest import EVIL

RATE = "sink rate at position 0 (%)"


def experiment_page(entries):
    """The page as HTML text."""
    return render(results_page("Experiments", Stored(entries=list(entries))))


def markups(entries):
    """The HTML of each section by its title."""
    sections = re.findall(r"<section.*?</section>", experiment_page(entries), re.DOTALL)
    return dict(zip([section.title for section in experiment_sections(entries)], sections, strict=True))


def rows(markup, columns=None):
    """The cells of every row as plain text."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", markup, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in found]
    return [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in cells]


def part(markup, start, end):
    return markup[markup.index(start) :].partition(end)[0]


def test_verdicts_come_first_and_what_was_not_run_last(entries):
    assert list(markups(entries)) == ["Verdicts", "Experiments", "Not run at this scale"]
    assert [card.value for card in headlines(entries)] == ["2", "2", "1.9 h"]
    assert headlines(entries)[-1].label == "of training, 15 runs"


def test_a_row_for_every_claim_with_what_was_asked_and_found(entries):
    head, gap, equal_loss, decay, text = rows(markups(entries)["Verdicts"])
    assert head == ["experiment", "claim", "asked", "found", "models", "cost", "grade"]
    assert gap == [
        "normalisation",
        "softmax has more by 3 points",
        "> 3",
        "9 (4.98 to 13)",
        "3 and 3",
        "42 min",
        "seenlosses differ by 0.40 nats",
    ]
    assert equal_loss[-1] == "seen"
    assert decay[-1].startswith("openfewer than 3 models; left out: seed 2 of '2' (failed)")
    assert text[2:] == ["> 1", "–", "–", "–", "openno BOS"]


def test_every_row_leads_to_its_claim(entries):
    found = markups(entries)
    places = re.findall(r'<th scope="row"><a href="#([^"]+)"', found["Verdicts"])
    assert places == ["x0-c0", "x0-c1", "x1-c0", "x2-c0"]
    below = found["Experiments"] + found["Not run at this scale"]
    assert all(f'id="{place}"' in below for place in places)


def test_rows_carry_what_the_filters_ask_for(entries):
    data = re.findall(r'<tr data-grade="([^"]+)" data-words="([^"]+)"', markups(entries)["Verdicts"])
    assert [grade for grade, _ in data] == ["seen", "seen", "open", "open"]
    assert "is it the normalisation?" in data[0][1]
    assert "table 6" in data[0][1]


def test_a_claim_opens_its_seeds_and_these_lead_to_the_runs(entries):
    markup = markups(entries)["Experiments"]
    claim = part(markup, 'id="x0-c0"', "</details>")
    assert rows(claim) == [
        ["seed", "effect", f"softmax: {RATE}", f"sigmoid: {RATE}"],
        ["seed 0", "8", "9", "1"],
        ["seed 1", "9", "10", "1"],
        ["seed 2", "10", "11", "1"],
    ]
    links = re.findall(r'href="#([^"]+)">11<', claim)
    assert links == ["x0-r2"]
    assert '<span class="run" id="x0-r2">nano-softmax-2</span>' in markup


def test_runs_are_shown_as_what_they_are(entries):
    runs = part(markups(entries)["Experiments"].partition('id="x1"')[2], "<h3>Runs</h3>", "</table>")
    table = rows(runs)
    assert table[0] == ["variation", "seed", "run", "status", RATE, "validation loss (nats)",
                        "strongest sink rate (%)", "hidden-norm ratio", "cost", "over training", "reason"]  # fmt: skip
    assert table[1] == ["0", "0", "nano-d0-0", "finished", "6", "3", "6", "4", "10 min", "curves", ""]
    assert table[3][3:] == ["diverged", "–", "–", "–", "–", "1 min", "curves", "the loss became NaN"]
    assert table[-1][2:] == ["–", "failed", "–", "–", "–", "–", "–", "–", f"out of memory {EVIL}"]


def test_configurations_stand_side_by_side(entries):
    found = markups(entries)
    table = rows(part(found["Experiments"], "Configurations", "</table>"))
    assert table[1:] == [["softmax", "softmax", "18.2", "3.73"], ["sigmoid", "sigmoid", "0.44", "–"]]
    assert re.search(r"<td [^>]*><b>sigmoid</b></td>", found["Experiments"]), "what a variation sets stands out"
    assert re.search(r"<td [^>]*>softmax</td>", found["Experiments"]), "and what it leaves is the recipe's"


def test_each_experiment_has_the_data_of_its_figures(entries):
    sections = experiment_sections(entries)
    data = {name: content for section in sections for name, content in section.widget.data.items()}
    assert set(data) == {"x0-data", "x1-data", "x2-data"}
    assert list(data["x0-data"]["figures"]) == ["dose0", "dose1", "training", "loss"]
    assert list(data["x2-data"]["figures"]) == ["dose0"]
    plots = re.findall(r'data-experiment="(x\d)"\s+data-plot="(\w+)"', "".join(markups(entries).values()))
    assert {(f"{place}-data", plot) for place, plot in plots} == {
        (name, plot) for name, content in data.items() for plot in content["figures"]
    }
    assert [run["curves"] is None for run in data["x1-data"]["runs"]] == [False] * 8 + [True]
    json.dumps(data, allow_nan=False)


def test_where_the_numbers_come_from(entries):
    facts = provenance(entries)
    assert facts["versions"] == "torch 2.13.0 · python 3.11.7"
    assert facts["experiment weight-decay, nano"] == "3 seeds · 9 runs · 1.2 h"


def test_text_is_text(entries):
    page = experiment_page(entries)
    assert EVIL not in page
    assert "Asked &lt;twice&gt;." in page
    assert page == experiment_page(entries), "equal contents give equal bytes"


def test_nothing_ran_is_a_page_too(absent):
    page = results_page("Experiments", Stored(entries=[absent]))
    assert [section.title for section in page.sections] == ["Verdicts", "Not run at this scale"]


def test_a_thousand_runs_are_a_page_in_seconds(many):
    entries = many(40)
    started = time.process_time()
    page = experiment_page(entries)
    assert time.process_time() - started < 3
    assert len(page) < 10e6


def test_what_is_known_comes_before_what_was_not_run(entries):
    turned = experiment_sections(entries[::-1])
    assert [row.grade for row in turned[0].widget.values["rows"]] == ["open", "seen", "seen", "open"]


def test_the_first_claim_is_the_primary_one(normalisation):
    markup = markups([normalisation])["Experiments"]
    assert (markup.count("primary; asked"), markup.count("exploratory; asked")) == (1, 1)
