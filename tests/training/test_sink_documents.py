"""The sink of a run whose windows number their documents is logged under the mask between them [K2]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sinkscope.probes import AttentionReceived, HiddenNorms, measure
from sinkscope.training import Recipe, sink_metrics
from sinkscope.training.kinds import LAB
from sinkscope.training.session import inputs_of

from .helpers import rows, trained


def test_documents_are_apart_where_they_were_in_training(tiny: Callable[..., Recipe], runs: Path) -> None:
    recipe = tiny("context=64", "steps=2", "data.packing=intra_document", "model.restart_positions=true")
    run = trained(recipe, runs)
    windows = list(LAB.data(recipe).validation)
    ids, documents = (torch.stack([window[name] for window in windows]) for name in ("input_ids", "document_ids"))
    observers = [AttentionReceived("all"), HiddenNorms()]
    apart = sink_metrics(measure(run.model, {"input_ids": ids, "document_ids": documents}, observers))
    name = "sink/hidden_norm_ratio"
    assert rows(run)[-1][name] == pytest.approx(apart[name], rel=1e-6)
    assert abs(apart[name] - sink_metrics(measure(run.model, ids, observers))[name]) > 1e-5


def test_windows_without_numbers_are_read_by_their_tokens_alone(tiny: Callable[..., Recipe]) -> None:
    windows = LAB.data(tiny()).validation
    read = inputs_of(windows, 5)
    assert list(read) == ["input_ids"]
    assert torch.equal(read["input_ids"], torch.stack([window["input_ids"][:5] for window in list(windows)]))
