"""A padded row under an intervention is the same row alone, without padding: logits and every number of a trial."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import (
    NAMED,
    All,
    FirstTokenView,
    ForbidSink,
    Intervention,
    RemoveContribution,
    ReplacePosition,
    SetActivations,
    Subject,
    SuppressBands,
    SwapPositions,
    ZeroHeads,
    mean_values,
    named,
    perturbation_spread,
)
from sinkscope.trials import Trial, changed
from tests.interventions.conftest import a_model, inputs_of, logits
from tests.measurement.conftest import lab_model

REAL, PADDED = 14, 20
SIDES = ("left", "right")
EPSILON = 0.25  # at which some heads are sinks, and fewer than half
EVERY: list[Intervention] = [
    SetActivations(((1, 2, 3), (0, 0, 1), (2, None, 5))),
    RemoveContribution(2, (0,)),
    ZeroHeads(((0, 1),), positions=(5, 6)),
    ForbidSink((0, 2)),
    FirstTokenView(4),
    SwapPositions(0, 5),
    ReplacePosition(0, 9),
    ReplacePosition(3, 15),  # the embedding of a position that the row does not have
    SuppressBands((0, 19), positions=(1, 7)),
    All((SetActivations(((1, 2, 3),)), ForbidSink((0,)), ZeroHeads(((0, 0),)))),
]
ON_TABLES = (SwapPositions, ReplacePosition)


def applicable(name: str, intervention: Intervention) -> bool:
    return name == "gpt2" or not isinstance(intervention, ON_TABLES)


CASES = [(name, it) for name in ("llama", "gpt2") for it in EVERY if applicable(name, it)]
NAMES = [(name, what) for name in ("llama", "gpt2") for what in NAMED if name == "gpt2" or "position" not in what]


def padded(name: str, side: str, numbered: bool = True) -> dict[str, Tensor]:
    """Row 0 has `REAL` tokens and padding on a side, row 1 tokens in every column.

    `numbered`: with positions that count real tokens, as `generate` gives them; without, a table counts columns.
    """
    ids = inputs_of("llama")["input_ids"][:2, :PADDED].clone()
    mask = torch.ones_like(ids)
    mask[0, real_columns("right" if side == "left" else "left", rest=True)] = 0
    given = {"input_ids": ids * mask, "attention_mask": mask}
    if name == "gpt2" and numbered:
        given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return given


def real_columns(side: str, rest: bool = False) -> slice:
    """The columns of row 0's tokens where padding is on `side`; with `rest`, of its padding where tokens are there."""
    if rest:
        return slice(0, PADDED - REAL) if side == "right" else slice(REAL, PADDED)
    return slice(PADDED - REAL, PADDED) if side == "left" else slice(0, REAL)


def alone(given: dict[str, Tensor], side: str) -> dict[str, Tensor]:
    """The first row without its padding."""
    kept = {name: value[:1, real_columns(side)] for name, value in given.items()}
    kept.pop("attention_mask")
    return kept


