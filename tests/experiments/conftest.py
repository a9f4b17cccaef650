from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sinkscope.experiments import Question, Variation, above, gap, level
from sinkscope.training import Recipe, load_recipe
from tests.training.conftest import TINY, corpus, tiny  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def small(corpus: str) -> Callable[..., Question]:  # noqa: F811
    """A question whose runs take a fraction of a second; `changes` are of its second variation."""
    whole = load_recipe("nano", [*TINY, "context=32", f"data.corpus={corpus}"]).model_dump(mode="json")
    shared = {name: value for name, value in whole.items() if name not in ("seed", "attention")}

    def question(name: str = "small", changes: dict | None = None, seeds: int = 3, **more: object) -> Question:
        return Question(
            name=name,
            asks="Is there a difference?",
            source="a test",
            variations=(Variation("one"), Variation("two", {"attention": "sigmoid"} if changes is None else changes)),
            assertions=(
                above(-100.0, gap("loss", "one", "two"), "a claim", "its statement", "a test", fewest=2),
                above(100.0, level("loss", "one"), "another", "its statement", "a test", fewest=2),
            ),
            shared=shared,
            seeds=seeds,
            **more,
        )

    return question


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Where a sweep writes."""
    return {"out": tmp_path / "runs", "results": tmp_path / "results"}


def recipes(question: Question, seeds: int = 1) -> list[Recipe]:
    return list(question.recipes("nano", seeds).values())
