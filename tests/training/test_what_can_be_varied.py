"""The page that lists every field of a recipe: complete, and every example is a recipe that differs from nano."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sinkscope.data import DataConfig, FixedToken, RandomTokens
from sinkscope.training import Recipe, load_recipe
from sinkscope.training.loss import Loss
from sinkscope.training.masking import MaskedTokens
from sinkscope.training.optimizers import OPTIMIZERS
from sinkscope.training.penalty import ActivationPenalty
from sinkscope.training.recipe import FIELDS_OF_MODEL, FROM_ELSEWHERE
from sinkscope.training.schedule import Constant, Cosine, LinearDecay, Trapezoid

PAGE = (Path(__file__).parents[2] / "docs" / "what_can_be_varied.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]
PARTS: dict[str, tuple[type[BaseModel], ...]] = {
    "optimizer.": tuple(OPTIMIZERS.values()),
    "schedule.": (Constant, Cosine, LinearDecay, Trapezoid),
    "loss.": (Loss,),
    "loss.activation_penalty.": (ActivationPenalty,),
    "loss.masked.": (MaskedTokens,),
    "data.": (DataConfig,),
}


def fields() -> set[str]:
    """The dotted names of everything that can be set."""
    found = {prefix + name for prefix, parts in PARTS.items() for part in parts for name in part.model_fields}
    found |= {f"model.{name}" for name in FIELDS_OF_MODEL if name not in FROM_ELSEWHERE}
    found |= {name for name in Recipe.model_fields if name not in ("optimizer", "schedule", "loss", "data", "model")}
    return found - {"loss.activation_penalty", "loss.masked"}


def overrides(row: str) -> list[str]:
    """The settings of a row's example."""
    words = shlex.split(row.split(" | ")[-1].rstrip(" |").strip("`"))
    assert words[::2] == ["--set"] * (len(words) // 2), row
    return words[1::2]


def test_every_field_has_its_row() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    assert named == fields()


def test_every_field_of_an_intervention_is_named() -> None:
    [row] = [row for row in ROWS if "`data.interventions`" in row]
    for name in {*FixedToken.model_fields, *RandomTokens.model_fields}:
        assert f"`{name}`" in row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("`")[1])
def test_every_example_sets_its_fields(row: str) -> None:
    recipe, nano = (
        load_recipe("nano", overrides(row)).model_dump(mode="json"),
        load_recipe("nano").model_dump(mode="json"),
    )
    assert recipe != nano
    for name in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
        assert any(override.startswith(name) for override in overrides(row)), name
        assert _at(recipe, name) != _at(nano, name), name


def _at(dumped: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        dumped = dumped.get(part) if isinstance(dumped, dict) else None
    return dumped


def test_choices_are_named() -> None:
    for name in OPTIMIZERS:
        assert name in PAGE
    for schedule in PARTS["schedule."]:
        assert schedule.model_fields["kind"].default in PAGE
