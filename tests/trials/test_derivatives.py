"""Gains from derivatives: against maps that are written out and mixed, and on nano against a pass for each head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.interventions import ACT, HeadChange, Reweigh, Temperature
from sinkscope.trials import CALIBRATIONS, Option, choose_heads, derivatives
from sinkscope.trials import choosing as room
from tests.families.registry import FAMILIES
from tests.interventions.reweigh import written

STEP = 2e-2  # norms are in fp32, so smaller ones are noise
LAYERS, HEADS = 2, 4


def double(name: str = "llama", host: str = "sdpa") -> tuple[torch.nn.Module, Tensor]:
    model = FAMILIES[name].build(host).double()
    return model, torch.randint(3, 90, (4, 12), generator=torch.Generator().manual_seed(0))


def logs_mixed(model: torch.nn.Module, ids: Tensor, rule: written.Rule, at: tuple[int, int], c: float) -> Tensor:
    """log p with maps (1 − c) A + c A' in one head."""
    layers = iter(range(LAYERS))

    def mixed(a: Tensor, slot: Tensor) -> Tensor:
        if next(layers) != at[0]:
            return a
        new = a.clone()
        new[:, at[1]] = (1 - c) * a[:, at[1]] + c * rule(a, slot)[:, at[1]]
        return new

    with written.maps_changed(model, mixed), torch.no_grad():
        return model(ids).logits[:, :-1].log_softmax(-1)


RULES: dict[str, tuple[HeadChange, written.Rule]] = {
    "reweigh": (
        Reweigh(3.0, (1,)),
        lambda a, slot: written.reweighed(a, slot, torch.arange(a.shape[-1])[None] == 1, 3.0),
    ),
    "act": (ACT(0.3, 0.15), lambda a, slot: written.act(a, 0.15, 0.3, False, torch.zeros(4))),
    "temperature": (Temperature(0.7), lambda a, slot: (r := a ** (1 / 0.7)) / r.sum(-1, keepdim=True)),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("objective", ["loss", "entropy"])
def test_slopes_are_those_of_maps_that_are_mixed(name: str, objective: str) -> None:
    model, ids = double()
    change, rule = RULES[name]
    found, bend = (each[:, 0] for each in derivatives._terms(model, {"input_ids": ids}, [change], objective, 0, 0))
    assert not bend.any()
    assert found.shape == (4, LAYERS, HEADS)
    for layer in range(LAYERS):
        for head in range(HEADS):
            values = []
            for c in (-STEP, STEP):
                logs = logs_mixed(model, ids, rule, (layer, head), c)
                per_token = -logs.gather(-1, ids[:, 1:, None])[..., 0]
                per_token = -(logs.exp() * logs).sum(-1) if objective == "entropy" else per_token
                values.append(per_token.mean(-1))
            expected = -(values[1] - values[0]) / (2 * STEP)
            torch.testing.assert_close(found[:, layer, head], expected, rtol=5e-3, atol=2e-6)


@pytest.mark.slow
def test_curvature_is_the_fisher_information() -> None:
    """Σ_y p(y) (∂ log p(y) / ∂c)², averaged over predictions, by finite differences for every next token."""
    model, ids = double()
    change, rule = RULES["reweigh"]
    found = 2 * derivatives._terms(model, {"input_ids": ids}, [change], "loss", 600, 0)[1][:, 0].mean(0)
    for layer, head in ((0, 1), (1, 3)):
        before, plain, after = (logs_mixed(model, ids, rule, (layer, head), c) for c in (-STEP, 0.0, STEP))
        information = (plain.exp() * ((after - before) / (2 * STEP)) ** 2).sum(-1)
        assert found[layer, head] == pytest.approx(float(information.mean()), rel=0.15)


def test_estimates_depend_on_no_batch_and_padding_counts_nothing() -> None:
    model, ids = double()
    options = {"x3": Reweigh(3.0, (1,))}
    mask = torch.ones_like(ids)
    mask[2, :5] = 0
    given = {"input_ids": ids, "attention_mask": mask}

    def estimates(inputs: dict[str, Tensor], size: int) -> dict[tuple[int, int], float]:
        journal = room.Journal.open(None, "")
        heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
        found = derivatives.estimated_gains(model, inputs, options, heads, "loss", size, journal, lambda n: None)
        return {head: one.gain for head, one in found["x3"].items()}

    one, four = estimates(given, 1), estimates(given, 4)
    assert one == pytest.approx(four, rel=1e-6)
    other = ids.clone()
    other[2, :5] = 7
    assert estimates({**given, "input_ids": other}, 4) == pytest.approx(four, rel=1e-6)
    assert all(weight.requires_grad for weight in model.parameters())


def test_what_has_no_derivative_and_few_heads_take_a_pass_each() -> None:
    model, ids = double()
    from sinkscope.interventions import All

    whole = [Option(f"x{g}", lambda heads, g=g: All((Reweigh(g, (0,), heads),))) for g in (0.5, 2.0)]
    found = choose_heads(model, ids, whole)
    assert not found.estimated
    assert all(len(own) == LAYERS * HEADS for own in found.gains.values())
    plain = CALIBRATIONS["zero-tuning"].options((0.5, 2.0), 0)
    assert not choose_heads(model, ids, plain, heads=((0, 0), (1, 1))).estimated
    ranked = choose_heads(model, ids, plain)
    assert set(ranked.estimated) == {"gamma=0.5", "gamma=2"}
    for name, own in ranked.gains.items():
        for head, gain in own.items():
            assert gain == pytest.approx(found.gains[name.replace("gamma=", "x").replace("x2", "x2.0")][head])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["zero-tuning", "act-guarded"])
