"""Starting from a model that was trained before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.model import load
from sinkscope.training import RECIPES, Recipe, Run
from sinkscope.training.kinds import fingerprint, prepared
from sinkscope.training.start import lab_model

from .helpers import trained, weights

ON = ("steps=1", "save_every=1", "eval_every=1", "optimizer.weight_decay=0.5")


@pytest.mark.slow
def test_a_first_step_at_rate_zero_leaves_the_start_as_it_is(
    tiny: Callable[..., Recipe], undisturbed: Run, runs: Path
) -> None:
    """What an experiment calls "before": everything is measured, nothing has changed."""
    start = f"start_from={undisturbed.path}"
    run = trained(tiny(*ON, start), runs)
    before, after = weights(undisturbed), weights(run)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "start" in run.record["data"]
    more = trained(tiny(*ON, start, "schedule.warmup=0"), runs)
    assert not all(torch.equal(before[name], weight) for name, weight in weights(more).items())


@pytest.mark.slow
def test_the_log_begins_with_the_sink_of_the_start(tiny: Callable[..., Recipe], undisturbed: Run, runs: Path) -> None:
    run = trained(tiny(*ON, f"start_from={undisturbed.path}"), runs)
    last = undisturbed.log.dropna(subset=["sink/position_0"]).iloc[-1]
    first = run.log.dropna(subset=["sink/position_0"]).iloc[0]
    assert (first["step"], first["sink/hidden_norm_ratio"]) == (0, last["sink/hidden_norm_ratio"])


def test_the_hash_knows_the_weights_and_not_where_they_lie(
    tiny: Callable[..., Recipe], undisturbed: Run, tmp_path: Path
) -> None:
    def name(path: Path) -> str:
        recipe = tiny(f"start_from={path}")
        assert fingerprint(recipe) == prepared(recipe).fingerprint
        return recipe.folder(prepared(recipe).fingerprint)

    copy = Path(shutil.copytree(undisturbed.path / "model", tmp_path / "elsewhere"))
    assert name(copy) == name(undisturbed.path)
    assert name(copy) != tiny().folder(prepared(tiny()).fingerprint)
    file = copy / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    assert name(copy) != name(undisturbed.path)


def test_a_mask_may_differ_and_a_context(tiny: Callable[..., Recipe], undisturbed: Run) -> None:
    recipe = tiny(f"start_from={undisturbed.path}", "data.packing=intra_document", "loss.window=4", "context=12")
    model = lab_model(recipe, prepared(recipe).tokenizer)
    assert torch.equal(model.lm_head.weight, undisturbed.model.lm_head.weight)
    assert model.config.spec == recipe.operation


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("model.hidden_size=32",), r"its model.hidden_size is 16, the recipe's is 32"),
        (("model.position=alibi",), r"its model.position is 'rotary', the recipe's is 'alibi'"),
        (("attention=sigmoid",), r"its attention is 'softmax', the recipe's is 'sigmoid'"),
        (("data.tokenizer=bpe:290",), r"its model.vocab_size is 300, the recipe's is 290"),
        (("data.tokenizer=bpe:290", "model.vocab_size=300"), r"its tokenizer differs .* set data.tokenizer to"),
    ],
)
def test_what_does_not_fit_is_named(
    tiny: Callable[..., Recipe], undisturbed: Run, changes: tuple[str, ...], reason: str, runs: Path
) -> None:
    with pytest.raises(InputError, match=reason):
        trained(tiny(f"start_from={undisturbed.path}", *changes), runs)
    assert not runs.exists()


def test_what_is_no_start_is_named(
    tiny: Callable[..., Recipe], undisturbed: Run, tmp_path: Path, tiny_llama: LlamaForCausalLM
) -> None:
    tiny_llama.save_pretrained(tmp_path / "llama")
    bare = Path(shutil.copytree(undisturbed.path / "model", tmp_path / "bare"))
    (bare / "model.safetensors").unlink()
    (tmp_path / "empty").mkdir()
    for start, reason in {
        "nanoo": r"unknown start_from 'nanoo': did you mean 'nano'\?; or the folder of",
        str(tmp_path / "llama"): "is a model of type 'llama', expected a lab model",
        str(bare): "holds no weights",
        str(tmp_path / "empty"): "no model in folder",
    }.items():
        with pytest.raises(InputError, match=reason):
            prepared(tiny(f"start_from={start}"))


def test_the_tokenizer_of_a_run_may_be_named_by_its_folder(tiny: Callable[..., Recipe], undisturbed: Run) -> None:
    recipe = tiny(f"start_from={undisturbed.path}", f"data.tokenizer={undisturbed.path}")
    assert prepared(recipe).tokenizer.get_vocab() == undisturbed.tokenizer.get_vocab()


def test_nano_sft_fits_the_shipped_model() -> None:
    """Its own tokenizer and sizes, a twentieth of its rate, cosine: the paper's appendix E at this scale."""
    recipe, nano = RECIPES["nano-sft"], RECIPES["nano"]
    assert (recipe.start_from, recipe.data.tokenizer, recipe.data.labels) == ("nano", "nano", "responses")
    assert (recipe.model, recipe.context) == (nano.model, nano.context)
    assert nano.optimizer.lr / recipe.optimizer.lr == pytest.approx(4e-4 / 2e-5)
    assert (recipe.schedule.kind, recipe.data.corpus) == ("cosine", "python:chat")
    shipped = load("nano")
    assert (shipped.config.hidden_size, shipped.config.num_hidden_layers) == (128, 4)
