"""Five tiny models of different families in folders, as users have them, and a count of how often one is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sinkscope.measurement import Survey, SurveySpec, measure_models
from sinkscope.measurement.models import running
from tests.families.registry import COLLECTED, FAMILIES
from tests.measurement.conftest import lab_model

BUILDERS: dict[str, Callable] = {
    "sinks": lambda: FAMILIES["gpt_oss"].build(),
    "hybrid": lambda: FAMILIES["jamba"].build(),
    "encoder": lambda: FAMILIES["bert"].build(),
    "legacy": lambda: COLLECTED["bloom"].build(),
    "lab": lambda: lab_model("softmax"),
}
FEW = {"inputs": ["random", "repeated"], "tokens": 16, "samples": 3, "batch_size": 2}


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of five model folders without tokenizers. Shared: leave it as it is."""
    folder = tmp_path_factory.mktemp("zoo")
    for name, build in BUILDERS.items():
        build().save_pretrained(folder / name)
    return folder


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models loaded so far, by folder name."""
    loaded: list[str] = []
    load = running.load

    def counting(name: str, **options: object) -> object:
        loaded.append(Path(name).name)
        return load(name, **options)

    monkeypatch.setattr(running, "load", counting)
    return loaded


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Survey]:
    """`run("a", "b", samples=3)` surveys models into one folder."""

    def call(*models: object, progress: Callable | None = None, **settings: object) -> Survey:
        entries = [model if isinstance(model, dict) else str(model) for model in models]
        return measure_models(SurveySpec(models=entries, **{**FEW, **settings}), tmp_path / "out", progress)

    return call
