"""The encoder and the hybrid: what they read, what they learn from it, and that a session trains them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from sinkscope.data import TrainingOrder, Windows
from sinkscope.data.tokenizer import as_encoder, train_bpe
from sinkscope.training import Recipe, Run
from sinkscope.training.kinds import ENCODER, HYBRID, LAB, Framed, Kind, hybrid_model
from sinkscope.training.masking import Masked
from sinkscope.training.session import train_kind
from sinkscope.training.trainer import RecipeTrainer
from tests.training.helpers import Killed, assert_same_run, patched

CONTEXT = 61
SHORT = ("steps=3", "save_every=2", "eval_every=2", "model.num_hidden_layers=4")
CLS, SEP, PAD = 0, 1, 2
Make = Callable[..., Recipe]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return as_encoder(train_bpe(["attention sinks drain attention"], 259))


@pytest.fixture(scope="module")
def windows() -> Windows:
    """A thousand windows in which token i of the text is known from its place."""
    stream = 3 + (torch.arange(1000 * CONTEXT) * 7919) % 256
    return Windows(stream.numpy().astype("uint16"), CONTEXT)


@pytest.fixture(scope="module")
def framed(windows: Windows, tokenizer: PreTrainedTokenizerFast) -> Framed:
    return Framed(windows, tokenizer, seed=0)


@pytest.fixture(scope="module")
def masked(framed: Framed, tokenizer: PreTrainedTokenizerFast) -> Masked:
    return ENCODER.objective(framed, tokenizer, 0)


def test_a_frame_stands_around_two_parts_of_the_text(framed: Framed, windows: Windows) -> None:
    for item in range(50):
        ids = framed[item]["input_ids"]
        assert len(ids) == CONTEXT + 3
        places = (ids == SEP).nonzero().flatten().tolist()
        assert ids[0] == CLS
        assert (len(places), places[-1]) == (2, len(ids) - 1)
        assert 2 <= places[0] <= CONTEXT
        kept = torch.cat([ids[1 : places[0]], ids[places[0] + 1 : -1]])
        assert torch.equal(kept, windows[item]["input_ids"])


def test_the_inner_sep_is_met_at_every_place(framed: Framed) -> None:
    firsts = [int((framed[item]["input_ids"] == SEP).nonzero()[0]) for item in range(len(framed))]
    assert set(firsts) == set(range(2, CONTEXT + 1))


def test_special_tokens_are_neither_masked_nor_scored(framed: Framed, masked: Masked) -> None:
    for item in range(200):
        plain, seen, labels = framed[item]["input_ids"], masked[item]["input_ids"], masked[item]["labels"]
        special = (plain == CLS) | (plain == SEP)
        assert torch.equal(seen[special], plain[special])
        assert (labels[special] == -100).all()


def test_labels_are_the_text_where_it_was_chosen_and_nowhere_else(framed: Framed, masked: Masked) -> None:
    for item in range(200):
        plain, seen, labels = framed[item]["input_ids"], masked[item]["input_ids"], masked[item]["labels"]
        scored = labels != -100
        assert torch.equal(labels[scored], plain[scored])
        assert torch.equal(seen[~scored], plain[~scored])


@pytest.mark.slow
def test_shares_of_the_masking(framed: Framed, masked: Masked, tokenizer: PreTrainedTokenizerFast) -> None:
    """61,000 tokens, 9,150 chosen: four standard deviations are 0.6 % of all, 1.7 % and 1.3 % of the chosen."""
    mask = tokenizer.mask_token_id
    items = range(len(masked))
    plain = torch.stack([framed[item]["input_ids"] for item in items])
    seen = torch.stack([masked[item]["input_ids"] for item in items])
    scored = torch.stack([masked[item]["labels"] for item in items]) != -100
    ordinary = plain > PAD
    assert (scored.sum() / ordinary.sum()).item() == pytest.approx(0.15, abs=0.006)
    assert (seen[scored] == mask).float().mean().item() == pytest.approx(0.8, abs=0.017)
    replaced = scored & (seen != mask) & (seen != plain)
    assert (replaced.sum() / scored.sum()).item() == pytest.approx(0.1, abs=0.013)
    assert not set(seen[replaced].tolist()) & {CLS, SEP, PAD, mask}


def test_masks_depend_on_seed_and_item_alone(framed: Framed, masked: Masked, tokenizer) -> None:
    masked[3]
    again, other = (ENCODER.objective(framed, tokenizer, seed) for seed in (0, 1))
    assert torch.equal(again[5]["input_ids"], masked[5]["input_ids"])
    assert not torch.equal(other[5]["labels"], masked[5]["labels"])
    assert not torch.equal(masked[6]["labels"] == -100, masked[5]["labels"] == -100)


def test_a_second_pass_masks_the_same_text_anew(windows: Windows, tokenizer: PreTrainedTokenizerFast) -> None:
    few = Windows(windows.tokens[: 2 * CONTEXT], CONTEXT)
    order = TrainingOrder(few, batch_size=2, steps=2, seed=0)
    masked = ENCODER.objective(Framed(order, tokenizer, 0), tokenizer, 0)
    twins = [(one, two) for one in (0, 1) for two in (2, 3) if order.index(one) == order.index(two)]
    assert twins
    for one, two in twins:
        assert not torch.equal(masked[one]["input_ids"], masked[two]["input_ids"])


@pytest.mark.parametrize(("layers", "attending"), [(4, [2]), (8, [2, 6]), (12, [2, 6, 10])])
def test_the_hybrid_attends_in_every_fourth_layer(tiny: Make, tokenizer, layers: int, attending: list[int]) -> None:
    model = hybrid_model(tiny(f"model.num_hidden_layers={layers}"), tokenizer)
    kinds = ["attention" if hasattr(layer, "self_attn") else "mamba" for layer in model.model.layers]
    assert [index for index, kind in enumerate(kinds) if kind == "attention"] == attending
    assert all(hasattr(model.model.layers[index], "mamba") for index in range(layers) if index not in attending)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ENCODER, HYBRID], ids=["encoder", "hybrid"])
def test_a_training_measures_its_sink(kind: Kind, tiny: Make, tmp_path: Path) -> None:
    whole = train_tiny(kind, tiny(*SHORT), tmp_path)
    assert whole.record["status"] == "finished"
    assert kind.about.items() <= whole.record["data"].items()
    assert whole.log["loss"].notna().any()
    assert whole.log["sink/position_0"].dropna().between(0, 100).all()


@pytest.mark.release
@pytest.mark.parametrize("kind", [ENCODER, HYBRID], ids=["encoder", "hybrid"])
def test_an_interrupted_training_ends_as_an_undisturbed_one(
    kind: Kind, tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(*SHORT)
    whole = train_tiny(kind, recipe, tmp_path / "whole")
    step = RecipeTrainer.training_step

    def deadly(self: RecipeTrainer, *args: object, **kwargs: object) -> torch.Tensor:
        if self.state.global_step == 2:
            raise Killed
        return step(self, *args, **kwargs)

    with patched(monkeypatch, RecipeTrainer, "training_step", deadly), pytest.raises(Killed):
        train_tiny(kind, recipe, tmp_path / "broken")
    resumed = train_tiny(kind, recipe, tmp_path / "broken")
    assert resumed.record["notes"] == ["resumed from checkpoint-2"]
    assert_same_run(whole, resumed)
    assert type(resumed.model) is type(kind.model(recipe, resumed.tokenizer))


def train_tiny(kind: Kind, recipe: Recipe, out: Path) -> Run:
    return train_kind(kind, recipe, out, resume=True, progress=False, device="cpu")


@pytest.mark.slow
def test_the_saved_tokenizer_frames_text_as_training_did(tiny: Make, tmp_path: Path) -> None:
    run = train_tiny(ENCODER, tiny("steps=1"), tmp_path)
    ids = run.tokenizer.encode("the sink")
    assert (ids[0], ids[-1]) == (run.tokenizer.cls_token_id, run.tokenizer.sep_token_id)
    assert run.tokenizer.mask_token_id == len(run.tokenizer) - 1 == run.model.config.vocab_size - 1


@pytest.mark.slow
def test_kinds_of_equal_numbers_are_different_runs(tiny: Make, tmp_path: Path) -> None:
    recipe = tiny("steps=1", "model.num_hidden_layers=4")
    folders = {train_tiny(kind, recipe, tmp_path).path.name for kind in (LAB, ENCODER, HYBRID)}
    assert len(folders) == 3


def test_the_lab_model_keeps_its_hash() -> None:
    assert LAB.about == {}
