"""What a measurement would take, beside what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as ss
from sinkscope.measurement.planning import measured_rate, plan
from sinkscope.model import blueprint


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
