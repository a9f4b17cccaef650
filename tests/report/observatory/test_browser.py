"""The measurement's page in a real browser: linked selection, tokens, both schemes, narrow and wide."""

import numpy as np
import pytest

from sinkscope.measurement import HEAD_METRICS, Measurement
from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.page import observatory_page
from sinkscope.report.page import write_page
from tests.measurement.planted import EVIL
from tests.report.conftest import CHROMIUM, context_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian package `chromium`)"),
]

DRAWN = sum(metric.draw is not None for metric in HEAD_METRICS)
FILLED = "html[data-filled={}]"
NAME = "document.getElementById('head-name').textContent"
FIRST = "document.querySelector('[aria-label=\"Attention received, by position\"]').data[0].y[0]"


@pytest.fixture(scope="module")
def path(tmp_path_factory, complete):
    maps = HeadMaps({(3, 1): np.tril(np.full((24, 24), 0.1))}, [f"{EVIL}{{x}}%{{y}}"] * 24)
    page = observatory_page(complete, f"planted {EVIL}", 0.3, maps, map_command="sinkscope measure planted --map")
    return write_page(page, tmp_path_factory.mktemp("page") / "figure.html")


def opening(browser, path, width=1280):
    context = context_of(browser, color_scheme="light", viewport={"width": width, "height": 900})
    page = context.new_page()
    page.complaints = []
    page.requests = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda asked: page.requests.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_selector(FILLED.format("light"))
    page.eval_on_selector_all("details.question", "questions => questions.forEach((each) => { each.open = true; })")
    return page


@pytest.fixture
def opened(browser, path):
    page = opening(browser, path)
    yield page
    assert page.complaints == []
    page.context.close()


@pytest.mark.parametrize("width", [pytest.param(1600, marks=pytest.mark.release), 390])
def test_it_opens_offline_without_a_complaint_and_fits(browser, path, width):
    page = opening(browser, path, width)
    assert page.complaints == []
    assert page.requests == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.title() == f"planted {EVIL}"
    assert page.locator(".board canvas").count() == DRAWN
    heights = page.eval_on_selector_all(".map:not([hidden]) canvas", "all => all.map(canvas => canvas.clientHeight)")
    assert min(heights) > 40
    for place in ("h1", ".headlines", "#first-map canvas"):  # on the first screen
        box = page.locator(place).bounding_box()
        assert box["y"] + box["height"] <= 900, place
    page.context.close()


def selected(page):
    return {*page.eval_on_selector_all(".board", "boards => boards.map(board => board.dataset.selected)")}


def test_the_keyboard_moves_the_selection_in_every_map_and_in_the_panel(opened, complete):
    layer, head = next(iter(selected(opened))).split(".")
    assert opened.evaluate(NAME) == f"Layer {layer}, head {head}"
    opened.locator("[data-metric=value_ratio] .board").focus()
    for key in ("PageDown", "Home", "ArrowUp", "ArrowRight", "ArrowRight"):
        opened.keyboard.press(key)
    assert selected(opened) == {"1.2"}
    assert opened.evaluate(NAME) == "Layer 1, head 2"
    expected = float(complete.data["attention_received"][:, 1, 2, 0].mean())
    assert opened.evaluate(FIRST) == pytest.approx(expected, rel=1e-3)
    ratio = opened.locator("[data-metric=value_ratio] output").inner_text()
    assert ratio.startswith("layer 1, head 2: ")
    numbers = opened.locator("#head-numbers > div").all_inner_texts()
    assert len(numbers) == DRAWN
    assert any(text.split("\n")[-1] == ratio.split(": ")[1] for text in numbers)
    for key in ("PageUp", "End", "ArrowUp", "ArrowRight"):  # it stops at the edges
        opened.keyboard.press(key)
    assert selected(opened) == {"3.2"}
    opened.locator("#head-position input").focus()
    opened.keyboard.press("ArrowRight")
    shown = opened.locator("[data-metric=alpha] output").inner_text()
    expected = float(complete.data["attention_received"][:, 3, 2, 1].mean())
    assert float(shown.split(": ")[1]) == pytest.approx(expected, rel=1e-2)


