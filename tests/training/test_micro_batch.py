"""`micro_batch` bounds memory and decides no number: the losses are those of the whole batch, but for rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.model import LabForCausalLM
from sinkscope.model.reparam import Sigma, reparametrized
from sinkscope.training import LAB, Recipe, Run
from tests.training.helpers import rows, trained, weights

BATCH = 4
BIDIRECTIONAL = ("model.is_causal=false", "loss.masked.share=0.3")
FAST = (
    ("model.weight_reparam=sigma",),
    BIDIRECTIONAL,
    ("loss.z_loss=1e-2", "loss.activation_penalty.strength=1e-2", "loss.activation_penalty.kind=infinity"),
)
TOGETHER = (  # options that have nothing to do with each other; those that change how losses are summed come first
    ("data.packing=intra_document", "data.first_tokens=unscored", "optimizer.name=orthoadam"),
    (
        *("optimizer.name=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.nesterov=true"),
        *("loss.prefix=3", "loss.leaky_validation=true", "model.position=alibi", "model.norm=layernorm"),
    ),
    (
        *("loss.window=4", "data.packing=intra_document", "data.document_bos=true"),
        *("loss.activation_penalty.strength=1e-3", "loss.activation_penalty.of=attention", "validation_windows=7"),
    ),
    (
        *("loss.activation_penalty.strength=1e-3", "loss.activation_penalty.kind=l2", "model.position=learned"),
        "data.interventions=[{kind: random_tokens, start: 1, stop: 3}, {kind: fixed_token, position: 5, token: 0}]",
    ),
    (*BIDIRECTIONAL, "loss.window=4", "data.packing=intra_document", "loss.masked.mask=0.5", "loss.masked.random=0.5"),
    (
        *("attention=[{mask: {kind: window, size: 4}}, sigmoid]", "optimizer.name=adam", "schedule.kind=cosine"),
        *("optimizer.decay_norms=false", "optimizer.decay_embeddings=false", "model.norm_placement=post"),
        *("model.head_combination=add", "model.tie_word_embeddings=true", "data.train_share=0.3", "seed=3"),
    ),
    (
        *("optimizer.name=rmsprop", "optimizer.lr=1e-3", "attention=[kv_bias, forgetting_gate]"),
        *("model.restart_positions=true", "data.document_eos=false", "data.bos=none"),
    ),
    (
        *("optimizer.name=muon", "model.weight_reparam=sigma", "optimizer.clip=null"),
        *("attention=[gated_value, kernel_mlp]", "model.norm_placement=sandwich", "model.residual_gain=0.5"),
    ),
    (
        *("attention=stable_mask", "model.position=relative_t5", "model.norm_placement=outlier_protected"),
        *("model.ffn=gelu", "model.kv_layers=[1, 1]", "model.kv_iterations=1"),
    ),
    (*BIDIRECTIONAL, "model.weight_reparam=sigma", "model.sink_tokens=2", "data.bos=none"),
    ("model.attention_every=2", "model.weight_reparam=sigma", "model.mamba_d_state=4", "model.num_key_value_heads=1"),
)


def both(recipe: Callable[..., Recipe], runs: Path, *changes: str) -> tuple[Run, Run]:
    """The run of the whole batch, and that of one sequence at a time; they have one hash."""
    short = ("steps=4", f"batch_size={BATCH}", "eval_every=4", "log_every=1", "save_every=10")
    whole, single = recipe(*short, *changes), recipe(*short, *changes, "micro_batch=1")
    assert whole.hash({}) == single.hash({})
    return trained(whole, runs / "whole"), trained(single, runs / "single")


def assert_same_losses(whole: Run, single: Run) -> None:
    first, second = rows(whole), rows(single)
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() & {"loss", "validation_loss", "activation_penalty", "z_loss"}:
            assert one[name] == pytest.approx(other[name], rel=2e-4, abs=1e-5), (one["step"], name)
        if "loss" in one:
            assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("changes", FAST, ids=str)
def test_micro_batch_changes_nothing(tiny: Callable[..., Recipe], runs: Path, changes: tuple[str, ...]) -> None:
    assert_same_losses(*both(tiny, runs, *changes))


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:sink rates say little on texts so short")  # windows of four tokens
@pytest.mark.parametrize("changes", TOGETHER, ids=str)
def test_micro_batch_changes_nothing_under_any_option(tiny: Callable[..., Recipe], runs: Path, changes) -> None:
    assert_same_losses(*both(tiny, runs, *changes))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A corpus of conversations whose windows have many scored tokens, a few, or none: long questions, one-word answers
    beside long ones."""
    path = tmp_path_factory.mktemp("chats") / "all.jsonl"
    lines = []
    for number in range(40):
        asked, answered = ("what is a sink " * (20 if number % 3 else 1), "a token " * (1 if number % 2 else 30))
        messages = [{"role": "user", "content": f"{asked}{number}"}, {"role": "assistant", "content": answered}]
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines))
    return (f"data.corpus=chat:{path}", "data.labels=responses")


