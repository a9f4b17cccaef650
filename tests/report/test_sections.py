import pytest

from sinkscope.report import sections


def test_one_measurement_has_plain_tables(dataset):
    section = sections.attention({"nano": dataset}, 0.3)
    assert list(section.figures) == ["nano"]
    assert list(section.table.columns) == ["layer", "head 0", "head 1"]


def test_several_measurements_share_scales_and_a_table(dataset):
    louder = dataset.assign(hidden_norm=dataset["hidden_norm"] * 10)
    both = {"soft": dataset, "loud": louder}
    maps = list(sections.hidden_map(both).figures.values())
    assert maps[0].layout.coloraxis.cmin == maps[1].layout.coloraxis.cmin
    assert maps[0].layout.coloraxis.cmax == maps[1].layout.coloraxis.cmax
    lines = list(sections.hidden(both).figures.values())
    assert lines[0].layout.yaxis.range == lines[1].layout.yaxis.range
    table = sections.hidden(both).table
    assert list(table["measurement"].unique()) == ["soft", "loud"]
    assert len(table) == 8


def test_a_measurement_is_described_as_far_as_it_goes(dataset):
    titles = [section.title for section in sections.describe({"nano": dataset[["value_norm"]]}, 0.3)]
    assert titles == ["Value norms"]
    assert len(sections.describe({"nano": dataset}, 0.3)) == 4


def test_every_section_says_what_one_looks_at(dataset, runs):
    for section in (sections.training(runs), *sections.describe({"nano": dataset}, 0.3)):
        assert section.sentence.endswith(".")
        assert section.figures


def test_the_threshold_is_named_in_the_sentence(dataset):
    assert "0.45" in sections.attention({"nano": dataset}, 0.45).sentence
    assert sections.attention({"n": dataset}, 0.45).figures["n"].layout.coloraxis.colorscale[1][0] == pytest.approx(
        0.45
    )
