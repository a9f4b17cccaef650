"""Arms of joined chunks: equal budgets, what stays exact, and a planted sink in each chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinkscope as ss
from sinkscope.caches import join_chunks
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.trials import Arm, Texts, ThroughCache, chunk_arms, chunk_sinks, chunk_trial, feeding, run
from sinkscope.trials.chunks import _Encoder
from tests.families.registry import FAMILIES
from tests.planted.factory import null_model, planted_ids, planted_model
from tests.trials.caches import llama, texts

LENGTHS, TOTAL = (20, 18, 22), 60
CONTEXT = TOTAL + 1


def chunks_of(arm: Arm, ids: Tensor, start: int = 0) -> tuple[Tensor, Any]:
    """The keys of the last layer as the arm leaves them, and its cache."""
    with feeding(llama(), arm, ids, start) as feed:
        return feed.cache.layers[-1].keys.clone(), feed.cache


def arm_named(name: str, **options: Any) -> Arm:
    return next(arm for arm in chunk_arms(LENGTHS, (1, 4), **options) if arm.name == name)


@pytest.mark.parametrize("name", ["first 4", "received 4", "deviating 4"])
def test_a_repair_and_its_control_recompute_as_many_of_the_later_chunks(name: str) -> None:
    ids, arm = texts(3, CONTEXT), arm_named(name)
    joined = join_chunks(llama(), ids[:, :TOTAL], LENGTHS).layers[-1][0]
    assert arm.control is not None
    control = arm.control(0, Texts.of_ids(ids))
    assert control is not None
    for one in (arm, control):
        changed = ((chunks_of(one, ids)[0] - joined).abs().amax((1, 3)) > 0).float()
        assert one.facts["tokens_per_text"] == 8
        assert changed[:, : LENGTHS[0]].sum() == 0
        assert changed.sum(1).tolist() == [8, 8, 8]
    if name != "deviating 4":  # the same number in each chunk
        changed = (chunks_of(arm, ids)[0] - joined).abs().amax((1, 3)) > 0
        assert changed[:, 20:38].sum(1).tolist() == changed[:, 38:].sum(1).tolist() == [4, 4, 4]


def test_controls_are_drawn_anew_per_text_and_do_not_depend_on_the_batch() -> None:
    ids = texts(1, CONTEXT).expand(3, -1).contiguous()
    control = arm_named("first 4").control
    assert control is not None
    arm = control(0, Texts.of_ids(ids))
    assert arm is not None
    together = chunks_of(arm, ids)[0]
    assert not torch.equal(together[0], together[1])
    assert torch.allclose(chunks_of(arm, ids[1:2], start=1)[0][0], together[1], atol=1e-5)


def test_equal_controls_run_once() -> None:
    trial = chunk_trial(llama(), texts(3, CONTEXT + 5), LENGTHS, (4,))
    equal = {arm: str(trial.data["equal_to"].sel(arm=arm).values) for arm in trial.named("control")}
    assert [name for name, same in equal.items() if not same] == [
        "random for first 4",
        "random for strongest dropped",
        "random for sinks dropped",
    ]
    assert trial.baseline == "joined"
    assert trial.record["kind"] == "chunks"


def test_all_tokens_recomputed_give_everything_back() -> None:
    trial = chunk_trial(llama(), texts(3, 12 + 8), (4, 4, 4), (4,), controls=0)
    assert trial.mean("joined").value > 0.1
    for repair in ("first 4", "received 4", "deviating 4"):
        assert trial.mean(repair).value < 1e-7


@pytest.mark.parametrize(
    ("name", "dropped"), [("strongest dropped", ([20, 38], [20, 38])), ("sinks dropped", ([20, 38], [20, 38, 39]))]
)
def test_sinks_of_later_chunks_are_dropped_and_the_control_drops_as_many_others(
    name: str, dropped: tuple[list[int], ...]
) -> None:
    model, ids = planted_model(), planted_ids(samples=2, tokens=CONTEXT)
    ids[:, [20, 38]] = ids[:, :1]  # each chunk begins with the token that is a sink
    ids[1, 39] = ids[1, 0]  # one has two
    arm = arm_named(name)
    assert arm.control is not None
    whole = join_chunks(model, ids[:, :TOTAL], LENGTHS).layers[0][0][:, 0]
    for row, places in enumerate(dropped):
        lost = []
        for one in (arm, arm.control(0, Texts.of_ids(ids[row : row + 1], row))):
            assert one is not None
            with feeding(model, one, ids[row : row + 1], row) as feed:
                keys = feed.cache.layers[0].keys[:, 0]
            lost.append((~(whole[row, :, None] == keys[:, None]).all(-1).any(-1)[0]).nonzero()[:, 0])
        assert lost[0].tolist() == places
        assert not {0, *places} & set(lost[1].tolist())
        assert [int(((lost[1] >= start) & (lost[1] < stop)).sum()) for start, stop in ((20, 38), (38, TOTAL))] == [
            1,
            len(places) - 1,
        ]


def test_controls_of_dropped_sinks_spare_them_and_differ_between_chunks_of_one_length() -> None:
    model, ids = planted_model(), planted_ids(samples=1, tokens=CONTEXT)
    ids[0, [20, 40]] = int(ids[0, 0])
    arm = next(arm for arm in chunk_arms((20, 20, 20), (1,)) if arm.name == "sinks dropped")
    assert arm.control is not None
    whole = join_chunks(model, ids[:, :TOTAL], (20, 20, 20)).layers[0][0][0, 0]
    draws = set()
    for draw in range(60):
        control = arm.control(draw, Texts.of_ids(ids))
        assert control is not None
        with feeding(model, control, ids, 0) as feed:
            kept = feed.cache.layers[0].keys[0, 0]
        draws.add(tuple((~(whole[:, None] == kept[None]).all(-1).any(-1)).nonzero()[:, 0].tolist()))
    assert not {20, 40} & {place for places in draws for place in places}
    assert any(second != first + 20 for first, second in draws)


def test_the_strongest_token_is_one_that_enough_queries_see() -> None:
    """Where every token attends to itself, the last of a chunk receives all that it could, from itself alone."""
    model = llama()
    for layer in model.model.layers:
        attention = layer.self_attn
        wide = attention.k_proj.weight.detach().unflatten(0, (-1, attention.head_dim))
        wide = wide.repeat_interleave(attention.num_key_value_groups, 0).flatten(0, 1)
        attention.q_proj.weight.data = 1e3 * wide
    mask = _Encoder(LENGTHS).strongest(model, texts(2, TOTAL), 1)
    found = mask.nonzero()[:, 1].view(2, 2)
    assert (found >= torch.tensor([20, 38])).all()
    assert (found <= torch.tensor([38, TOTAL]) - 17).all()


def test_a_chunk_with_fewer_tokens_that_enough_queries_see_gives_its_first_ones() -> None:
    """Only two of the second chunk's 18 tokens are seen by 17 queries."""
    mask = _Encoder(LENGTHS).strongest(llama(), texts(2, TOTAL), 4)
    assert mask[:, 20:38].nonzero()[:, 1].tolist() == [0, 1, 2, 3] * 2


