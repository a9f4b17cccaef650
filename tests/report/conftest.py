"""Stored results made by hand: a dataset with a planted sink, and two training logs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr

from sinkscope.measurement import Measurement
from sinkscope.report.runs import StoredRun
from tests.measurement.planted import LAYERS, POSITIONS, SAMPLES, small_dataset

CHROMIUM = shutil.which("chromium")
PATIENCE = 120_000  # ms; nothing in a browser is timed here, and a machine may have other work


@pytest.fixture(scope="package")  # no longer: an event loop runs beside it
def browser() -> Iterator[object]:
    """Debian's Chromium, without a network."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def context_of(browser, **options):
    """A context of its own, without a network."""
    context = browser.new_context(offline=True, **options)
    context.set_default_timeout(PATIENCE)
    return context


@pytest.fixture
def dataset() -> xr.Dataset:
    return small_dataset()


def log_rows(height: float, steps: int = 200) -> tuple[dict[str, float], ...]:
    """A loss every 10 steps, an evaluation every 50, whose sink rate rises to `height` percent."""
    rows: list[dict[str, float]] = []
    for step in range(10, steps + 1, 10):
        rows.append({"step": step, "loss": 3 + 4 / step, "tokens_per_second": 9000.0})
        if step % 50 == 0:
            rows.append(
                {
                    "step": step,
                    "validation_loss": 3.1 + 4 / step,
                    "sink/position_0": height * step / steps,
                    "sink/hidden_norm_ratio": 1 + step / 100,
                }
            )
    return tuple(rows)


@pytest.fixture(scope="session")
def runs() -> tuple[StoredRun, StoredRun]:
    """Shared: leave them as they are."""
    return StoredRun("softmax", log_rows(6.4)), StoredRun("sigmoid", log_rows(0.0))


@pytest.fixture
def measurement(dataset: xr.Dataset) -> Measurement:
    dataset["tokens"] = (("sample", "layer"), np.full((SAMPLES, LAYERS), POSITIONS))
    record = {
        "model": "planted",
        "samples": SAMPLES,
        "tokens": POSITIONS,
        "metric_weights": ["raw"],
        "input": {"description": "6 windows of 12 tokens", "first": "<bos> (id 0)"},
        "versions": {"torch": "2.13.0"},
    }
    return Measurement(dataset.assign_attrs(record=json.dumps(record)))