def scored(windows: list[dict[str, torch.Tensor]]) -> list[int]:
    return [int((window["labels"][1:] != -100).sum()) for window in windows]


@pytest.mark.slow
def test_the_validation_loss_is_the_mean_over_scored_tokens(tiny, runs: Path, spoken: tuple[str, ...]) -> None:
    """For every micro_batch, also where some windows score nothing: −Σ log P / number of tokens, by hand."""
    whole, single = both(tiny, runs, *spoken, "validation_windows=10")
    windows = LAB.data(Recipe(**whole.record["recipe"])).validation
    chosen = [windows[index * len(windows) // 10] for index in range(10)]
    counts = scored(chosen)
    assert 0 in counts
    assert len(set(counts)) > 3  # batches weigh differently
    model: LabForCausalLM = whole.model
    total = 0.0
    for window in chosen:
        with torch.no_grad():
            logp = model(window["input_ids"][None]).logits[0].double().log_softmax(-1)
        labels = window["labels"]
        total -= sum(float(logp[t - 1, labels[t]]) for t in range(1, len(labels)) if labels[t] != -100)
    assert whole.record["results"]["validation_loss"] == pytest.approx(total / sum(counts), rel=1e-5)
    assert_same_losses(whole, single)


@pytest.mark.slow
def test_a_batch_without_a_scored_token_is_no_divergence(tiny, runs: Path, spoken: tuple[str, ...]) -> None:
    """Its step has no loss, and none is logged for it; what other steps log is their own mean."""
    changes = (*spoken, "batch_size=1", "steps=12", "eval_every=12", "save_every=12", "log_every=1")
    run = trained(tiny(*changes), runs)
    order = [scored([window])[0] for window in _trained_on(Recipe(**run.record["recipe"]))]
    assert 0 in order
    logged = {row["step"]: row["loss"] for row in rows(run) if "loss" in row}
    assert {step for step, loss in logged.items() if loss is None} == {
        step for step, count in enumerate(order, 1) if count == 0
    }
    assert run.record["status"] == "finished"
    assert all(value.isfinite().all() for value in weights(run).values())
    sparse = trained(tiny(*changes, "log_every=12"), runs / "sparse")
    mean = sum(loss for loss in logged.values() if loss is not None) / sum(count > 0 for count in order)
    assert rows(sparse)[-1]["loss"] == pytest.approx(mean, rel=1e-5)


def _trained_on(recipe: Recipe) -> list[dict[str, torch.Tensor]]:
    from sinkscope.data import TrainingOrder

    return list(TrainingOrder(LAB.data(recipe).train, recipe.batch_size, recipe.steps, recipe.seed))


def test_validation_windows_without_a_scored_token_are_refused(tiny, runs: Path, tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": f"{number} " + "why " * 400}, {"role": "assistant", "content": "no"}]}
        for number in range(6)
    ]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recipe = tiny(f"data.corpus=chat:{tmp_path}/long.jsonl", "data.labels=responses", "validation_windows=1")
    with pytest.raises(InputError, match="none of the 1 validation windows has a token that the loss scores"):
        trained(recipe, runs)


@pytest.mark.slow
def test_the_number_of_validation_windows_is_what_the_recipe_says(tiny, runs: Path) -> None:
    """7 windows are 7 for every batch size, and not the largest multiple of it."""
    losses = set()
    for number, changes in enumerate(((), ("micro_batch=1",), ("micro_batch=2",))):
        run = trained(tiny("steps=1", "validation_windows=7", *changes), runs / str(number))
        losses.add(round(run.record["results"]["validation_loss"], 5))
    assert len(losses) == 1


@pytest.mark.slow
def test_spectral_norms_are_estimated_once_a_step(tiny, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of power iteration for every update, however many passes it takes; evaluation takes none."""
    taken: list[int] = []
    step = Sigma.iterate
    monkeypatch.setattr(Sigma, "iterate", lambda self, weight: taken.append(1) or step(self, weight))
    whole, single = both(tiny, runs, "model.weight_reparam=sigma", "model.num_hidden_layers=1")
    matrices = len(list(reparametrized(whole.model)))
    assert matrices == 7
    assert len(taken) == 2 * 4 * matrices  # two runs of four steps
    for one, other in zip(reparametrized(whole.model), reparametrized(single.model), strict=True):
        torch.testing.assert_close(one[0].u, other[0].u, atol=1e-4, rtol=1e-3)