def test_a_chunk_behind_the_first_token_is_read_after_that_token() -> None:
    ids = texts(2, CONTEXT)
    values = chunks_of(arm_named("behind first"), ids)[1].layers[-1].values
    for start, length in ((20, 18), (38, 22)):
        with torch.no_grad():
            alone = llama()(torch.cat([ids[:, :1], ids[:, start : start + length]], 1), use_cache=True).past_key_values
        torch.testing.assert_close(values[:, :, start : start + length], alone.layers[-1].values[:, :, 1:])


def test_sinks_of_chunks_are_counted_with_what_they_take() -> None:
    ids = planted_ids(samples=2, tokens=CONTEXT + 20)
    ids[:, [20, 38]] = ids[:, :1]
    data = chunk_sinks(planted_model(), ids, LENGTHS)
    assert data["sinks"].values.tolist() == [[1, 1, 1]] * 2
    joined, once = (data["sink_mass"].sel(cache=name) for name in ("joined", "at once"))
    assert float(joined.isel(chunk=slice(1, None)).min()) > 0.05
    assert (data["sink_mass"] <= data["chunk_mass"] + 1e-9).all()
    assert (data["chunk_mass"].sum("chunk") <= 1 + 1e-6).all()
    assert set(data["cache"].values) == {"joined", "first 1", "at once"}
    assert float(once.sum("chunk").min()) > 0.3
    plain = chunk_sinks(null_model(), ids, LENGTHS, recompute=0)
    assert float(plain["sinks"].sum()) == 0
    assert list(plain["cache"].values) == ["joined", "at once"]


