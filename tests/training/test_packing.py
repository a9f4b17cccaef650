"""Packed windows as a recipe makes them, in the model that reads them (slides of Gu et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, HiddenNorms, measure
from sinkscope.training import LAB, Recipe, inputs_of, load_recipe, sink_metrics
from sinkscope.training.kinds import prepared
from sinkscope.training.start import lab_model

from .helpers import rows, trained

PACKINGS = [(bos, before, after) for bos in ("fixed", "none") for before in (True, False) for after in (True, False)]
POSITIONS = ("none", "learned", "sinusoidal", "relative_t5", "relative_paper", "rotary", "alibi")


def several_documents(recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The first training window (ids, numbers) that holds parts of two documents or more."""
    for window in prepared(recipe).train:
        if window["document_ids"].max() > 0:
            return window["input_ids"], window["document_ids"]
    raise AssertionError("no window holds two documents")


@pytest.mark.parametrize("position", POSITIONS)
def test_packed_and_restarted_documents_are_each_alone(tiny: Callable[..., Recipe], position: str) -> None:
    """Intra-document masking with restarted positions gives every document the logits it has by itself."""
    recipe = tiny(
        "data.packing=intra_document", "model.restart_positions=true", f"model.position={position}", "context=64"
    )
    ids, numbers = several_documents(recipe)
    model = lab_model(recipe, prepared(recipe).tokenizer).eval()
    with torch.no_grad():
        together = model(ids[None], document_ids=numbers[None]).logits[0]
        alone = [model(ids[numbers == number][None]).logits[0] for number in numbers.unique()]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_positions_may_restart_while_documents_see_each_other(tiny: Callable[..., Recipe], position: str) -> None:
    recipe = tiny("model.restart_positions=true", f"model.position={position}", "context=64")
    ids, numbers = several_documents(recipe)
    model = lab_model(recipe, prepared(recipe).tokenizer).eval()
    naive = torch.tensor([int((numbers[:place] == number).sum()) for place, number in enumerate(numbers.tolist())])
    with torch.no_grad():
        found = model(ids[None], document_ids=numbers[None]).logits
        torch.testing.assert_close(found, model(ids[None], position_ids=naive[None]).logits)
        assert not torch.allclose(found, model(ids[None]).logits)


@pytest.mark.parametrize(("bos", "document_bos", "eos"), PACKINGS)
def test_every_packing_is_what_it_says(tiny: Callable[..., Recipe], bos: str, document_bos: bool, eos: bool) -> None:
    changes = (f"data.bos={bos}", f"data.document_bos={document_bos}", f"data.document_eos={eos}")
    data = prepared(tiny(*changes, "context=64"))
    start, end = data.tokenizer.bos_token_id, data.tokenizer.eos_token_id
    for window in (data.train[number] for number in range(12)):
        ids = window["input_ids"].tolist()
        assert (ids[0] == start) == (bos == "fixed") or document_bos
        text = ids[bos == "fixed" :]
        assert (end in text) <= eos
        assert (start in text) <= document_bos
        if eos and document_bos:
            assert all(text[place + 1] == start for place, token in enumerate(text[:-1]) if token == end)
    tokens = torch.cat([window["input_ids"] for window in data.train])
    assert ((tokens == end).sum() > 0) == eos


@pytest.mark.slow
def test_a_restarted_packing_trains(tiny: Callable[..., Recipe], runs) -> None:
    run = trained(tiny("model.restart_positions=true", "data.document_eos=false", "data.document_bos=true"), runs)
    assert run.record["results"]["validation_loss"] < 6


def test_a_hybrid_has_no_documents_apart() -> None:
    for change, reason in (
        ("data.packing=intra_document", "a Mamba layer carries its state across the borders of documents"),
        ("model.restart_positions=true", "a Mamba layer .* has no positions to restart"),
    ):
        with pytest.raises(InputError, match=reason):
            load_recipe("nano", ["model.attention_every=2", change])


@pytest.mark.slow
def test_a_mixture_is_trained_and_its_fingerprint_kept(tiny: Callable[..., Recipe], runs, tmp_path) -> None:
    for domain in ("law", "mail"):
        (tmp_path / "texts" / domain).mkdir(parents=True)
        for number in range(8):
            (tmp_path / "texts" / domain / f"{number}.txt").write_text(f"{domain} {number} " * 60)
    mixture = ("data.mixture.law=0.75", "data.mixture.mail=0.25")
    run = trained(tiny(f"data.corpus=text:{tmp_path}/texts/*/*.txt", *mixture, "steps=2"), runs)
    assert sorted(part["weight"] for part in run.record["data"]["mixture"]) == [0.25, 0.75]


@pytest.mark.slow
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


def test_short_documents_make_no_sink_of_uniform_attention(tiny: Callable[..., Recipe]) -> None:
    """Six of ten documents have nine tokens or fewer, on which uniform attention exceeds 0.3 at the first."""
    recipe = tiny("data.packing=intra_document", "context=128")
    model = lab_model(recipe, prepared(recipe).tokenizer).eval()
    for name, weight in model.named_parameters():
        if "q_proj" in name:
            weight.data.zero_()
    documents = torch.tensor([*(number for number in range(6) for _ in range(4)), *[6] * 40, *[7] * 36, *[8] * 5])[None]
    ids = torch.arange(documents.shape[1])[None] % 50
    found = measure(model, {"input_ids": ids, "document_ids": documents}, [AttentionReceived("all"), HiddenNorms()])
    with pytest.warns(UserWarning, match="uniform attention itself"):
        assert found.sink_rate(position=0) > 70
    metrics = sink_metrics(found)
    assert (metrics["sink/position_0"], metrics["sink/strongest"]) == (0, 0)
