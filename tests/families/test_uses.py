"""Every family's tiny decoder takes what commands do by default: outliers, ranked maps, an output of changed heads."""

from __future__ import annotations

import pytest
import torch

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Grid
from sinkscope.interventions import ACT
from sinkscope.measurement import find_tokens
from sinkscope.quantization import QuantizeLinear
from sinkscope.sinks import NothingChosenError, Outliers
from sinkscope.trials.rescue import rounding_costs
from tests.families.registry import FAMILIES

TEXTS, TOKENS = 2, 16
DECODERS = [name for name, family in FAMILIES.items() if family.kind == "tokens" and "Causal" in family.auto]


def ids() -> torch.Tensor:
    return torch.randint(3, 90, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=DECODERS)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    family = FAMILIES[request.param]
    if not family.exists:
        pytest.skip(f"the installed transformers has no {family.config}")
    return family.build("sdpa" if "sdpa" in family.hosts else "eager")


@pytest.mark.slow
def test_outliers_are_looked_for_where_the_model_has_maps(model: torch.nn.Module) -> None:
    try:
        found = find_tokens(model, ids(), Outliers(1.01))
    except NothingChosenError as error:
        pytest.skip(f"tokens as large as each other: {error}")
    assert found.about["site"] in ("down", "experts")


@pytest.mark.slow
def test_maps_are_ranked_by_what_rounding_costs(model: torch.nn.Module) -> None:
    try:
        costs = rounding_costs(model, ids(), QuantizeLinear(Grid(4), Grid(4, "token")))
    except UnsupportedModelError as error:  # matrices outside linear maps
        pytest.skip(str(error))
    assert any(cost > 0 for cost in costs.maps.values())
    assert costs.tokens.shape == (TEXTS, TOKENS)


@pytest.mark.slow
def test_a_change_of_all_heads_reaches_the_host(model: torch.nn.Module) -> None:
    with torch.no_grad():
        before = model(input_ids=ids()).logits
        try:
            with ACT(beta=0.0, threshold=0.05).applied(model):
                after = model(input_ids=ids()).logits
        except (InputError, UnsupportedModelError) as error:  # layers that do not dispatch, learned slots
            pytest.skip(str(error))
    assert after.isfinite().all()
    assert not torch.equal(after, before)