def test_the_mass_that_a_chunk_takes_is_that_of_the_weights() -> None:
    model, ids = llama(attn_implementation="eager"), texts(2, TOTAL + 4)
    data = chunk_sinks(model, ids, LENGTHS)
    with torch.no_grad():
        maps = model(ids, output_attentions=True, use_cache=False).attentions
    weights = torch.stack(maps)[:, :, :, TOTAL:].double().mean((0, 2, 3))[:, :TOTAL]
    expected = np.stack([part.sum(1).numpy() for part in weights.split(LENGTHS, 1)], 1)
    assert np.abs(data["chunk_mass"].sel(cache="at once").values - expected).max() < 1e-6


def test_a_trial_continues_what_was_begun(tmp_path: Any) -> None:
    ids = texts(4, CONTEXT + 5)
    options: dict[str, Any] = {"controls": 1, "out": tmp_path}
    first = chunk_trial(llama(), ids, LENGTHS, (1,), **options)
    lines = (tmp_path / "scores.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "scores.jsonl").write_text("".join(lines[: len(lines) // 2]))
    again = chunk_trial(llama(), ids, LENGTHS, (1,), **options)
    assert np.allclose(first.data["kl"].values, again.data["kl"].values, atol=1e-9)


def test_arms_of_chunks_in_a_run_of_ones_own() -> None:
    ids = texts(2, CONTEXT + 5)
    trial = run(
        llama(),
        ids,
        chunk_arms(LENGTHS, (1,), repairs=("first",)),
        reading=ThroughCache(CONTEXT, 1),
        controls=1,
        batch_size=1,
    )
    assert trial.named("arm") == ["first 1", "strongest dropped", "sinks dropped", "behind first"]


@pytest.mark.parametrize(
    ("lengths", "options", "why"),
    [
        ((60,), {}, "at least two chunks"),
        (LENGTHS, {"recompute": (19,)}, "1 to 18"),
        (LENGTHS, {"recompute": (0,)}, "1 to 18"),
        (LENGTHS, {"repairs": ("last",)}, "last"),
        (LENGTHS, {"context": 60}, "more than the 60"),
        ((20, 50), {}, "context = 71"),
    ],
)
def test_what_does_not_fit_is_refused(lengths: tuple[int, ...], options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        chunk_trial(llama(), texts(2, CONTEXT + 5), lengths, **options)


def test_steps_are_timed_after_what_the_cache_holds() -> None:
    arms = chunk_arms(LENGTHS, (1,), repairs=("first",))
    trial = run(llama(), texts(2, CONTEXT + 5), arms, reading=ThroughCache(CONTEXT), controls=0, rounds=1)
    assert (trial.data["step_seconds"] > 0).all()


def test_a_lab_model_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnsupportedModelError, match="to_llama"):
        chunk_trial(ss.load("nano"), texts(2, 30), (8, 8), (1,))


def test_a_model_whose_chunks_cannot_be_joined_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnsupportedModelError, match="absolute positions"):
        chunk_trial(FAMILIES["gpt2"].build("eager"), texts(2, 30), (8, 8), (1,))
