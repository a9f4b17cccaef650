import warnings

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import Measurement, rate_at, rates_by_position, stack_rates


def test_one_head_of_six_is_a_sixth_of_all(dataset):
    frame = rates_by_position(dataset, 0.3)
    assert list(frame["position"]) == list(range(12))
    assert frame["sink_rate"].iloc[0] == pytest.approx(100 / 6)
    assert np.all(frame["sink_rate"].iloc[1:] == 0)
    assert frame["low"].iloc[0] == pytest.approx(100 / 6)


def test_samples_that_differ_give_an_interval(dataset):
    dataset["attention_received"].values[:3, 2, 1, 0] = 0.1
    interval = rate_at(dataset, 0.3)
    assert interval.value == pytest.approx(100 / 12)
    assert interval.low < interval.value < interval.high


def test_another_position_has_its_own_rate(dataset):
    assert rate_at(dataset, 0.3, position=1).value == 0


def test_a_threshold_outside_its_range_is_refused(dataset):
    with pytest.raises(InputError, match="epsilon"):
        rates_by_position(dataset, 1.0)


def test_stacks_apart_are_the_rates_of_their_layers(dataset):
    assert list(stack_rates(dataset, 0.3)) == ["decoder"]
    assert stack_rates(dataset, 0.3)["decoder"] == rate_at(dataset, 0.3)
    layers = dataset.sizes["layer"]
    mixed = dataset.assign_coords(stack=("layer", ["encoder"] * (layers - 1) + ["cross"]))
    received = mixed["attention_received"].transpose("sample", "layer", "head", "position").values[..., 0] > 0.3
    found = stack_rates(mixed, 0.3)
    assert found["encoder"].value == pytest.approx(100 * received[:, :-1].mean())
    assert found["cross"].value == pytest.approx(100 * received[:, -1].mean())


@pytest.mark.parametrize(("short", "warned"), [(1, False), (5, True)])
def test_a_few_short_documents_are_no_reason_to_warn(complete: Measurement, short: int, warned: bool) -> None:
    data = complete.data.isel(sample=[0] * 6)
    uniform = data["uniform_received"].copy()
    uniform[:short] = 0.6  # of texts so short that uniform attention passes ε
    uniform[short:] = 0.1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Measurement(data.assign(uniform_received=uniform)).sink_rate(position=0)
    assert any("say little" in str(one.message) for one in seen) == warned
