"""Windows that number their documents are read as they were trained: under the mask between documents."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sinkscope.data import DataConfig
from sinkscope.experiments.readings import at_first, mean_loss
from sinkscope.experiments.sweep.store import observed
from sinkscope.model import load_tokenizer
from sinkscope.training import Recipe
from sinkscope.training.kinds import LAB
from sinkscope_replication import training
from sinkscope_replication.observing.other_texts import other_texts
from sinkscope_replication.observing.readings import readings
from sinkscope_replication.training import StudyTraining
from tests.training.helpers import trained
from tests_replication.observing.test_readings import lab, with_a_sink

APART = {"mask": {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "document"}}}
OTHER_INPUTS = ("sink_0/random", "sink_0/random_after_first", "sink_0/repeated", "sink_0/swapped=9", "sink_9/swapped=9")


def drawn(samples: int = 3, tokens: int = 30, seed: int = 0) -> Tensor:
    return torch.randint(0, 97, (samples, tokens), generator=torch.Generator().manual_seed(seed))


def in_two(ids: Tensor, first: int = 12) -> dict[str, Tensor]:
    return {"input_ids": ids, "document_ids": (torch.arange(ids.shape[1]) >= first).long().expand(ids.shape)}


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"position": "learned", "restart_positions": True}, {"sink_tokens": 1}])
def test_an_earlier_document_changes_nothing_of_a_later_one(fields: dict) -> None:
    model, ids = lab(attention=APART, **fields), drawn()
    changed = torch.cat([drawn(seed=1)[:, :12], ids[:, 12:]], 1)
    before, after = (dict(readings(model, in_two(each))) for each in (ids, changed))
    of_the_later = ("last_pair_distance", "relative_pair_distance", "sink_13", "sink_14")
    assert [after[name] for name in of_the_later] == [before[name] for name in of_the_later]
    assert mean_loss(model, in_two(changed), first=13) == mean_loss(model, in_two(ids), first=13)
    assert after["hidden_spread"] != before["hidden_spread"]
    if "sink_tokens" not in fields:  # which every document sees, and which see nothing of the text
        assert dict(readings(model, changed))["last_pair_distance"] != dict(readings(model, ids))["last_pair_distance"]


@pytest.mark.slow
def test_where_every_token_is_a_document_nothing_reaches_another() -> None:
    model, ids = with_a_sink(attention=APART), drawn(tokens=70)
    as_one = dict(readings(model, ids))
    found = dict(readings(model, {"input_ids": ids, "document_ids": torch.arange(70).expand(ids.shape)}))
    of_the_text = [name for name in found if name.startswith(("sink_0/tokens", "sink_0/without"))]
    assert [found[name] for name in ("sink_0", *of_the_text)] == [0.0] * (len(of_the_text) + 1)
    assert found["entropy"] < 1e-6
    assert all(as_one[name] > 0 for name in ("sink_0", *of_the_text))
    assert found["first_share"] == pytest.approx(100 / 64)
    assert {name: found[name] for name in OTHER_INPUTS} == {name: as_one[name] for name in OTHER_INPUTS}


def test_a_changed_token_reaches_its_own_document_alone() -> None:
    model, ids = lab(attention=APART), drawn(tokens=20)
    as_one, found = (dict(readings(model, given)) for given in (ids, in_two(ids, first=9)))
    for name in ("perturbation", "perturbation/without_first"):  # of token 8, the last of the first document
        assert found[name] == 0 < as_one[name]


def test_a_bos_belongs_to_the_document_that_it_is_put_before() -> None:
    model, ids = with_a_sink(attention=APART, bos_token_id=0), drawn(tokens=40)
    data = DataConfig(bos="none", corpus="text:nowhere/*.txt")
    tokenizer = load_tokenizer("nano")
    found = other_texts(model, tokenizer, data, in_two(ids))
    behind = in_two(torch.cat([torch.full((3, 1), tokenizer.bos_token_id), ids[:, :-1]], 1), first=13)
    assert [next(found), next(found)] == list(at_first("with_bos", model, behind))
    assert next(found) == ("loss/with_bos", mean_loss(model, behind))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sink rates say little")  # of documents of two tokens
def test_a_run_is_read_as_it_was_trained(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    packed = ("context=64", "steps=2", "data.packing=intra_document", "model.restart_positions=true")
    recipe = tiny(*packed)
    run = trained(recipe, tmp_path)
    windows = list(LAB.data(recipe).validation)
    known = {name: torch.stack([window[name] for window in windows]) for name in ("input_ids", "document_ids")}
    assert len(windows) <= 100
    assert known["document_ids"].max() > 0
    found = observed(run, StudyTraining)
    assert found["loss/with_first"] == mean_loss(run.model, known, first=2)
    assert found["loss/with_first"] != mean_loss(run.model, known["input_ids"], first=2)
    assert math.isfinite(found["sink_0/with_bos"]) == (recipe.data.bos == "none")


@pytest.mark.release
def test_a_model_of_a_share_of_the_text_is_read_on_the_windows_that_it_saw(
    tiny: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tiny("context=64", "steps=2", "data.train_share=0.5"), tmp_path)
    validation = LAB.data(tiny("context=64")).validation
    train, whole = (LAB.data(each).train for each in (tiny("context=64", "data.train_share=0.5"), tiny("context=64")))
    seen = torch.stack([window["input_ids"] for window in train])
    assert 0 < len(seen) < len(whole)
    assert len(seen) <= 100
    # A model of two steps has no sink on any text: which windows are read shows in their ids alone.
    monkeypatch.setattr(
        training, "at_first", lambda name, _, read: [(f"sink_0/{name}", float(read["input_ids"].sum()))]
    )
    found = observed(run, StudyTraining)
    assert found["sink_0/training"] == float(seen[:, :64].sum())
    assert found["sink_0/training"] != float(torch.stack([each["input_ids"] for each in validation])[:, :64].sum())
    plain = observed(trained(tiny("context=64", "steps=2"), tmp_path / "plain"), StudyTraining)
    assert math.isnan(plain["sink_0/training"])