def embedded(model: PreTrainedModel, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same input as vectors."""
    vectors = model.get_input_embeddings()(given["input_ids"]).detach()
    return {"inputs_embeds": vectors, **{name: value for name, value in given.items() if name != "input_ids"}}


def title(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Intervention) else str(value)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("name", "intervention"), CASES, ids=title)
def test_logits_of_a_padded_row_are_those_of_the_row_alone(name: str, intervention: Intervention, side: str) -> None:
    model, given = a_model(name), padded(name, side)
    for inputs in (given, embedded(model, given)):
        with intervention.applied(model):
            together = logits(model, **inputs)[0, real_columns(side)]
            single = logits(model, **alone(inputs, side))[0]
        torch.testing.assert_close(together, single, rtol=1e-4, atol=2e-5)


ON_SIDES_IN_TURN = [(*row, SIDES[number % len(SIDES)]) for number, row in enumerate(NAMES)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "what", "side"), ON_SIDES_IN_TURN)
def test_effects_on_a_padded_row_are_those_on_the_row_alone(name: str, what: str, side: str) -> None:
    model, given = a_model(name), padded(name, side)
    row = {key: value[:1] for key, value in given.items()}
    for both in ((row, alone(row, side)), (embedded(model, row), alone(embedded(model, row), side))):
        chosen = [named(what, Subject(model, inputs, 0, other=5, epsilon=EPSILON)) for inputs in both]
        assert_alike(chosen[0].intervention.describe(), chosen[1].intervention.describe())
        trials = [changed(model, inputs, chosen[1].intervention, controls=2, epsilon=EPSILON) for inputs in both]
        for one, other in zip(*(trial.record["arms"].values() for trial in trials), strict=True):
            assert_alike(dict(one), dict(other))
        for one, other in zip(*(numbers(trial) for trial in trials), strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5, nan_ok=True)


def numbers(trial: Trial) -> list[float]:
    """Every score, and where the sink is afterwards."""
    scores = [float(value) for name in ("kl", "nats", "agreement") for value in trial.data[name].values.ravel()]
    return scores + [value for place in trial.record["sink"]["afterwards"].values() for value in place.values()]


def assert_alike(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The same intervention; means are equal to rounding."""
    assert mine.pop("means", ()) == pytest.approx(theirs.pop("means", ()), rel=1e-4, abs=1e-6)
    assert mine == theirs


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_the_effect_on_vectors_leaves_padding_out(side: str) -> None:
    model, given = a_model("llama"), padded("llama", side)
    ids = changed(model, given, ZeroHeads(((0, 1),)), controls=1)
    vectors = changed(model, embedded(model, given), ZeroHeads(((0, 1),)), controls=1)
    assert vectors.values("ZeroHeads") == pytest.approx(ids.values("ZeroHeads"), rel=1e-5)
    assert vectors.record["sink"]["afterwards"] == ids.record["sink"]["afterwards"]
    assert vectors.data["nats"].isnull().all()


def added(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """What the first block of a GPT-2 is given, beyond the token's own vector: its position embedding."""
    found: list[Tensor] = []
    hook = model.transformer.h[0].register_forward_pre_hook(lambda module, args: found.append(args[0]))
    logits(model, **given)
    hook.remove()
    return found[0] - model.transformer.wte(given["input_ids"])


@pytest.mark.parametrize("numbered", [True, False])
def test_tokens_exchange_the_embeddings_that_they_would_have_had(numbered: bool) -> None:
    model, given = a_model("gpt2"), padded("gpt2", "left", numbered)
    before, start = added(model, given), PADDED - REAL
    with SwapPositions(0, 5).applied(model):
        swapped = added(model, given)
    order = torch.arange(PADDED).repeat(2, 1)
    order[0, [start, start + 5]] = order[0, [start + 5, start]]
    order[1, [0, 5]] = order[1, [5, 0]]
    wanted = torch.stack([row[columns] for row, columns in zip(before, order, strict=True)])
    torch.testing.assert_close(swapped, wanted, rtol=0, atol=1e-6)
    with ReplacePosition(0, 5).applied(model):
        replaced = added(model, given)
    order[0, start + 5], order[1, 5] = start + 5, 5
    wanted = torch.stack([row[columns] for row, columns in zip(before, order, strict=True)])
    torch.testing.assert_close(replaced, wanted, rtol=0, atol=1e-6)


def test_tokens_of_packed_documents_exchange_what_they_have() -> None:
    model, ids = a_model("gpt2"), inputs_of("gpt2")["input_ids"][:1]
    given = {"input_ids": ids, "position_ids": torch.cat([torch.arange(10), torch.arange(14)])[None]}
    before = added(model, given)
    with SwapPositions(2, 15).applied(model):
        swapped = added(model, given)
    order = torch.arange(24)
    order[[2, 15]] = order[[15, 2]]
    torch.testing.assert_close(swapped, before[:, order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("count", [0, 2])
def test_learned_tokens_before_a_padded_row_do_not_count(side: str, count: int) -> None:
    model, given = lab_model("softmax", position="learned", sink_tokens=count), padded("lab", side)
    for intervention in (SwapPositions(0, 5), ReplacePosition(1, 9)):
        before = logits(model, **given)
        with intervention.applied(model):
            together = logits(model, **given)
            single = logits(model, **alone(given, side))
        torch.testing.assert_close(together[0, real_columns(side)], single[0], rtol=1e-4, atol=2e-5)
        first = intervention.positions_named[0]
        assert not torch.allclose(together[0, real_columns(side)][first], before[0, real_columns(side)][first])


def test_positions_are_exchanged_through_a_cache_too() -> None:
    model, ids = a_model("gpt2"), inputs_of("gpt2")["input_ids"]
    with SwapPositions(2, 9).applied(model), torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :6], use_cache=True)
        rest = model(ids[:, 6:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(torch.cat([first.logits, rest], 1), whole, rtol=1e-4, atol=1e-5)


def test_a_table_that_is_not_called_or_not_told_apart_is_refused() -> None:
    model, inputs = copy.deepcopy(a_model("llama")), inputs_of("llama")
    model.model.wpe = nn.Embedding(64, 32)
    with pytest.raises(UnsupportedModelError, match=r"'model\.wpe' was not called"), SwapPositions(0, 1).applied(model):
        logits(model, **inputs)
    model = copy.deepcopy(a_model("gpt2"))
    model.transformer.wpe.weight.data[20:].zero_()
    with (
        pytest.raises(UnsupportedModelError, match=r"equals 44 of its rows.*\+20"),
        ReplacePosition(20, 40).applied(model),
    ):
        logits(model, **inputs)
    model, late = a_model("gpt2"), torch.arange(7, 31)[None]
    beyond = pytest.raises(InputError, match=r"position 70 has no embedding.*has position 10")
    with beyond, ReplacePosition(3, 63).applied(model):
        logits(model, input_ids=inputs["input_ids"], position_ids=late)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("side", SIDES)
def test_a_perturbation_spreads_over_real_tokens(name: str, side: str) -> None:
    model, given = a_model(name), padded(name, side)
    for inputs in (given, embedded(model, given)):
        together = perturbation_spread(model, inputs, position=5)
        single = perturbation_spread(model, alone(inputs, side), position=5)
        assert single.shape == (1, 3, REAL)
        assert together.shape == (2, 3, PADDED)
        torch.testing.assert_close(
            torch.from_numpy(together.values[0, :, :REAL]), torch.from_numpy(single.values[0]), rtol=1e-2, atol=1e-4
        )
        assert bool((together.values[0, :, REAL:] != together.values[0, :, REAL:]).all())


@pytest.mark.parametrize("side", SIDES)
def test_means_leave_padding_out(side: str) -> None:
    model, given = a_model("llama"), padded("llama", side)
    row = {key: value[:1] for key, value in given.items()}
    entries = ((1, 2, 3), (0, None, 5))
    assert mean_values(model, row, entries) == pytest.approx(mean_values(model, alone(row, side), entries), rel=1e-4)


def test_a_row_that_is_all_padding_is_one_clear_line() -> None:
    model, given = a_model("llama"), padded("llama", "left")
    given["attention_mask"][0] = 0
    with pytest.raises(InputError, match="row 0 of attention_mask is all padding"):
        changed(model, given, ForbidSink((0,)))


def test_predictions_that_are_not_of_the_masked_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = a_model("llama"), padded("llama", "left")
    forward = type(model).forward

    def shorter(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output = forward(self, *args, **kwargs)
        output.logits = output.logits[:, 1:]
        return output

    monkeypatch.setattr(type(model), "forward", shorter)
    with pytest.raises(UnsupportedModelError, match=r"it predicts at 19 places, .* is over 20 tokens"):
        changed(model, given, ForbidSink((0,)), controls=1)
