"""The page of experiments in a real browser: filters, links into folded parts, figures drawn when they are opened."""

from __future__ import annotations

import pytest

from sinkscope.report.page import write_page
from sinkscope.report.stored import Stored
from sinkscope.report.writing import results_page
from tests.report.conftest import CHROMIUM
from tests.report.experiments.conftest import EVIL, absent, entries, normalisation, weight_decay

__all__ = ["absent", "entries", "normalisation", "weight_decay"]  # fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian package `chromium`)"),
]
DRAWN = "[...document.querySelectorAll('#{} [data-plot]')].every((plot) => 'drawn' in plot.dataset)"


@pytest.fixture
def path(tmp_path, entries):
    write_page(results_page(f"Experiments {EVIL}", Stored(entries=list(entries))), tmp_path / "page.html")
    return tmp_path / "page.html"


@pytest.fixture(params=[pytest.param(1280, marks=pytest.mark.release), 390])
def opened(request, browser, path):
    """The page as loaded, with everything that the browser complained about or asked the network for."""
    context = browser.new_context(color_scheme="light", viewport={"width": request.param, "height": 900}, offline=True)
    page = context.new_page()
    page.complaints, page.requests = [], []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda asked: page.requests.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    yield page
    context.close()


def unfold(page, place):
    page.eval_on_selector(f"#{place}", "(part) => { part.open = true; }")
    page.wait_for_function(DRAWN.format(place), timeout=60_000)


def shown_claims(page):
    return page.locator("#claims tbody tr:visible").count()


def test_claims_are_filtered_by_verdict_and_by_words(opened):
    assert shown_claims(opened) == 4
    opened.get_by_role("radio", name="2 seen").check()
    assert shown_claims(opened) == 2
    opened.get_by_role("searchbox").fill("equal  LOSS")
    assert shown_claims(opened) == 1
    assert opened.inner_text("#claim-count") == "1 of 4 claims"
    opened.get_by_role("radio", name="all 4").check()
    opened.get_by_role("searchbox").fill("weight-decay")
    assert shown_claims(opened) == 1
    opened.get_by_role("searchbox").fill("no such thing")
    assert shown_claims(opened) == 0


@pytest.mark.release
def test_a_verdict_leads_to_its_claim_and_this_to_a_run(opened):
    opened.locator("#claims a[href='#x0-c1']").last.click()
    opened.wait_for_function(DRAWN.format("x0"), timeout=60_000)
    assert opened.evaluate("document.getElementById('x0-c1').open && !document.getElementById('x1').open")
    opened.locator("#x0-c1 a[href='#x0-r3']").first.focus()
    opened.keyboard.press("Enter")
    assert opened.locator("#x0-r3").inner_text() == "nano-sigmoid-0"
    assert opened.url.endswith("#x0-r3")


@pytest.mark.release
def test_a_link_from_elsewhere_opens_the_claim(browser, path):
    page = browser.new_page()
    page.goto(f"{path.as_uri()}#x1-c0")
    page.wait_for_function(DRAWN.format("x1"), timeout=60_000)
    assert page.evaluate("document.getElementById('x1-c0').open")
    page.close()


def expect_soon(opened, expression, value):
    """Asks for a minute. The page's policy forbids `wait_for_function` to evaluate its string at each poll."""
    for _ in range(600):
        if opened.evaluate(expression) == value:
            break
        opened.wait_for_timeout(100)
    assert opened.evaluate(expression) == value


def test_figures_are_drawn_once_they_are_opened_and_follow_the_run_and_the_scheme(opened, path):
    assert opened.locator("[data-plot] svg").count() == 0
    unfold(opened, "x1")
    assert opened.locator("#x0 [data-plot] svg").count() == 0
    sizes = opened.eval_on_selector_all(
        "#x1 [data-plot]",
        "plots => plots.map(plot => plot.querySelector('svg.main-svg').getBoundingClientRect().toJSON())",
    )
    assert len(sizes) == 3
    assert all(size["width"] > 200 and size["height"] > 150 for size in sizes)
    count = "document.querySelector('#x1 [data-plot=training]').data.length"
    before = opened.evaluate(count)
    opened.locator("#x1 button[data-run='2']").click()
    expect_soon(opened, count, before + 2)
    last = "document.querySelector('#x1 [data-plot=training]').data.at(-1)"
    steps, values = opened.evaluate(f"[{last}.x, {last}.y]")
    assert (steps, values) == ([100, 200, 300], [7, 9, 20])
    assert "0, seed 2" in opened.locator("#x1 .selected").inner_text()
    opened.get_by_role("button", name="show no single run").first.click()
    expect_soon(opened, count, before)
    assert opened.locator("#x1 .selected").is_hidden()
    paper = "getComputedStyle(document.querySelector('#x1 [data-plot=training] .main-svg')).background"
    assert "rgb(255, 255, 254)" in opened.evaluate(paper)
    opened.emulate_media(color_scheme="dark")
    expect_soon(opened, f"{paper}.includes('rgb(24, 28, 33)')", True)
    for place in ("x0", "x2"):
        unfold(opened, place)
    assert opened.locator("[data-plot] svg.main-svg:first-child").count() == 4 + 3 + 1
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]
    assert opened.title() == f"Experiments {EVIL}"
