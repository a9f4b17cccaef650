"""The masked objective of bidirectional lab models: what is hidden, what is scored, and that it is no copying."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from sinkscope.data import Windows
from sinkscope.data.tokenizer import train_bpe, with_mask
from sinkscope.errors import InputError
from sinkscope.model import LabForCausalLM
from sinkscope.training import LAB, Recipe, spread
from sinkscope.training.masking import Masked, MaskedTokens
from tests.training.helpers import assert_same_run, rows, trained

BIDIRECTIONAL = ("model.is_causal=false", "loss.masked.share=0.3")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return with_mask(train_bpe(["attention sinks drain attention"], 259))


def windows(**options: object) -> Windows:
    stream = 3 + (torch.arange(200 * 30) * 7919) % 250
    return Windows(stream.numpy().astype("uint16"), 30, **options)  # type: ignore[arg-type]


def test_a_trained_tokenizer_gets_a_mask_as_its_last_id(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = train_bpe(["attention sinks drain attention"], 259)
    assert tokenizer.mask_token_id == len(plain) == len(tokenizer) - 1
    assert tokenizer.encode("drain it") == plain.encode("drain it")
    assert with_mask(tokenizer) is tokenizer
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert special == (plain.bos_token_id, plain.eos_token_id, plain.pad_token_id)


def test_another_tokenizer_without_a_mask_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    backend = train_bpe(["some text"], 259).backend_tokenizer
    other = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    with pytest.raises(InputError, match="the tokenizer has no mask token"):
        with_mask(other)


def test_labels_are_the_text_where_it_is_hidden_and_nowhere_else(tokenizer: PreTrainedTokenizerFast) -> None:
    text = windows(bos_id=0)
    masked = Masked(text, tokenizer, MaskedTokens(), "training", 0)
    plain, seen, labels = (
        torch.stack([window[name] for window in source])
        for source, name in ((text, "input_ids"), (masked, "input_ids"), (masked, "labels"))
    )
    scored = labels != -100
    assert torch.equal(labels[scored], plain[scored])
    assert torch.equal(seen[~scored], plain[~scored])
    assert not scored[:, 0].any()  # the BOS
    assert scored.float().mean().item() == pytest.approx(0.15, abs=0.02)
    assert (seen[scored] == tokenizer.mask_token_id).float().mean().item() == pytest.approx(0.8, abs=0.05)


def test_tokens_that_do_not_count_or_were_written_are_never_hidden(tokenizer: PreTrainedTokenizerFast) -> None:
    class Given(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids, labels = torch.arange(10, 50), torch.arange(10, 50)
            labels[:20], ids[30] = -100, 7
            return {"input_ids": ids, "labels": labels, "document_ids": torch.zeros(40)}

    window = Masked(Given(), tokenizer, MaskedTokens(share=0.99), 0)[0]
    open_ones = set(range(20, 40)) - {30}
    assert set((window["labels"] != -100).nonzero().flatten().tolist()) <= open_ones
    assert (window["labels"] != -100).sum() >= 16
    assert window["input_ids"][30] == 7
    assert torch.equal(window["document_ids"], torch.zeros(40))


@pytest.mark.slow
def test_it_fills_in_from_both_sides_and_does_not_copy(tiny: Callable[..., Recipe], runs: Path) -> None:
    """The loss is the mean cross-entropy at hidden positions, which after a few steps is nowhere near a copier's."""
    run = trained(tiny(*BIDIRECTIONAL, "steps=20", "optimizer.lr=1e-2"), runs)
    recipe = Recipe(**run.record["recipe"])
    data = LAB.data(recipe)
    model: LabForCausalLM = run.model
    hidden = Masked(spread(data.validation, 8), data.tokenizer, recipe.loss.masked or MaskedTokens(), "validation", 0)
    total, count = 0.0, 0
    for window in hidden:
        with torch.no_grad():
            logits = model(window["input_ids"][None]).logits[0]
        places = (window["labels"] != -100).nonzero().flatten()
        total += float(nn.functional.cross_entropy(logits[places], window["labels"][places], reduction="sum"))
        count += len(places)
    assert rows(run)[-1]["validation_loss"] == pytest.approx(total / count, rel=1e-5)
    assert total / count > 1.0
    assert run.tokenizer.mask_token == "<mask>"
    assert model.config.vocab_size == len(run.tokenizer)


@pytest.mark.slow
def test_validation_hides_the_same_at_every_step_and_for_every_seed(tiny: Callable[..., Recipe], runs: Path) -> None:
    """Without learning the loss stands still; another seed's model is scored on the same tokens."""
    still = (*BIDIRECTIONAL, "optimizer.lr=1e-12", "steps=8")
    losses = {row["validation_loss"] for row in rows(trained(tiny(*still), runs)) if "validation_loss" in row}
    assert max(losses) - min(losses) < 1e-5
    data, seen = LAB.data(tiny(*still)), []
    for _ in range(2):
        seen.append(Masked(data.validation, data.tokenizer, MaskedTokens(), "validation", 0)[3]["labels"])
    assert torch.equal(*seen)


@pytest.mark.release
def test_a_resumed_run_hides_what_an_undisturbed_one_hides(
    tiny: Callable[..., Recipe], runs: Path, monkeypatch
) -> None:
    from tests.training.helpers import killed_at

    recipe = tiny(*BIDIRECTIONAL)
    whole = trained(recipe, runs / "whole")
    killed_at(8, recipe, runs / "killed", monkeypatch)
    assert_same_run(trained(recipe, runs / "killed", resume=True), whole)
