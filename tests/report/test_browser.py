"""The written page in a real browser: Debian's Chromium, no network, opened from disk."""

from __future__ import annotations

import pytest

from sinkscope.report import sections
from sinkscope.report.page import Headline, Page, write_page
from tests.measurement.planted import small_dataset
from tests.report.conftest import CHROMIUM, context_of

EVIL = "<script>document.title = 'owned'</script>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian package `chromium`)"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory, runs):
    measured = {f"softmax {EVIL}": small_dataset(), "sigmoid": small_dataset()}
    parts = [sections.training(runs), *sections.describe(measured, 0.3)]
    page = Page(f"A report {EVIL}", "What it says.", [Headline("6.4 %", "sink rate")], parts, {"seed": "0"})
    return write_page(page, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module", params=[pytest.param(1280, marks=pytest.mark.release), 390])
def opened(request, browser, path):
    """The page as loaded, with everything that the browser complained about or asked the network for.

    Drawing it takes seconds, so it is shared: each test changes only what no other one looks at.
    """
    context = context_of(browser, color_scheme="light", viewport={"width": request.param, "height": 900})
    page = context.new_page()
    page.complaints = []
    page.requests = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda asked: page.requests.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]")
    yield page
    context.close()


def test_nothing_to_complain_of_and_nothing_from_elsewhere(opened, path):
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_every_figure_is_drawn(opened):
    sizes = opened.eval_on_selector_all(
        "[data-figure]",
        "plots => plots.map(plot => plot.querySelector('svg.main-svg').getBoundingClientRect().toJSON())",
    )
    assert len(sizes) == 9
    assert all(size["width"] > 200 and size["height"] > 150 for size in sizes)


def test_nothing_sticks_out_sideways(opened):
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_text_from_outside_stays_text(opened):
    assert opened.title() == f"A report {EVIL}"
    assert EVIL in opened.inner_text("h1")


def test_the_sliders_are_reached_and_moved_by_keyboard(opened):
    first, second = opened.locator("input[type=range]").all()
    first.focus()
    opened.keyboard.press("ArrowRight")
    shown = opened.eval_on_selector_all("output", "outputs => outputs.map(output => output.textContent)")
    assert shown == ["1", "1"]
    assert second.input_value() == "1"
    drawn = opened.evaluate("document.querySelector('[data-figure=f2-1]').data[0].z[2][1]")
    assert drawn < 0.2


def test_the_numbers_unfold_by_keyboard(opened):
    opened.locator("summary").first.focus()
    opened.keyboard.press("Enter")
    assert opened.locator("details table").first.is_visible()


@pytest.mark.release
def test_figures_follow_the_scheme(browser, path):
    context = context_of(browser, color_scheme="light")
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]")
    paper = "getComputedStyle(document.querySelector('[data-figure=f1-1] .main-svg')).background"
    assert "rgb(255, 255, 254)" in page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-drawn=dark]")
    assert "rgb(24, 28, 33)" in page.evaluate(paper)
    context.close()
