"""Where a sink comes from: planted causes are found, controls are matched, variances are those of a closed form."""

from __future__ import annotations

import json
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.interventions import ExtraToken, Intervention, OneKeyView, Rearrange
from sinkscope.report.trial_page import rows, trial_page
from sinkscope.trials import ORIGIN, Texts, origin_trial
from sinkscope.trials.origin import OriginArms, anatomy, finding, table
from tests.planted.factory import F3, planted_ids, planted_model
from tests.trials.planted import ids, llama


@pytest.fixture(scope="module")
def trial() -> ss.trials.Trial:
    return origin_trial(planted_model(), planted_ids(F3, samples=16, tokens=40), controls=1)


def test_a_planted_token_and_its_step_are_what_makes_the_sink(trial: ss.trials.Trial) -> None:
    """The sink is made by its token, whose massive activation one feed-forward writes."""
    about = trial.record["origin"]
    assert about["massive"]
    assert about["step"] == F3.onset == about["entries"][0][0]
    assert about["entries"][0][2] == F3.dimension
    found = {arm: finding(trial, arm) for arm in trial.named("arm")}
    assert tuple(found) == ORIGIN
    assert found["move-first"] == found["swap-first"] == found["copy-first"] == "makes one"
    assert found["mute-step"] == found["median-before"] == found["median-after"] == "takes it away"
    assert found["relocate"] == "makes one", "the entry alone makes it"
    assert found["isolate"] == found["match-output"] == found["match-values"] == "makes none"
    frame = table(trial).set_index("arm")
    assert frame.loc["move-first", "sink_at"] == about["test"] == 10
    assert frame.loc["relocate", "sink_at"] == 1
    assert frame.loc["mute-step", "rate_of_controls"] > 50 > frame.loc["mute-step", "rate_at_sink"]


@pytest.mark.slow
def test_it_is_said_and_kept(trial: ss.trials.Trial, tmp_path) -> None:
    trial.save(tmp_path / "trial.nc")
    again = ss.trials.load(tmp_path / "trial.nc")
    assert again.verdict == trial.verdict
    assert "'mute-step' takes it away" in trial.verdict
    json.dumps(trial.to_json())
    section = next(one for one in trial_page(trial).sections if one.title == "What makes it")
    assert list(section.table["test"]) == trial.named("arm")
    assert rows(trial)[1][0][-1] == "makes none"


def test_rates_are_those_of_a_measurement_under_the_change(trial: ss.trials.Trial) -> None:
    model, texts = planted_model(), planted_ids(F3, samples=16, tokens=40)[8:]
    with Rearrange("move", 0, 10).applied(model):
        measured = ss.measure(model, texts, [ss.AttentionReceived()])
    rate = measured.sink_rate(position=10)
    np.testing.assert_allclose(100 * trial.values("move-first", "rate_at_test").mean(), rate, rtol=1e-5)


def test_a_test_without_controls_beside_one_that_has_them_leaves_their_cells_empty() -> None:
    """No position lies between the sink and the next one, so nothing else can be moved there."""
    ids = planted_ids(F3, samples=10, tokens=24)
    trial = origin_trial(planted_model(), ids, ("move-first", "mute-step"), test=1, controls=1)
    heads, [without, with_controls] = rows(trial)
    under = heads.index("under controls")
    assert without[under] == "" != with_controls[under]


@pytest.mark.slow
def test_it_takes_the_passes_that_it_needs() -> None:
    model, texts, texts_read = planted_model(), planted_ids(F3, samples=14, tokens=24), []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: texts_read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    found = origin_trial(model, texts, controls=1)
    hook.remove()
    needed = 8 + found.texts * (1 + len(ORIGIN) * 2)
    assert needed <= sum(texts_read) <= 1.2 * needed


