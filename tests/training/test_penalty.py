"""Activation penalties: formulas against loops, gradients, and what a run does with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import set_seed

from sinkscope.data import TrainingOrder
from sinkscope.errors import InputError
from sinkscope.training import Recipe, load_recipe
from sinkscope.training.kinds import ENCODER, prepared
from sinkscope.training.penalty import FORMULAS, ActivationPenalty, PenalizedActivations, infinity, kurtosis, l2, tweo
from sinkscope.training.start import lab_model

from .helpers import assert_same_run, killed_at, rows, trained, weights

KURTOSIS = ("loss.activation_penalty.kind=kurtosis", "loss.activation_penalty.strength=0.01")


def test_formulas_are_those_of_a_loop() -> None:
    hidden = torch.randn(3, 5, 4) ** 3
    squares = [float(x) ** 2 for x in hidden.flatten()]
    assert float(l2(hidden)) == pytest.approx(sum(squares) / len(squares))
    largest = [max(abs(float(x)) for x in sequence.flatten()) for sequence in hidden]
    assert float(infinity(hidden)) == pytest.approx(sum(largest) / 3)
    found = []
    for sequence in hidden:
        values = [float(x) for x in sequence.flatten()]
        mean = sum(values) / len(values)
        variance = sum((x - mean) ** 2 for x in values) / len(values)
        found.append(sum((x - mean) ** 4 for x in values) / len(values) / (variance**2 + 1e-6))
    assert float(kurtosis(hidden)) == pytest.approx(sum(found) / 3)


def test_kurtosis_has_its_golden_values() -> None:
    """(n² − 3n + 3) / (n − 1) for one token of n channels of which one is not zero; 3 for a normal distribution."""
    one_hot = torch.zeros(1, 1, 96)
    one_hot[0, 0, 7] = 100.0
    assert float(kurtosis(one_hot)) == pytest.approx(94.0105, rel=1e-4)
    assert float(kurtosis(torch.randn(1, 500, 200))) == pytest.approx(3, abs=0.1)
    assert math.isfinite(float(kurtosis(torch.ones(1, 2, 3))))


@pytest.mark.parametrize("kind", FORMULAS)
def test_gradients_are_exact(kind: str) -> None:
    hidden = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    formula = {each.__name__: each.__wrapped__ for each in (l2, infinity, kurtosis, tweo)}[kind]
    assert torch.autograd.gradcheck(formula, hidden)


def test_tweo_is_small_below_three_and_steep_above() -> None:
    hidden = torch.tensor([[[0.3, -3.0], [30.0, 0.0]]], requires_grad=True)
    tweo(hidden).backward()
    assert float(tweo(hidden).detach()) == pytest.approx((1e-4 + 1 + 1e4) / 4, rel=1e-5)
    slopes = [4 * x**3 / (4 * (3 + 1e-6) ** 4) for x in (0.3, -3.0, 30.0, 0.0)]
    torch.testing.assert_close(hidden.grad.flatten(), torch.tensor(slopes))


@pytest.mark.parametrize("of", ["stream", "attention", "feedforward"])
def test_the_term_is_of_what_the_model_computes_there(tiny: Callable[..., Recipe], of: str) -> None:
    model = lab_model(tiny(), prepared(tiny()).tokenizer).train()
    penalty = ActivationPenalty(kind="l2", strength=0.5, of=of, depths=(0, 2) if of == "stream" else (1, 2))
    watch, seen = PenalizedActivations(penalty, model), []
    blocks = model.model.layers
    places = {
        "stream": [model.model.embed_tokens, blocks[1]],
        "attention": [blocks[0].self_attn, blocks[1].self_attn],
        "feedforward": [blocks[0].mlp, blocks[1].mlp],
    }
    for place in places[of]:
        place.register_forward_hook(lambda _, __, output: seen.append(output[0] if of == "attention" else output))
    model(torch.randint(3, 60, (2, 9)))
    expected = 0.5 * sum(hidden.square().mean() for hidden in seen) / 2
    found = watch.term()
    torch.testing.assert_close(found, expected)
    grown = [torch.autograd.grad(x, model.model.embed_tokens.weight, retain_graph=True)[0] for x in (found, expected)]
    torch.testing.assert_close(*grown)


def test_no_strength_is_no_penalty(tiny: Callable[..., Recipe]) -> None:
    none = tiny("loss.activation_penalty.strength=0")
    assert none == tiny()
    assert none.hash({}) == tiny().hash({}) != tiny(*KURTOSIS).hash({})


@pytest.mark.slow
def test_only_training_is_penalized_and_the_log_tells_both_parts(tiny: Callable[..., Recipe], runs: Path) -> None:
    """A first step from the same weights: the same losses, and beside them the term of the batch it was made on."""
    short = ("steps=1", "log_every=1", "eval_every=1")
    recipe = tiny(*short, *KURTOSIS)
    plain, penalized = rows(trained(tiny(*short), runs))[-1], rows(trained(recipe, runs))[-1]
    assert penalized["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert penalized["validation_loss"] == plain["validation_loss"]  # the first rate of a warm-up is 0
    assert "activation_penalty" not in plain
    term, norm = by_hand(recipe)
    assert penalized["activation_penalty"] == pytest.approx(term, rel=1e-5)
    assert penalized["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert penalized["grad_norm"] != pytest.approx(plain["grad_norm"], rel=1e-4)


def by_hand(recipe: Recipe) -> tuple[float, float]:
    """The first batch's term, 0.01 of the kurtosis of its residual stream, and the norm of the whole gradient."""
    set_seed(recipe.seed)
    data = prepared(recipe)
    model = lab_model(recipe, data.tokenizer).train()
    order = TrainingOrder(data.train, recipe.batch_size, recipe.steps, recipe.seed)
    ids = torch.stack([order[item]["input_ids"] for item in range(recipe.batch_size)])
    streams: list[torch.Tensor] = []
    for block in model.model.layers:
        block.register_forward_hook(lambda _, __, output: streams.append(output))
    loss = model(ids, labels=ids).loss
    term = 0.01 * sum(kurtosis(stream) for stream in streams) / len(streams)
    (loss + term).backward()
    return float(term.detach()), math.sqrt(sum(float(weight.grad.square().sum()) for weight in model.parameters()))