def test_on_nano_the_choice_is_that_of_a_pass_for_each_head(method: str) -> None:
    from sinkscope.data import build_inputs
    from sinkscope.model import load, load_tokenizer

    made = build_inputs("natural", tokenizer=load_tokenizer("nano"), vocab_size=2048, tokens=64, samples=8, seed=0)
    model, options = load("nano"), CALIBRATIONS[method].options(CALIBRATIONS[method].defaults, 0)
    fast, slow = (choose_heads(model, made.input_ids, options, exhaustive=each, batch_size=8) for each in (False, True))
    assert (fast.option, fast.heads) == (slow.option, slow.heads)
    assert fast.after == pytest.approx(slow.after)
    if method == "act-guarded":  # few heads have such sinks at all: most gains are 0
        return
    for name, own in fast.estimated.items():
        gains = slow.gains[name]
        pairs = np.array([[own[head], gains[head]] for head in gains])
        assert spearmanr(pairs).statistic > 0.95
        large = np.abs(pairs[:, 1]) > 0.1 * np.abs(pairs[:, 1]).max()
        assert (np.sign(pairs[large, 0]) == np.sign(pairs[large, 1])).all()


class Killed(BaseException):
    """As of a signal."""


def test_a_killed_search_goes_on_from_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = double()
    options = CALIBRATIONS["zero-tuning"].options((0.5, 2.0), 0)
    whole = choose_heads(model, ids, options, batch_size=2)
    made: list[str] = []

    def die(done: int, total: int, said: str) -> None:
        made.append(said)
        if len(made) == 5:
            raise Killed

    with pytest.raises(Killed):
        choose_heads(model, ids, options, batch_size=2, out=tmp_path, progress=die)
    path = tmp_path / "heads.jsonl"
    lines = path.read_text().splitlines()
    assert len(lines) == 4  # what choose_heads, the model as it is, two batches of derivatives; a pass is cut short
    path.write_text("\n".join(lines) + '\n{"pass": ["gam')
    counted: list[object] = []
    plain = room.means
    monkeypatch.setattr(room, "means", lambda *given: counted.append(given) or plain(*given))
    monkeypatch.setattr(derivatives, "_terms", None)
    resumed = choose_heads(model, ids, options, batch_size=2, out=tmp_path)
    assert (resumed.option, resumed.heads, resumed.after) == (whole.option, whole.heads, whole.after)
    assert resumed.estimated == whole.estimated
    again = len(counted)
    assert again == len(path.read_text().splitlines()) - 4
    assert [json.loads(line) for line in path.read_text().splitlines()][:4] == list(map(json.loads, lines))
    with pytest.raises(InputError, match="another search"):
        choose_heads(model, ids.flip(0), options, batch_size=2, out=tmp_path)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)  # trained on, under the same name
    with pytest.raises(InputError, match="another search"):
        choose_heads(model, ids, options, batch_size=2, out=tmp_path)
