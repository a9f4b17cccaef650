import pytest

from sinkscope.attention import CATALOG


def test_lists_every_operation(sinkscope):
    answer = sinkscope("zoo")
    assert answer.code == 0
    assert all(name in answer.out for name in CATALOG)


def test_json_lists_the_whole_catalogue(sinkscope):
    listed = sinkscope("zoo", "--json").json["operations"]
    assert [entry["name"] for entry in listed] == list(CATALOG)
    assert all(entry["formula"] and entry["rows"] and entry["source"] for entry in listed)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "kv_bias"])
def test_shows_one_with_its_options(sinkscope, name):
    shown = sinkscope("zoo", name, "--json").json
    assert shown["spec"] == CATALOG[name].to_dict()
    assert shown["metric_weights"] == CATALOG[name].metric_weights
    assert "normalizer.kind" in sinkscope("zoo", name).out


def test_an_unknown_operation_gets_the_nearest(sinkscope):
    assert "did you mean 'sigmoid'" in sinkscope("zoo", "sigmod").error
