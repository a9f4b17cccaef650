"""Field names that are read from the sources are those of the classes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sinkscope.cli.recipe_fields import ALSO, CLASSES, _annotated, check_field_names
from sinkscope.data import DataConfig
from sinkscope.errors import InputError
from sinkscope.model import LabConfig
from sinkscope.training import RECIPES, Recipe
from sinkscope.training.loss import Loss
from sinkscope.training.optimizers import OPTIMIZERS
from sinkscope.training.schedule import Constant, Cosine, LinearDecay, Trapezoid

OF_CLASSES: dict[str, Iterable[str]] = {
    "": Recipe.model_fields,
    "data": DataConfig.model_fields,
    "loss": Loss.model_fields,
    "model": LabConfig.__annotations__,
    "optimizer": [name for part in OPTIMIZERS.values() for name in part.model_fields],
    "schedule": [name for part in (Constant, Cosine, LinearDecay, Trapezoid) for name in part.model_fields],
}


@pytest.mark.parametrize("part", CLASSES)
def test_no_field_of_the_classes_is_missing(part: str) -> None:
    read = {name for file in CLASSES[part] for name in _annotated(file)}
    assert set(OF_CLASSES[part]) <= read
    assert read - set(OF_CLASSES[part]) <= {"elementwise"}, "a name that no recipe has would pass unnoticed"
    assert {"": {"base"}} == ALSO


@pytest.mark.parametrize("name", RECIPES)
def test_named_recipes_pass(name: str) -> None:
    check_field_names({"base": "nano", **RECIPES[name].model_dump(mode="json")})


@pytest.mark.parametrize("wrong", [{"stepps": 1}, {"loss": {"prefixx": 1}}, {"model": {"hidden": 3}}])
def test_a_wrong_name_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"unknown recipe field '(stepps|loss.prefixx|model.hidden)'"):
        check_field_names(wrong)
