import numpy as np
import pandas as pd
import pytest

from sinkscope.measurement import Measurement
from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.page import observatory_page
from sinkscope.report.page import render, write_page
from sinkscope.theme import SINK
from tests.measurement.planted import EVIL, edited_record, measured
from tests.report.test_page import Elements

EPSILON = 0.3
TITLES = {
    "attention_received": ("Sink rate, per position", "Token by token"),
    "attention_received_by_length": ("The sink rate over length and threshold",),
    "cos_query_key": ("Angles between queries and keys, all heads",),
    "value_norm": ("Value norms",),
    "hidden_norm": ("Hidden norms, per position and depth", "The first token against the others", "The longest token"),
    "hidden_max": ("The largest entries",),
    "hidden_vectors": ("Hidden states in the plane",),
}


def titles(page):
    return [section.title for section in page.sections]


def without(measurement, *names):
    return Measurement(measurement.data.drop_vars(names))


@pytest.fixture(scope="module")
def page(complete):
    table = pd.DataFrame({"definition": [EVIL], "agreement": [0.5], "elsewhere": pd.array([None], dtype="Int64")})
    maps = HeadMaps({(3, 1): np.tril(np.full((24, 24), 0.1))}, [EVIL] * 24)
    return observatory_page(
        complete, f"planted {EVIL}", EPSILON, maps, definitions=table, tokens=table, map_command="measure --map"
    )


@pytest.fixture(scope="module")
def plain_titles(complete):
    return titles(observatory_page(complete, "planted", EPSILON))


def test_all_sections_are_there(page):
    assert {title for group in TITLES.values() for title in group} <= {*titles(page)}
    assert {"Every head, by every metric", "Every definition of a sink", "Which tokens become sinks"} <= {*titles(page)}
    assert {"The shape of the hidden states", "Energy by band of the unembedding"} <= {*titles(page)}


@pytest.mark.slow
@pytest.mark.parametrize("variable", TITLES)
def test_a_variable_that_is_missing_omits_its_sections_alone(complete, plain_titles, variable):
    rest = {*titles(observatory_page(without(complete, variable), "planted", EPSILON))}
    assert rest == {*plain_titles} - {*TITLES[variable]}


def test_default_observers_are_enough(complete):
    names = ("attention_received", "hidden_norm", "query_norm", "key_norm", "value_norm", "tokens")
    few = Measurement(complete.data[[*names]].drop_vars("token_id"))
    assert titles(observatory_page(few, "planted", EPSILON))[:2] == [
        "Every head, by every metric",
        "Sink rate, per position",
    ]


def test_norms_alone_make_a_page(complete):
    only = Measurement(complete.data[["hidden_norm", "tokens"]])
    assert "The longest token" in titles(observatory_page(only, "planted", EPSILON))
    render(observatory_page(only, "planted", EPSILON))


def cards(measurement):
    return {card.label: card.value for card in observatory_page(measurement, "planted", EPSILON).headlines}


def test_of_several_stacks_the_headlines_say_which(pair):
    labels = cards(pair)
    for start, numbers in (("largest hidden norm", "depth"), ("smallest value norm", "layer")):
        [label] = [label for label in labels if label.startswith(start)]
        assert label.split(f": {numbers} ")[1].split()[0] in ("encoder", "decoder", "cross")


def test_the_headlines_are_the_planted_numbers(complete):
    found = cards(complete)
    value = lambda start: next(value for label, value in found.items() if label.startswith(start))  # noqa: E731
    assert value("sink rate at position 0") == "16.7 %"  # one of three heads in two of four layers
    assert value("strongest sink") == "position 0"
    assert value("massive activations") == "1"
    assert float(value("largest hidden norm").split()[0]) == pytest.approx(50 / 1.5, rel=0.03)
    assert float(value("smallest value norm").split()[0]) == pytest.approx((0.1 + 1 + 1) / 3, rel=0.03)
    slots = float(complete.data["slot_received"].mean())
    assert float(value("of the attention goes to slots").split()[0]) == pytest.approx(100 * slots, abs=0.06)