def test_uniform_attention_averages_variance_away() -> None:
    """σ² / (t + 1) for i.i.d. values: queries of zero attend uniformly, and embeddings are drawn independently."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4000, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    model.model.layers[0].self_attn.q_proj.weight.data.zero_()
    texts = Texts.of(model, torch.randint(0, 4000, (200, 12)))
    variances = anatomy(model, texts, 0, 50).variances[0]
    torch.testing.assert_close(variances, variances[0] / torch.arange(1, 13), rtol=0.08, atol=0)


def first_layer(model: LlamaForCausalLM, texts: Texts, change: Intervention | None = None) -> list[torch.Tensor]:
    """The ids that a model reads, and the outputs of the heads of its first layer, (batch, query, heads, dim)."""
    seen, attention = [], model.model.layers[0].self_attn
    with ExitStack() as stack:
        if change is not None:
            stack.enter_context(change.applied(model))
        for module in (model.model.embed_tokens, attention.o_proj):
            kept = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
            stack.callback(kept.remove)
        with torch.no_grad():
            model(**texts.inputs)
    ids, heads = seen
    return [ids, heads.unflatten(-1, (-1, attention.head_dim))]


def block_input(model: LlamaForCausalLM, texts: Texts, layer: int, change: Intervention | None = None) -> torch.Tensor:
    """What a block reads at the sink, (text, channel)."""
    seen = []
    with ExitStack() as stack, torch.no_grad():
        if change is not None:
            stack.enter_context(change.applied(model))
        kept = model.model.layers[layer].register_forward_pre_hook(lambda _, args: seen.append(args[0][:, 0]))
        stack.callback(kept.remove)
        model(**texts.inputs)
    return seen[0]


def test_controls_are_as_large_and_of_something_else() -> None:
    model, texts = planted_model(), Texts.of(planted_model(), planted_ids(F3, samples=6, tokens=24))
    arms = OriginArms(anatomy(model, texts, 0, 8), 8, 24, 0.3, 0)
    drawn = {what: arms.change(what, np.random.default_rng(0)) for what in ORIGIN}
    isolated, moved, relocated = drawn["isolate"], drawn["move-first"], drawn["relocate"]
    assert isinstance(isolated, OneKeyView)
    assert 0 < isolated.key < 8
    assert isinstance(moved, Rearrange)
    assert moved.source not in (0, 8)
    assert isinstance(relocated, ExtraToken)
    own = arms.change("relocate", None)
    assert isinstance(own, ExtraToken)
    assert [entry[:2] for entry in relocated.entries] == [entry[:2] for entry in own.entries]
    assert {dim for *_, dim in relocated.entries} & {dim for *_, dim in own.entries} == set()
    assert 8 - moved.source >= 8 - 4, "almost as many ids shift"
    depth = own.entries[0][0]
    for what in ("relocate", "median-before"):
        far, drawn_far = (
            block_input(model, texts, depth, change) - block_input(model, texts, depth)
            for change in (arms.change(what, None), drawn[what])
        )
        assert (far.norm(dim=-1) > 5).all()
        # Entries become a constant, so how far they move differs a little from text to text.
        torch.testing.assert_close(far.norm(dim=-1), drawn_far.norm(dim=-1), rtol=0.1, atol=0)
    plain = first_layer(model, texts)
    for what in ("copy-first", "swap-first", "match-output", "match-values"):
        (ids, heads), (drawn_ids, drawn_heads) = (
            first_layer(model, texts, change) for change in (arms.change(what, None), drawn[what])
        )
        assert (ids != plain[0]).sum() == (drawn_ids != plain[0]).sum(), what
        assert not torch.allclose(heads, drawn_heads), what
        if what.startswith("match"):  # head outputs at 8 move as far, in another direction
            far, drawn_far = ((moved - plain[1]).norm(dim=-1) for moved in (heads, drawn_heads))
            assert (far[:, 8] > 0.1).all()
            torch.testing.assert_close(far, drawn_far, rtol=1e-3, atol=1e-5)
    assert arms.arm("isolate").control(3, texts) is not None
    near = OriginArms(arms.anatomy, 1, 24, 0.3, 0)
    assert near.arm("isolate").control(0, texts) is None, "no token between"


def test_drawn_channels_move_as_far_to_the_same_side() -> None:
    """An entry moves from the sink's mean to the median of the others; a drawn channel as much, from its own median."""
    model, texts = planted_model(), Texts.of(planted_model(), planted_ids(F3, samples=6, tokens=24))
    made_of = anatomy(model, texts, 0, 8)
    draws = [made_of.others(np.random.default_rng(number)) for number in range(200)]
    own = {dim for *_, dim in made_of.entries}
    assert not own & {dim for drawn in draws for *_, dim in drawn}
    drawn = draws[0]
    (entries, values), (others, moved) = made_of.lasting(), made_of.lasting(drawn)
    for (depth, _, dim), value, (_, _, other), there in zip(entries, values, others, moved, strict=True):
        assert value == made_of.medians[depth][dim]
        far = float(value - made_of.means[depth][dim])
        assert abs(far) > 5
        assert there - float(made_of.medians[depth][other]) == pytest.approx(far, abs=1e-4)
    plain, change = made_of.normed(), made_of.normed(drawn)
    assert set(plain.values) == set(made_of.readings)
    depths = {int(path.split(".")[2]) for path in made_of.readings if path.startswith("model.layers.")}
    assert depths == set(range(F3.onset, model.config.num_hidden_layers))
    for path, (medians, means) in made_of.readings.items():
        for dim, value, other, there in zip(
            plain.dims, plain.values[path], change.dims, change.values[path], strict=True
        ):
            assert value == medians[dim]
            far = float(value - means[dim])
            assert abs(far) > 0.5
            assert there - float(medians[other]) == pytest.approx(far, abs=1e-4)


