import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pandas as pd
import plotly.graph_objects as go
import pytest

from sinkscope.errors import InputError
from sinkscope.report.page import Headline, Page, Section, Widget, json_text, render, write_page
from sinkscope.theme import figure

EVIL = "<script>alert('x')</script>"
PAGE = Page(
    title=f"Title {EVIL}",
    lead=f"Lead {EVIL}",
    headlines=[Headline(f"1 {EVIL}", f"label {EVIL}")],
    sections=[
        Section(
            f"Section {EVIL}", f"Sentence {EVIL}", {f"fig {EVIL}": figure(300).add_scatter(x=[1], y=[2], name=EVIL)}
        ),
        Section("Plain", "A table.", table=pd.DataFrame({f"name {EVIL}": [EVIL], "n": [1.25]}), unfolded=True),
    ],
    provenance={f"fact {EVIL}": f"value {EVIL}"},
)


class Elements(HTMLParser):
    """Scripts with their attributes and text, and every attribute that could reach the network."""

    def __init__(self, html):
        super().__init__()
        self.scripts, self.references, self.policy, self.open = [], [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.references += [values[key] for key in ("src", "href", "action") if key in values]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self.open = tag == "script"
        if self.open:
            self.scripts.append([values, ""])

    def handle_data(self, data):
        if self.open:
            self.scripts[-1][1] += data

    def handle_endtag(self, tag):
        self.open = False


@pytest.fixture(scope="module")
def elements():
    return Elements(render(PAGE))


def test_text_from_outside_never_becomes_an_element(elements):
    assert EVIL not in render(PAGE)
    assert [attributes.get("type", "script") for attributes, _ in elements.scripts] == [
        "application/json",
        "text/plain",
        "script",
        "script",
    ]


def test_only_the_scripts_of_the_page_and_what_it_unpacks_may_run(elements):
    code = [text for attributes, text in elements.scripts if "type" not in attributes]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code]
    [packed] = [text for attributes, text in elements.scripts if attributes.get("id") == "plotly"]
    library = hashlib.sha256(gzip.decompress(base64.b64decode(packed))).digest()
    hashes.insert(0, base64.b64encode(library).decode())
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    assert f"script-src {allowed};" in elements.policy
    assert elements.policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in elements.policy


def test_nothing_is_loaded_from_elsewhere(elements):
    assert all(reference.startswith("#") for reference in elements.references)


def test_plotly_is_packed_into_the_page_once():
    html = render(PAGE)
    [packed] = [text for attributes, text in Elements(html).scripts if attributes.get("id") == "plotly"]
    assert len(re.findall(r"\* plotly\.js v", gzip.decompress(base64.b64decode(packed)).decode())) == 1
    assert len(html) < 2_200_000


def test_long_data_are_packed_and_come_out_as_they_were():
    numbers = list(range(40_000))
    section = Section("s", "s", widget=Widget("strip.html", {"many": numbers, "few": [1]}))
    found = {values.get("id"): text for values, text in Elements(render(Page("t", "l", sections=[section]))).scripts}
    assert json.loads(gzip.decompress(base64.b64decode(found["many"]))) == numbers
    assert json.loads(found["few"]) == [1]


def test_the_figure_survives_its_embedding(elements):
    embedded = json.loads(elements.scripts[0][1])
    assert go.Figure(embedded) == next(iter(PAGE.sections[0].figures.values()))


def test_equal_contents_give_equal_bytes():
    assert render(PAGE) == render(PAGE)


def test_the_page_is_a_few_megabytes(tmp_path):
    size = write_page(PAGE, tmp_path / "deep" / "report.html").stat().st_size
    assert size < 6_000_000


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_page(PAGE, tmp_path / "file" / "report.html")


def test_a_failed_write_keeps_the_old_page(tmp_path, monkeypatch):
    path = write_page(PAGE, tmp_path / "report.html")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_page(Page("other", ""), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tables_align_numbers_and_show_missing_ones():
    frame = pd.DataFrame({"input": ["natural"], "rate": [11.6111], "gap": [float("nan")]})
    html = render(Page("t", "l", sections=[Section("s", "s", table=frame)]))
    assert '<th scope="col">input</th><th scope="col" class="number">rate</th>' in html
    assert '<th scope="row">natural</th><td data-name="rate" class="number">11.61</td>' in html
    assert '<td data-name="gap" class="number">–</td>' in html


def test_every_figure_is_described_for_screen_readers():
    html = render(PAGE)
    assert re.search(r'role="img" aria-label="fig .*" aria-describedby="c1"', html)
    assert 'id="c1"' in html


def test_several_figures_carry_their_names():
    both = Section("Two", "Side by side.", {"softmax": figure(300), "sig<moid": figure(300)})
    html = render(Page("t", "l", sections=[both]))
    assert "<figcaption>softmax</figcaption>" in html
    assert "<figcaption>sig&lt;moid</figcaption>" in html
    assert 'id="f1-1"' in html
    assert 'id="f1-2"' in html


def test_json_holds_nothing_that_html_reads():
    text = json_text({"a": [EVIL, "<!--", "&lt;"], "b": None})
    assert not {"<", ">", "&"} & {*text}
    assert json.loads(text) == {"a": [EVIL, "<!--", "&lt;"], "b": None}
    with pytest.raises(ValueError, match="Out of range"):
        json_text([float("nan")])


def test_a_widget_takes_in_its_figures_and_its_scripts_may_run():
    widget = Widget("heads.html", {"some-data": [EVIL]})
    section = Section("Widget", "A sentence.", {"the figure": figure(300)}, widget=widget)
    html = render(Page("t", "l", sections=[section], scripts=["selection.js"], styles=["observatory.css"]))
    found = Elements(html)
    [heads] = re.findall(r'<div class="head-side".*?</section>', html, re.DOTALL)
    assert '<div class="figures"><figure><figcaption>the figure</figcaption>' in heads
    assert json.loads({values.get("id"): text for values, text in found.scripts}["some-data"]) == [EVIL]
    assert found.policy.count("sha256-") == 4  # the library, what unpacks it, the page's and the widget's
    assert ".observatory" in html
