from itertools import pairwise

import pytest

from sinkscope.attention import CATALOG, ENTRIES, explain
from sinkscope.attention.catalog import SECTIONS
from sinkscope.cli.zoo import described
from sinkscope.training import load_recipe


def test_lists_every_operation_in_its_section(sinkscope):
    answer = sinkscope("zoo")
    assert answer.code == 0
    first = [line.split(" ")[0] for line in answer.out.splitlines()]
    assert [word for word in first if word in CATALOG] == list(CATALOG)
    for section in SECTIONS:
        assert section.title in answer.out
    assert all(entry.source.split(";")[0][:12] in answer.out for entry in ENTRIES.values())


def test_nothing_is_cut_on_a_narrow_terminal(sinkscope, monkeypatch):
    wide = sinkscope("zoo").out.split()
    monkeypatch.setenv("COLUMNS", "60")
    answer = sinkscope("zoo")
    assert answer.out.split() == wide
    assert max(map(len, answer.out.splitlines())) <= 60


def test_json_lists_the_whole_catalogue(sinkscope):
    listed = sinkscope("zoo", "--json").json["operations"]
    assert [entry["name"] for entry in listed] == list(CATALOG)
    assert {entry["section"] for entry in listed} == {section.title for section in SECTIONS}
    for entry in listed:
        assert all(entry[field] for field in ("formula", "rows", "acts", "effect", "source", "metric_weights"))
        assert set(entry["path"]) == {"cpu", "cuda"}


@pytest.mark.parametrize("name", ["softmax", "clipped_softmax", "kv_bias", "gated_head"])
def test_shows_one_with_its_options(sinkscope, name):
    shown, entry = sinkscope("zoo", name, "--json").json, ENTRIES[name]
    assert shown["spec"] == entry.spec.to_dict()
    assert shown["options"] == entry.options
    assert shown["metric_weights"] == entry.spec.metric_weights
    text = sinkscope("zoo", name).out
    assert "normalizer.kind" in text
    assert ("option  " in text) == bool(entry.options)
    assert all(option in text for option in entry.options)


def test_the_next_command_it_names_is_one(sinkscope):
    answer = sinkscope("zoo", "softmax_scaled")
    words = answer.err.split()
    overrides = [value for flag, value in pairwise(words) if flag == "--set"]
    assert load_recipe("nano", overrides).attention == CATALOG["softmax_scaled"]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_unknown_operation_gets_the_nearest(sinkscope, form):
    answer = sinkscope("zoo", "sigmod", *form)
    assert answer.code == 2
    assert "did you mean 'sigmoid'" in answer.error
    assert answer.out == ""


@pytest.mark.parametrize("name", ENTRIES)
def test_the_path_is_the_one_that_runs(name: str) -> None:
    told = described(ENTRIES[name])["path"]
    assert told == {device: str(explain(CATALOG[name], device)) for device in ("cpu", "cuda")}
