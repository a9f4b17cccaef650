"""Scored texts take no part in calibration: the score of one does not depend on which others are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sinkscope.quantization import Prefix, find_prefix
from sinkscope.sinks import First, Measured, Outliers
from sinkscope.trials import CALIBRATIONS, Trial, calibration_trial, eviction_trial, matters, scheme_trial
from tests.families.registry import FAMILIES
from tests.planted.factory import Plant, planted_ids, planted_model
from tests.quantization.quick import quick_searches  # noqa: F401  (fixture)

HALF, PROBES, BATCH = 8, 4, 2  # texts to calibrate on; scored ones that stay as they are; texts in a call
pytestmark = pytest.mark.usefixtures("quick_searches")
FITTED = (
    "w3-gptq",
    "w3-slim",
    "w8a8-static",
    "w8a8-tensor-smooth",
    "w4a4-token-duquant",
    "w4a8-tensor-gptq",
    "kv2-kvquant",
)
LONG = ("w3-slim", "w4a8-tensor-gptq", "kv2-kvquant", "w4a4-token-duquant")
Case = Callable[[nn.Module, Tensor], Trial]


def in_tiers(names: Iterable[str]) -> list[Any]:
    """The cases, those that take seconds for releases alone."""
    return [pytest.param(name, marks=pytest.mark.release if name in LONG else ()) for name in names]


def llama() -> tuple[nn.Module, Tensor]:
    return FAMILIES["llama"].build("sdpa"), torch.randint(3, 90, (2 * HALF, 24), generator=torch.manual_seed(0))


def late_sink() -> tuple[nn.Module, Tensor]:
    plant = Plant(sinks=(5,))
    return planted_model(plant), planted_ids(plant, samples=2 * HALF, tokens=48)


def calibrated(method: str, model: nn.Module, ids: Tensor) -> Trial:
    options = CALIBRATIONS[method].options(CALIBRATIONS[method].defaults, 0)
    return calibration_trial(model, ids, options, choose_on=HALF, controls=1, batch_size=BATCH)


def prefix_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> Prefix:
    return find_prefix(model, inputs, threshold=3.0, bos=0)


SCHEMES: dict[str, Case] = {
    name: partial(scheme_trial, scheme=name, protect=First(1), controls=1, batch_size=BATCH) for name in FITTED
}
CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor]], Case]] = {
    **{name: (llama, case) for name, case in SCHEMES.items()},
    **{name: (llama, partial(calibrated, name)) for name, method in CALIBRATIONS.items() if method.of_images is None},
    **{
        what: (llama, partial(matters, what=(what,), on=(0,), after=4, controls=1, batch_size=BATCH))
        for what in ("mean-sink", "fold-sink", "swap-sink")
    },
    "measured, hidden": (late_sink, partial(matters, what=("hide-sink",), after=4, controls=1, batch_size=BATCH)),
    "measured, in a scheme": (
        late_sink,
        partial(
            scheme_trial,
            scheme="w8a8-tensor",
            protect={"measured": Measured(), "both": Measured() + Outliers()},
            controls=1,
            batch_size=BATCH,
        ),
    ),
    "a prefix that is found": (
        late_sink,
        lambda model, ids: scheme_trial(
            model, ids, "w8a8-tensor", {"prefix": partial(prefix_of, model)}, controls=1, batch_size=BATCH
        ),
    ),
    "measured, in a cache": (
        late_sink,
        partial(eviction_trial, policies=["keydiff"], budgets=[12], context=32, controls=1, batch_size=BATCH),
    ),
}


def spoiled(ids: Tensor, rows: slice) -> Tensor:
    """A copy in which one token fills these rows, from the second position on."""
    changed = ids.clone()
    changed[rows, 1:] = 7
    return changed


@cache
def plain_trial(name: str) -> tuple[nn.Module, Tensor, Trial]:
    """The model, the texts, and the trial on them."""
    build, case = CASES[name]
    model, ids = build()
    return model, ids, case(model, ids)


def of_probes(trial: Trial) -> dict[str, np.ndarray]:
    return {arm: trial.values(arm, "kl")[:PROBES] for arm in trial.arms}


@pytest.mark.slow
@pytest.mark.parametrize("name", in_tiers(CASES))
def test_a_score_depends_only_on_its_text_and_the_calibration(name: str) -> None:
    model, ids, found = plain_trial(name)
    assert found.texts == HALF
    assert not found.record["calibrated_on"]["in_sample"]
    scores = of_probes(found)
    others = of_probes(CASES[name][1](model, spoiled(ids, slice(HALF + PROBES, None))))
    assert others.keys() == scores.keys()
    for arm, values in scores.items():
        np.testing.assert_array_equal(others[arm], values, err_msg=arm)


def test_a_prefix_is_searched_in_the_calibration_texts() -> None:
    (model, ids), seen = late_sink(), []

    def find(inputs: Mapping[str, Tensor]) -> Prefix:
        seen.append(inputs["input_ids"])
        return prefix_of(model, inputs)

    trial = scheme_trial(model, ids, "w8a8-tensor", {"prefix": find}, controls=0)
    assert [given.tolist() for given in seen] == [ids[:HALF].tolist()]
    assert trial.record["calibrated_on"]["texts"] == trial.texts == HALF


@pytest.mark.slow
@pytest.mark.parametrize("name", in_tiers(FITTED))
def test_what_is_fitted_depends_on_the_calibration(name: str) -> None:
    """Otherwise the test above could not fail."""
    model, ids, fitted = plain_trial(name)
    spoilt = SCHEMES[name](model, spoiled(ids, slice(0, HALF)))
    assert not np.allclose(fitted.values(name), spoilt.values(name), rtol=1e-3)
