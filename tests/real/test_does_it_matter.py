"""What hiding a sink shows on a pretrained model, and what it does not."""

from __future__ import annotations

import argparse
import calendar
import csv
import difflib
import inspect
import statistics
import tarfile
import textwrap
import uuid
import zipfile
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkscope.interventions import ForbidSink
from sinkscope.statistics import nanmean
from sinkscope.trials import matters
from sinkscope.trials.changes import sink_rates

pytestmark = pytest.mark.slow
TOKENS = 48


@pytest.fixture(scope="module")
def ids(smollm2: tuple[Any, Any]) -> Tensor:
    """Texts from the middle of files, so that first tokens differ."""
    modules = (argparse, calendar, csv, difflib, inspect, statistics, textwrap, tarfile, zipfile, uuid)
    rows = []
    for module in modules:
        source = inspect.getsource(module)
        rows.append(smollm2[1](source[len(source) // 2 :][:600]).input_ids[:TOKENS])
    return torch.tensor(rows)


def test_a_key_hidden_from_all_queries_is_replaced_by_the_next(smollm2: tuple[Any, Any], ids: Tensor) -> None:
    """So that hiding it from everybody says nothing about the sink."""
    model = smollm2[0]
    before = nanmean(sink_rates(model, ids[:4], 0.3, 4), 0)
    with ForbidSink((0,)).applied(model):
        after = nanmean(sink_rates(model, ids[:4], 0.3, 4), 0)
    assert before[0] > 50 > before[1]
    assert after[1] > 50


@pytest.mark.release
def test_hidden_from_later_queries_alone_it_is_missed_and_a_constant_does(
    smollm2: tuple[Any, Any], ids: Tensor
) -> None:
    model = smollm2[0]
    trial = matters(
        model,
        ids[:6],
        ("hide-sink", "mute-sink", "mean-sink"),
        on=(0,),
        calibrate_on=ids[6:],
        controls=0,
        batch_size=6,
    )
    assert trial.cost("hide-sink", "nats").value > 1
    assert trial.cost("mute-sink", "nats").value > 0.5
    assert abs(trial.cost("mean-sink", "nats").value) < 0.1