@pytest.mark.slow
def test_a_sink_elsewhere_is_where_the_page_looks(complete):
    data = complete.data.copy()
    received = data["attention_received"].values.copy()
    received[..., [0, 5]] = received[..., [5, 0]]
    moved = Measurement(data.assign(attention_received=(data["attention_received"].dims, received)))
    assert "position 5" in cards(moved).values()
    page = observatory_page(moved, "planted", EPSILON)
    payload = page.sections[0].widget.data["heads-data"]
    assert payload["positions"][payload["index"]] == 5


def test_nothing_massive_and_no_sink_are_said(complete):
    data = complete.data.assign(
        hidden_top=complete.data["hidden_top"] * 0.01, attention_received=complete.data["attention_received"] * 0.1
    )
    found = cards(Measurement(data))
    assert next(value for label, value in found.items() if label.startswith("massive")) == "none"
    assert next(value for label, value in found.items() if label.startswith("no position")) == "none"


def test_broken_activations_come_first(complete):
    broken = edited_record(complete, non_finite={"first": "depth 3 of the decoder", "places": [], "samples": 2})
    first = observatory_page(broken, "planted", EPSILON).headlines[0]
    assert first.value == "NaN or infinite"
    assert "2 of 6 samples, first at depth 3" in first.label


def test_text_from_outside_never_becomes_an_element(page):
    html = render(page)
    elements = Elements(html)
    assert EVIL not in html
    kinds = [attributes.get("type", "script") for attributes, _ in elements.scripts]
    assert kinds.count("script") == 6
    assert {*kinds} == {"script", "application/json", "text/plain"}


def test_every_script_may_run_and_no_other(page):
    elements = Elements(render(page))
    running = [text for attributes, text in elements.scripts if "type" not in attributes]
    assert len(running) == 6
    assert elements.policy.count("sha256-") == 1 + len(running)  # with the library, which is unpacked


@pytest.mark.slow
def test_a_page_of_144_heads_and_512_tokens_stays_small():
    big = measured(samples=8, layers=12, heads=12, positions=512, vocabulary=400)
    maps = HeadMaps({(row, 0): np.full((512, 512), 0.123) for row in range(4)}, ["token"] * 512)
    assert len(render(observatory_page(big, "planted", EPSILON, maps))) < 12_000_000


@pytest.mark.slow
def test_equal_measurements_give_equal_bytes(complete):
    assert render(observatory_page(complete, "planted", EPSILON)) == render(
        observatory_page(complete, "planted", EPSILON)
    )


@pytest.mark.slow
def test_the_last_tokens_are_no_sink_however_much_they_look_at_themselves(complete):
    received = complete.data["attention_received"].copy()
    received[..., 23] = 0.9
    late = Measurement(complete.data.assign(attention_received=received))
    assert "position 0" in cards(late).values()
    page = observatory_page(late, "planted", EPSILON)
    section = next(section for section in page.sections if section.title == "Sink rate, per position")
    colors = next(iter(section.figures.values())).data[0].marker.color
    assert colors[0] == SINK
    assert colors.count(SINK) == 1


@pytest.mark.slow
@pytest.mark.parametrize("broken", [slice(None), slice(0, 2)])
def test_activations_that_are_nan_give_a_page_that_says_so(complete, tmp_path, broken):
    data = complete.data.copy(deep=True)
    of_masks = {"visible_queries", "uniform_received"}  # which no activation changes
    for name, variable in data.items():
        if variable.dtype.kind == "f" and "sample" in variable.dims and name not in of_masks:
            data[name][broken] = np.nan
    found = Measurement(data)
    page = observatory_page(found, "planted", EPSILON, definitions=found.definitions())
    assert write_page(page, tmp_path / "figure.html").stat().st_size > 1000
    values = {card.label: card.value for card in page.headlines}
    nothing = broken == slice(None)
    assert ("massive activations: all hidden states are NaN or infinite" in values) == nothing
    assert any(label.startswith("strongest sink: no position") for label in values) == nothing
    assert "not known in" in found.definitions()["note"][0]