@pytest.mark.slow
def test_micro_batches_share_the_term(tiny: Callable[..., Recipe], runs: Path) -> None:
    whole, parts = (
        trained(tiny("steps=3", *KURTOSIS, *more), runs / str(len(more))) for more in ((), ("micro_batch=2",))
    )
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], weight, atol=2e-4, rtol=1e-3)
    assert rows(parts)[-1]["activation_penalty"] == pytest.approx(rows(whole)[-1]["activation_penalty"], rel=1e-3)


@pytest.mark.release
def test_an_interrupted_run_goes_on_as_if_undisturbed(
    tiny: Callable[..., Recipe], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(*KURTOSIS)
    killed_at(8, recipe, runs, monkeypatch)
    assert_same_run(trained(recipe, runs, resume=True), trained(recipe, runs / "calm"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("kind=l3",), "activation_penalty.kind' 'l3'"),
        (("strength=-1",), "activation_penalty.strength' = -1"),
        (("strength=1", "depths=[5]"), "5 is outside the stream's depths, 0 to 4"),
        (("strength=1", "of=attention", "depths=[0]"), "0 is outside the attention's depths, 1 to 4"),
        (("strength=1", "depth=[0]"), "did you mean 'loss.activation_penalty.depths'"),
        (("kind=l2",), "'loss.activation_penalty.strength' is missing"),
    ],
)
def test_penalties_without_meaning(fields: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason.replace("[", r"\[")):
        load_recipe("nano", [f"loss.activation_penalty.{field}" for field in fields])


def test_only_lab_models_are_watched(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny()
    with pytest.raises(InputError, match="BertForMaskedLM is not a lab model"):
        PenalizedActivations(ActivationPenalty(strength=1), ENCODER.model(recipe, ENCODER.data(recipe).tokenizer))