def test_controls_of_every_draw_leave_the_sink_its_step_and_take_a_neighbor() -> None:
    made_of = SimpleNamespace(sink=0, step=1, others=lambda drawn: ())
    arms = OriginArms(made_of, 8, 24, 0.3, 0)  # type: ignore[arg-type]
    draws = [[arms.change(what, np.random.default_rng(n)) for n in range(200)] for what in ("mute-step", "move-first")]
    assert {position for change in draws[0] for position in change.positions} == set(range(1, 24))
    assert {change.source for change in draws[1]} == {1, 2, 3, 4}


def test_rates_are_those_of_their_control_whatever_the_seed() -> None:
    found = origin_trial(planted_model(), planted_ids(F3, samples=12, tokens=24), ("mute-step",), controls=2, seed=5)
    assert len(found.named("control")) == 2
    assert (
        found.values("controls of mute-step", "rate_at_sink").min() > 0.5 > found.mean("mute-step", "rate_at_sink").high
    )


def test_texts_that_fill_the_model_leave_no_place_for_an_extra_token() -> None:
    model = llama()
    model.config.max_position_embeddings = 40
    found = origin_trial(model, ids(12, 40), ("relocate", "mute-step"), test=3, controls=0)
    assert found.named("arm") == ["mute-step"]
    assert "relocate adds a token" in found.verdict
    with pytest.raises(InputError, match="positions for 40 tokens: give texts of fewer"):
        origin_trial(model, ids(12, 40), ("relocate",), test=3)


@pytest.mark.parametrize(
    ("arm", "more", "now", "word"),
    [
        ("isolate", (0.1, 0.3), (0.26, 0.3), "makes one"),
        ("isolate", (0.1, 0.3), (0.24, 0.4), "makes a weak one"),
        ("mute-step", (-0.3, -0.1), (0.1, 0.24), "takes it away"),
        ("mute-step", (-0.3, -0.1), (0.1, 0.26), "weakens it"),
        ("mute-step", (0.1, 0.3), (0.6, 0.9), "strengthens it"),
        ("mute-step", (-0.1, 0.1), (0.4, 0.6), "leaves it"),
    ],
)
def test_halves_are_decided_by_the_nearer_end(monkeypatch, trial, arm: str, more: tuple, now: tuple, word: str) -> None:
    """The unchanged sink has half of the heads; the mean under the test is at most a quarter, which decides nothing."""

    def mean(self: ss.trials.Trial, name: str, score: str) -> SimpleNamespace:
        return SimpleNamespace(value=0.5 if name == "full" else 0.25, low=now[0], high=now[1])

    monkeypatch.setattr(ss.trials.Trial, "mean", mean)
    monkeypatch.setattr(ss.trials.Trial, "difference", lambda self, *names: SimpleNamespace(low=more[0], high=more[1]))
    assert finding(trial, arm) == word


def test_an_encoder_is_told_by_kl() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=90, initializer_range=0.2, **sizes)
    model = BertForMaskedLM(config).eval()
    found = origin_trial(model, ids(14, 20), ("isolate", "relocate", "median-after"), controls=1)
    assert "nats" not in table(found)
    assert all(found.cost(arm).value > 0 for arm in found.named("arm"))
    assert "no sink to speak of" in found.verdict


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": ("isolated",)}, "did you mean 'isolate'"),
        ({"what": ()}, "test ''"),
        ({"test": 0}, "that is the sink itself"),
        ({"test": 40}, "texts have positions 0 to 11"),
        ({"test": 5, "what": ("isolate",), "controls": 0}, "seen by too few queries"),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        origin_trial(llama(), ids(12, 12), **options)
    padded = {"input_ids": ids(12, 12), "attention_mask": torch.ones(12, 12).long()}
    padded["attention_mask"][0, -2:] = 0
    with pytest.raises(InputError, match="without padding"):
        origin_trial(llama(), padded)
