"""Every model type of transformers: what came of it is what is written down, and nothing measured is different."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import transformers

from tests.families.sweep import attaching, maps, table, zoo
from tests.families.sweep.check import HOSTS, NEEDS, PADDINGS, Result, outcome
from tests.families.sweep.unbuilt import UNBUILT

VERSION, COMMITTED = table.committed()
FULL = bool(os.environ.get("SINKSCOPE_SWEEP_FULL"))  # every host and every padding, as the page is made: minutes
SAME_VERSION = transformers.__version__ == VERSION


def cell(number: int, row: Result) -> dict[str, Any]:
    """Hosts, paddings and observers of one test: all where a family is refused, which may be in one of them; else one
    of each, and all observers, which has the default among them."""
    if FULL or row.outcome == "refused":
        return {"hosts": HOSTS, "paddings": PADDINGS}
    return {
        "hosts": HOSTS[number % 2 :][:1],
        "paddings": ("none", PADDINGS[1 + number // 2 % 2]),
        "observers": ("all",),
    }


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # that a layer is left out is said, and stands in the table
@pytest.mark.parametrize("number", range(len(COMMITTED)), ids=list(COMMITTED))
def test_every_model_type_comes_out_as_it_did(number: int) -> None:
    row = list(COMMITTED.values())[number]
    if row.outcome == "not built":
        pytest.skip(f"{row.kind}: {row.detail}")
    if row.kind not in zoo.known():
        pytest.skip(f"transformers {transformers.__version__} has no {row.kind}")
    found = outcome(row.kind, inputs=row.inputs, **cell(number, row))
    if found.detail.startswith(NEEDS):
        pytest.skip(f"{row.kind} {found.detail}")
    assert found.outcome not in ("DIFFERENT", "crash"), found.detail
    if SAME_VERSION:
        assert found.outcome == row.outcome, found.detail


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", attaching.committed()[1])
def test_every_model_type_takes_an_operation_as_it_did(kind: str) -> None:
    if kind not in zoo.known():
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    result, why = attaching.committed()[1][kind]
    if SAME_VERSION:
        assert attaching.outcome(kind)[0] == result, why


def test_nothing_is_different_and_little_is_left_out() -> None:
    outcomes = [row.outcome for row in COMMITTED.values()]
    assert not {"DIFFERENT", "crash"} & set(outcomes)
    assert len(outcomes) > 500
    assert outcomes.count("not built") < 0.2 * len(outcomes)
    assert outcomes.count("equal") > 0.7 * len(outcomes)
    assert all(row.detail for row in COMMITTED.values() if row.outcome in ("refused", "not built"))


@pytest.mark.release
@pytest.mark.skipif(not SAME_VERSION, reason="another version of transformers has other model types")
def test_the_table_has_every_model_type_that_there_is() -> None:
    assert sorted(COMMITTED) == sorted(zoo.cases())


def test_what_is_not_built_has_its_reason() -> None:
    missing = {kind: row.detail for kind, row in COMMITTED.items() if row.outcome == "not built"}
    assert missing.keys() == UNBUILT.keys()
    assert all(detail.startswith(UNBUILT[kind]) for kind, detail in missing.items())


@pytest.mark.parametrize("kind", ["uvdoc", "slanet", "pp_ocrv5_server_det", "pp_ocrv6_tiny_rec", "upernet"])
def test_convolutions_have_no_row(kind: str) -> None:
    """Their parts are configurations of convolutions too: not every composite has attention."""
    assert not zoo.attends(kind)


@pytest.mark.parametrize("kind", ["chmv2", "depth_pro", "vision-encoder-decoder", "llava"])
def test_attention_of_a_part_counts(kind: str) -> None:
    if not hasattr(zoo.config_class(kind), "sub_configs_defaults"):
        pytest.skip("configurations of transformers 5.17 do not say what their parts are by default")
    assert zoo.attends(kind)


def test_the_reference_counts_queries_that_see_a_key() -> None:
    weights = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    assert maps.Seen(weights, torch.ones(1, 2, 2).tril().bool()).received.tolist() == [[0.625, 0.75]]
    assert maps.Seen(weights, torch.ones(1, 2, 2).bool()).received.tolist() == [[0.625, 0.375]]
