"""Section 3 on a model: numbers are those of the model's own states; parts that are there are not measured again."""

from __future__ import annotations

import json

import pytest
import torch

import sinkscope as ss
from sinkscope.model import load, load_tokenizer
from sinkscope_replication import released


@pytest.fixture(scope="module")
def nano():
    return load("nano")


def inputs(tokens: int = 24, samples: int = 3):
    made = released.conditions(load_tokenizer("nano"), 2048)
    return made["random tokens, BOS"](tokens=tokens, samples=samples)


def test_norms_are_those_of_the_states_before_and_after_the_norm(nano):
    rows = inputs()
    found = released.geometry(nano, rows)
    with torch.no_grad():
        states = nano(rows.input_ids, output_hidden_states=True).hidden_states
    first = [float(state[:, 0].norm(dim=-1).mean()) for state in states[:-1]]
    assert found["hidden"]["first"][: len(first)] == pytest.approx(first, rel=1e-3)
    layers = [layer for name, layer in nano.named_modules() if name.endswith("input_layernorm")]
    for place, (norm, state) in enumerate(zip(layers, states[:-1], strict=True)):
        others = norm(state)[:, 1:].norm(dim=-1).mean()
        assert found["entering"]["others"][place] == pytest.approx(float(others.detach()), rel=1e-3)
    assert len(found["channel"]) == len(found["hidden"]["first"]) == len(layers) + 1
    assert not any(module._forward_pre_hooks for module in nano.modules())


def test_rates_are_those_of_measure_and_lengths_add_up(nano, monkeypatch):
    rows = inputs(tokens=64)
    rate = released.rate(nano, rows)
    assert rate["rate"] == pytest.approx(ss.measure(nano, rows.input_ids).sink_rate(position=0))
    assert sum(rate["by_layer"]) / len(rate["by_layer"]) == pytest.approx(rate["rate"], abs=0.1)
    monkeypatch.setattr(released, "LENGTHS", (32, 64))
    by_length = released.rates_by_length(nano, rows)
    at = by_length["epsilons"].index(0.3)
    assert by_length["rates"][at][-1] == pytest.approx(rate["rate"], abs=0.1)
    assert all(lower >= higher for lower, higher in zip(by_length["rates"][0], by_length["rates"][4], strict=True))


def test_parts_that_are_there_are_not_measured_again(tmp_path, monkeypatch, capsys):
    measured = []
    parts = {name: (lambda name=name: measured.append(name) or {"rate": 1.0}) for name in ("one", "other")}
    monkeypatch.setattr(released, "parts", lambda model, tokenizer, samples: parts)
    out = tmp_path / "nano.json"
    out.write_text(json.dumps({"parts": {"one": {"rate": 2.0, "samples": 5}}}))
    released.main(["nano", "--samples", "5", "--out", str(out)])
    assert measured == ["other"]
    kept = json.loads(out.read_text())
    assert (kept["parts"]["one"]["rate"], kept["parts"]["other"]["rate"], kept["model"]) == (2.0, 1.0, "nano")
    released.main(["nano", "--samples", "6", "--out", str(out)])
    assert measured == ["other", "one", "other"]


@pytest.mark.parametrize("text", ["{", "[]", '{"parts": []}', '{"parts": {"one": 1}}'])
def test_a_file_of_something_else_is_left_alone(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(released, "load", None)  # it is read first
    out = tmp_path / "nano.json"
    out.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        released.main(["nano", "--out", str(out)])
    assert str(out) in capsys.readouterr().err.splitlines()[-1]
    assert out.read_text() == text