def test_the_command_for_a_map_counts_attention_layers_alone(browser, complete, tmp_path):
    """As the command line does, whatever the model's own numbers are."""
    data = complete.data.assign_coords(layer_index=("layer", [2, 5, 8, 11]))
    page = observatory_page(Measurement(data), "planted", 0.3, map_command="sinkscope measure planted --maps")
    opened = opening(browser, write_page(page, tmp_path / "figure.html"))
    [place] = selected(opened)
    assert opened.locator("#head-note code").inner_text() == f"sinkscope measure planted --maps {place}"
    opened.context.close()


def test_a_click_and_lists_select_and_the_selection_survives_a_change_of_scheme(opened):
    canvas = opened.locator("[data-metric=key_ratio] canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.click(position={"x": 30, "y": box["height"] - 24})  # the lowest row, the leftmost column
    assert selected(opened) == {"0.0"}
    opened.select_option("#head-layer", "2")
    opened.select_option("#head-head", "1")
    assert selected(opened) == {"2.1"}
    assert opened.evaluate(NAME) == "Layer 2, head 1"
    shown = "document.querySelectorAll('#head-other .map:not([hidden])').length"
    assert opened.evaluate(shown) == 1
    names = opened.eval_on_selector_all("#head-metric option", "all => all.map(option => option.textContent)")
    assert len(names) > 3
    opened.select_option("#head-metric", label=names[2])
    assert opened.evaluate(shown) == 1
    assert opened.text_content("#head-other .map:not([hidden]) h3").startswith(names[2])
    light = opened.locator("#head-maps").screenshot()
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_selector(FILLED.format("dark"))
    assert opened.locator("#head-maps").screenshot() != light
    assert selected(opened) == {"2.1"}
    assert opened.evaluate(FIRST) > 0


@pytest.mark.release
def test_the_attention_map_is_shown_for_its_head_alone(opened):
    figure = opened.locator("figure", has=opened.locator("[aria-label='Attention map']"))
    opened.select_option("#head-layer", "3")
    opened.select_option("#head-head", "1")
    assert figure.is_visible()
    assert not opened.locator("#head-note").is_visible()
    opened.select_option("#head-head", "0")
    assert not figure.is_visible()
    assert opened.locator("#head-note").inner_text().endswith("sinkscope measure planted --map 3.0")


@pytest.mark.release
def test_the_strip_follows_the_keyboard_and_the_sample(opened, complete):
    ids = complete.data["token_id"].values
    strip, readout = opened.locator("#strip-tokens"), opened.locator("#strip-readout")
    strip.focus()
    for key in ("End", "ArrowLeft"):
        opened.keyboard.press(key)
    assert "position\n22" in readout.inner_text() or "position 22" in readout.inner_text()
    opened.keyboard.press("Home")
    assert "a sink" in readout.inner_text()
    assert strip.locator("[role=option].sink").count() == 1
    before = strip.inner_text()
    opened.select_option("#strip-sample", "2")
    assert strip.inner_text() != before
    assert strip.locator("[role=option]").count() == 24
    row = next(index for index, token in enumerate(ids[2]) if token == 3)
    strip.locator("[role=option]").nth(row).hover()
    assert readout.locator("code").inner_text() == EVIL
    opened.select_option("#strip-share", "50")
    assert strip.locator("[role=option].sink").count() == 0


@pytest.mark.release
def test_the_strip_can_follow_the_selected_layer(opened):
    opened.select_option("#strip-layer", "selected")
    for layer, sinks in (("0", 0), ("3", 1)):
        opened.select_option("#head-layer", layer)
        assert opened.locator("#strip-tokens .sink").count() == sinks
