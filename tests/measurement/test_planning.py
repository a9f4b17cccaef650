"""What a measurement would take, beside what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as ss
from sinkscope.measurement.planning import VARIABLES, measured_rate, plan
from sinkscope.model import blueprint
from tests.families.inputs import PATCH, SIDE
from tests.families.registry import FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano", "nano-hybrid", "nano-encoder"])
def test_parameters_and_weights_are_those_of_the_model(name: str) -> None:
    model = ss.load(name)
    found = plan(name, tokens=64, samples=10, batch_size=8)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.weights == sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert found.download == 0
    assert all(parameter.is_meta for parameter in blueprint(name).parameters())


@pytest.mark.slow
def test_a_local_model_in_another_precision(tmp_path: Path) -> None:
    ss.load("nano").to(torch.bfloat16).save_pretrained(tmp_path)
    assert plan(str(tmp_path), tokens=8, samples=1, batch_size=1).dtype == "bfloat16"
    found = plan(str(tmp_path), tokens=8, samples=1, batch_size=1, dtype="float64")
    assert found.weights == 8 * found.parameters
    with pytest.raises(ss.InputError, match="no such folder"):
        plan("./nowhere", tokens=8, samples=1, batch_size=1)


@pytest.mark.slow
def test_results_are_about_as_large_as_said(tmp_path: Path) -> None:
    found = plan("nano", tokens=64, samples=16, batch_size=8)
    ss.measure("nano", torch.randint(3, 2048, (16, 64)), "all").save(tmp_path / "m.nc")
    assert found.results / 4 < (tmp_path / "m.nc").stat().st_size < found.results * 4


@pytest.mark.slow
def test_time_grows_with_the_samples_and_the_rate_is_measured() -> None:
    few, many = (plan("nano", tokens=64, samples=samples, batch_size=8) for samples in (10, 1000))
    assert many.seconds[0] * many.rate == pytest.approx(100 * few.seconds[0] * few.rate)
    assert few.seconds[0] < few.seconds[1]
    assert measured_rate("cpu", torch.float32, seconds=0.02) > 1e8


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_plan(name: str, tmp_path: Path) -> None:
    if not FAMILIES[name].exists:
        pytest.skip(f"the installed transformers has no {FAMILIES[name].config}")
    model = FAMILIES[name].build()
    model.save_pretrained(tmp_path)
    found = plan(str(tmp_path), tokens=8, samples=2, batch_size=1)
    assert found.weights > 0
    assert 0 < found.seconds[0] <= found.seconds[1]


def test_of_an_image_all_patches_are_read_whatever_is_said_of_texts(tmp_path: Path) -> None:
    FAMILIES["vit"].build().save_pretrained(tmp_path)
    few, many = (plan(str(tmp_path), tokens=tokens, samples=2, batch_size=1) for tokens in (8, 512))
    assert few.results == many.results
    config = blueprint(str(tmp_path)).config
    per_token = few.results / ((SIDE // PATCH) ** 2 + 1)
    assert per_token == VARIABLES * 4 * 2 * config.num_hidden_layers * config.num_attention_heads
