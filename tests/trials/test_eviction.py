"""Arms of policies: what stays in every arm, equal bytes, and what sinks are for, on planted sinks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinkscope as ss
from sinkscope.caches import AdaptiveHeads, EvictingCache, StreamingCache
from sinkscope.caches.policies import SnapKV
from sinkscope.errors import InputError
from sinkscope.sinks import First, NothingChosenError, Online, Positions, TokenIds
from sinkscope.trials import Arm, Needles, Texts, ThroughCache, eviction_trial, feeding, policy_arms, recalled, run
from tests.families.registry import FAMILIES
from tests.planted.factory import Plant, null_model, planted_ids, planted_model
from tests.trials.caches import llama, texts

CONTEXT = 40
KEPT = 12
LATE = Plant(sinks=(5,))


def arms_of(name: str, **options: Any) -> list[Arm]:
    options = {"context": CONTEXT, "recent": 4, **options}
    return policy_arms(llama(), texts(2, CONTEXT), [name], [KEPT], **options)


def places_of(arm: Arm, ids: Tensor, start: int = 0) -> Tensor:
    """Which positions the first layer keeps after the context, (row, head, kept)."""
    with feeding(llama(), arm, ids, start) as feed:
        feed.read(ids)
        assert isinstance(feed.cache, EvictingCache)
        return feed.cache.kept[0].places.sort(-1).values


def control_of(arm: Arm, draw: int = 0) -> Arm:
    assert arm.control is not None
    control = arm.control(draw, Texts.of_ids(texts(2, CONTEXT)))
    assert control is not None
    return control


@pytest.mark.parametrize("name", ["snapkv", "streaming", "h2o", "keydiff", "tova"])
def test_an_arm_and_its_control_keep_as_many_and_what_is_protected(name: str) -> None:
    [arm] = arms_of(name, protect=Positions(1, 9))
    expected = {1, 9, *range(36, 40)}
    for one in (arm, control_of(arm)):
        places = places_of(one, texts(2, CONTEXT))
        assert places.shape[-1] == one.facts["keys"]
        for head in places.flatten(0, 1).tolist():
            assert expected <= set(head)


@pytest.mark.parametrize(
    ("choice", "stays"),
    [
        (First(2), {0, 1}),
        (First(1) + Positions(9), {0, 9}),
        (TokenIds(7), {3}),
        (TokenIds(7) + First(1), {0, 3}),
        ("last:6", set(range(34, 40))),
        (Online(0.999), set()),
    ],
)
def test_every_kind_of_choice_is_kept(choice: Any, stays: set[int]) -> None:
    ids = texts(2, CONTEXT).masked_fill(texts(2, CONTEXT) == 7, 8)
    ids[:, 3] = 7
    [arm] = arms_of("random", protect=choice)
    for head in places_of(arm, ids).flatten(0, 1).tolist():
        assert stays <= set(head)


def test_the_random_control_is_another_one_in_each_text_and_draw_and_does_not_depend_on_the_batch() -> None:
    [arm] = arms_of("keydiff", protect=First(1))
    same = texts(1, CONTEXT).expand(3, -1)
    together = places_of(control_of(arm), same)
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together, places_of(control_of(arm, draw=1), same))
    for number in range(3):
        alone = places_of(control_of(arm), same[:1], start=number)
        assert torch.equal(alone[0], together[number])


def test_controls_of_equal_arms_run_once() -> None:
    ids = texts(3, CONTEXT + 8)
    arms = policy_arms(llama(), ids, ["keydiff", "key-norm"], [KEPT], context=CONTEXT, recent=4)
    trial = run(llama(), ids, arms, reading=ThroughCache(CONTEXT, None), controls=2)
    equal = dict(zip(trial.arms, trial.data["equal_to"].values.tolist(), strict=True))
    assert equal["random 1 for key-norm@12"] == "random 1 for keydiff@12"
    assert equal["random 2 for key-norm@12"] == "random 2 for keydiff@12"


BOUNDED = ["streaming", "snapkv", "h2o", "scissorhands", "expected", "keydiff", "tova", "vatp"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "when"), [*((name, "always") for name in BOUNDED), ("snapkv", "prefill"), ("expected", "prefill")]
)
def test_arms_hold_at_most_the_bytes_of_their_control_and_less_than_two_keys_fewer(name: str, when: Any) -> None:
    policy = ss.caches.policy_of(name) if name != "vatp" else ss.caches.POLICIES["vatp"](sinks=2)
    model, ids = planted_model(), planted_ids(samples=2, tokens=72)
    [arm] = policy_arms(model, ids, [policy], [40], context=60, recent=4, when=when)
    trial = run(model, ids, [arm], reading=ThroughCache(60), controls=1)
    size, limit = trial.data["bytes"].values[1:]
    key = 4 * 2 * (2 * 16 * 4 + 8) + 4 * 2 * 8  # layers, heads: a key, its value, its place; notes of two numbers
    assert limit - 2 * key < size <= limit


def test_what_does_not_fit_in_the_bytes_is_refused_with_its_notes() -> None:
    ids = planted_ids(samples=2, tokens=60)
    with pytest.raises(InputError, match=r"expected@25%: .*its notes alone hold"):
        policy_arms(planted_model(), ids, ["expected"], [0.25], context=48, recent=2, when="always")


def test_layers_kept_whole_are_reported_and_kept_by_the_control_too() -> None:
    model, ids = llama(6), texts(3, CONTEXT + 8)
    trial = eviction_trial(model, ids, ["fastv"], [0.6], context=CONTEXT, protect="first:1")
    size, limit = trial.data["bytes"].values[1:]
    assert size == limit
    assert trial.table().set_index("arm").loc["fastv@60%", "keys"] < 24
    assert "fastv and its control keep the first 2 layers whole, 33 % of all bytes" in trial.verdict
    gemma = FAMILIES["gemma3"].build("sdpa")
    trial = eviction_trial(gemma, texts(3, 30), ["keydiff"], [0.5], protect="none")
    assert "Keys are dropped in" in trial.verdict


def test_options_changed_to_fit_the_budget_are_reported() -> None:
    ids = texts(3, CONTEXT + 8)
    trial = eviction_trial(llama(), ids, ["snapkv", "h2o"], [16], context=CONTEXT, protect="first:1")
    assert trial.record["arms"]["snapkv@16"]["policy"]["window"] == 4
    assert "snapkv has window = 4 to fit the budget, by default 32." in trial.verdict
    kept = trial.record["arms"]["h2o@16"]["keys"]
    assert f"h2o keeps the newest {kept // 2} of its {kept} keys, the others the newest 4." in trial.verdict
    assert trial.record["arms"]["random for snapkv@16"]["keys"] == 16
    trial = eviction_trial(llama(), ids, ["keydiff"], [60], context=CONTEXT, protect="none")
    assert "A budget of 60 keys drops nothing of a context of 40 tokens." in trial.verdict
    assert trial.mean("keydiff@60").value == pytest.approx(0, abs=1e-6)


def test_a_planted_sink_is_measured_protected_in_all_arms_and_missed_where_it_is_taken_away() -> None:
    """The sink stands at 5, beyond the first four tokens: streaming drops it, and so does random, unless protected."""
    model, ids = planted_model(LATE), planted_ids(LATE, samples=14, tokens=96)
    policies = ["streaming", "keydiff"]
    trial = eviction_trial(model, ids, policies, [16], context=64, without_sinks=True, controls=2)
    assert trial.record["protect"]["positions"] == [5]
    assert trial.record["calibrated_on"]["texts"] == 8
    assert trial.texts == 6
    bare = eviction_trial(model, ids[8:], policies, [16], context=64, protect="none", controls=2)
    for name in ("random 1 for keydiff@16", "streaming@16"):
        assert trial.mean(name).high < bare.mean(name).low
    for name in ("streaming@16", "keydiff@16"):
        lost = trial.difference(f"{name} without sinks", name)
        assert lost.low > 0
        assert f"'{name}' with its sinks taken away and random tokens kept in their place costs" in trial.verdict


def test_the_first_tokens_that_streaming_keeps_by_itself_are_taken_away_too() -> None:
    """A control that only protected further random tokens changed nothing: the first four stayed."""
    model, ids = planted_model(), planted_ids(samples=6, tokens=96)
    arms = policy_arms(model, ids, ["streaming"], [16], context=64, without_sinks=True, recent=4)
    with feeding(model, arms[1], ids[:, :64]) as feed:
        feed.read(ids[:, :64])
        places = feed.cache.kept[0].places
    assert places.shape[-1] == 16
    assert int(places.min()) >= 8
    instead = [set(row[0].tolist()) - set(range(52, 64)) for row in places]
    assert all(len(row) == 4 for row in instead)
    assert len({tuple(sorted(row)) for row in instead}) == 6  # drawn anew for each text
    trial = run(model, ids, arms, reading=ThroughCache(64, None))
    assert trial.difference("streaming@16 without sinks", "streaming@16").low > 0


def test_without_sinks_to_take_away_there_is_no_such_arm() -> None:
    arms = policy_arms(llama(), texts(2, CONTEXT), ["keydiff"], [KEPT], context=CONTEXT, without_sinks=True)
    assert [arm.name for arm in arms] == ["keydiff@12"]


def test_where_there_is_no_sink_the_default_protects_nothing_and_says_so() -> None:
    ids = planted_ids(Plant(sinks=(), massive=False, attended=False), samples=12, tokens=64)
    trial = eviction_trial(null_model(), ids, ["keydiff"], [0.5])
    assert trial.record["protect"]["words"] == "none"
    assert "Nothing is protected: no sink" in trial.verdict
    with pytest.raises(NothingChosenError, match="no sink"):
        eviction_trial(null_model(), ids, ["keydiff"], [0.5], protect="measured")


def test_all_at_once_after_the_context_is_as_one_by_one() -> None:
    ids = texts(3, CONTEXT + 10)
    arms = policy_arms(llama(), ids, ["snapkv", "h2o", "ada-kv"], [16], context=CONTEXT, protect=First(1), recent=4)
    whole = run(llama(), ids, arms, reading=ThroughCache(CONTEXT, None), controls=1)
    steps = run(llama(), ids, arms, reading=ThroughCache(CONTEXT, 1), controls=1)
    np.testing.assert_allclose(whole.data["kl"].values, steps.data["kl"].values, atol=1e-5)


def test_arms_by_name_of_budgets_that_are_spread_and_of_a_stream() -> None:
    ids = texts(3, CONTEXT + 8)
    names = ["ada-kv", "pyramidkv", "streaming-cache"]
    trial = eviction_trial(llama(4), ids, names, [32], context=CONTEXT, protect="first:2", recent=4)
    facts = trial.record["arms"]
    assert facts["ada-kv@32"]["policy"]["of"]["window"] == 4
    assert "ada-kv has window = 4 to fit the budget, by default 32." in trial.verdict
    assert facts["streaming-cache@32"]["policy"].items() >= {"policy": "StreamingCache", "sinks": 4}.items()
    [arm] = policy_arms(llama(), ids, ["ada-kv"], [20], context=CONTEXT, recent=4)
    for one in (arm, control_of(arm)):
        with one.open(llama(), Texts.of_ids(ids[:1])) as cache:
            assert isinstance(cache.plan.budget, AdaptiveHeads)
    [arm] = policy_arms(llama(), ids, ["streaming-cache"], [20], context=CONTEXT, protect=First(6), recent=4)
    with arm.open(llama(), Texts.of_ids(ids[:1])) as cache:
        assert isinstance(cache, StreamingCache)
        assert cache.sinks == 6
    with pytest.raises(InputError, match=r"pyramidkv@20: .* leave a head"):
        policy_arms(llama(), ids, ["pyramidkv"], [20], context=CONTEXT, recent=4)
    with pytest.raises(InputError, match="cannot protect 'online'"):
        policy_arms(llama(), ids, ["streaming-cache"], [20], context=CONTEXT, protect="online")


def test_recall_through_arms_that_differ_between_texts() -> None:
    model = ss.load("nano-recall")
    ids = Needles(112).draw(4, seed=0).context
    asked = Needles(96).draw(6, seed=1)
    trial = eviction_trial(
        model, ids, ["keydiff", "streaming"], [24], context=96, protect="ids:0", needles=asked, batch_size=4
    )
    assert trial.data["recall"].dims == ("arm", "row", "question")
    assert trial.mean("full", "recall").value > 0.9
    assert trial.mean("keydiff@24", "recall").value > trial.mean("random for keydiff@24", "recall").value
    assert "Recall: full" in trial.verdict


def test_the_recent_part_fits_the_smallest_budget_and_is_a_policys_own_as_well() -> None:
    [arm, *_] = policy_arms(llama(), texts(1, CONTEXT), ["snapkv"], [12, 0.9], context=CONTEXT)
    with arm.open(llama(), Texts.of_ids(texts(1, CONTEXT))) as cache:
        assert isinstance(cache, EvictingCache)
        assert cache.plan.policy.recent == 3
        assert cache.plan.policy.policy == SnapKV(window=3)


@pytest.mark.parametrize(
    ("budgets", "recent", "said"),
    [
        ([4], 4, "too few to keep"),
        ([0.1], 4, "too few to keep"),
        ([0], None, "at least 1"),
        ([1.5], None, "at most 100%"),
        ([], None, "at least one policy"),
    ],
)
def test_budgets_that_cannot_hold_what_must_stay_are_refused(budgets: list, recent: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy_arms(llama(), texts(1, CONTEXT), ["snapkv"], budgets, context=CONTEXT, recent=recent)


def test_unknown_policies_and_sinks_without_calibration_texts_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'snapkv'"):
        arms_of("snapvk")
    with pytest.raises(InputError, match="find_tokens"):
        arms_of("snapkv", protect="measured")


def test_the_verdict_begins_with_what_beats_random_most() -> None:
    ids = torch.randint(5, 2000, (8, 64), generator=torch.Generator().manual_seed(1))
    policies = ["streaming", "keydiff", "h2o"]
    trial = eviction_trial(ss.load("nano"), ids, policies, [0.25], protect="first:1", context=48, controls=2)
    ends = {arm: trial.difference(arm).high for arm in trial.named("arm")}
    said = [part.split("'")[1] for part in trial.verdict.split(". ") if "at the same bytes" in part]
    assert said == sorted(ends, key=lambda arm: ends[arm])


def test_bytes_that_are_not_equal_are_said() -> None:
    """Ada-KV's heads keep unlike numbers of keys, and rows take the room of the longest."""
    ids = torch.randint(5, 2000, (8, 64), generator=torch.Generator().manual_seed(1))
    trial = eviction_trial(ss.load("nano"), ids, ["ada-kv", "h2o"], [0.6], protect="first:1", context=48, controls=1)
    held = {arm: float(trial.data["bytes"].sel(arm=arm)) for arm in trial.arms}
    fewer = 100 * (1 - held["random for ada-kv@60%"] / held["ada-kv@60%"])
    assert fewer > 10
    assert f"random, which holds {fewer:.0f} % fewer bytes," in trial.verdict
    plain = held["random for h2o@60%"]
    excess = re.search(r"'ada-kv@60%' holds (\d+) % more bytes than its budget", trial.verdict)
    assert excess
    assert int(excess[1]) == pytest.approx(100 * (held["ada-kv@60%"] / plain - 1), abs=2)
    assert "'h2o@60%' holds" not in trial.verdict


def test_caches_as_engines_run_them_are_arms() -> None:
    """Streams hold the budget's bytes and keep what is protected; caches that only round have one arm."""
    names = ["llama.cpp", "mlx", "executorch", "llama.cpp-q8_0", "vllm-fp8"]
    model, ids = llama(head_dim=64), texts(3, CONTEXT + 8)
    trial = eviction_trial(model, ids, names, [20, 30], context=CONTEXT, protect=First(3), recent=4)
    arms = trial.named("arm")
    assert sorted(arms) == sorted(
        [*(f"{name}@{keys}" for name in names[:3] for keys in (20, 30)), "llama.cpp-q8_0", "vllm-fp8"]
    )
    facts = trial.record["arms"]
    assert [facts[f"{name}@20"]["policy"]["keep"] for name in names[:3]] == [3, 4, 4]
    held = trial.data["bytes"].to_series()
    for name in names[:3]:
        assert held[f"{name}@20"] <= 1.02 * held[f"random for {name}@20"]
    assert held["vllm-fp8"] < held["llama.cpp-q8_0"] < 0.4 * held["full"]
    assert trial.cost("vllm-fp8").value > trial.cost("llama.cpp-q8_0").value > 0
    assert not trial.controls("vllm-fp8")
    assert "of one in 16 bits, shares of rounded caches are 2 times as large." in trial.verdict
    assert (
        "in 16 bits"
        not in eviction_trial(model, ids, ["h2o"], [20], context=CONTEXT, protect=First(3), recent=4).verdict
    )


@pytest.mark.parametrize("name", ["executorch", "streaming-cache"])
def test_what_a_stream_is_compared_with_drops_with_every_token_too(name: str) -> None:
    """Dropping once, it would grow with the text, and a stream would lose to a control that holds more."""
    model, ids = llama(), texts(3, CONTEXT + 12)
    (arm,) = policy_arms(model, ids, [name], [20], context=CONTEXT, recent=4, protect="first:2")
    assert arm.control is not None
    alone = Texts.of_ids(ids)
    for one in (arm, arm.control(0, alone)):
        with torch.no_grad(), one.open(model, alone) as cache:
            read = model(ids[:, :1], past_key_values=cache)
            for token in range(1, ids.shape[1]):
                read = model(ids[:, token : token + 1], past_key_values=cache)
            assert read.logits.isfinite().all()
            assert cache.layers[0].places.shape[-1] <= 21


def test_the_controls_of_a_stream_and_of_a_policy_are_not_one() -> None:
    stream, policy = policy_arms(llama(), texts(2, 60), ["executorch", "h2o"], [20], context=CONTEXT, recent=4)
    assert stream.control is not None
    assert policy.control is not None
    alone = Texts.of_ids(texts(2, 60))
    assert stream.control(0, alone).same != policy.control(0, alone).same


def test_a_context_is_read_once_for_all_policies_and_changes_no_score() -> None:
    model, ids = llama(), texts(6, 60)
    arms = policy_arms(model, ids, ["streaming", "h2o", "snapkv"], [KEPT], context=CONTEXT, recent=4, protect="first:2")
    own = [replace(arm, name=f"{arm.name}, own", first_pass="own", control=None, same=None) for arm in arms]
    passes: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, inputs: passes.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        run(model, ids, arms, reading=ThroughCache(CONTEXT, 7), controls=1, batch_size=4)
        assert passes.count(CONTEXT) == 2  # one for each batch
    finally:
        hook.remove()
    found = run(model, ids, [*arms, *own], reading=ThroughCache(CONTEXT, 7), controls=0, batch_size=4)
    for arm, other in zip(arms, own, strict=True):
        assert found.values(arm.name).mean() > 1e-6
        np.testing.assert_allclose(found.values(arm.name), found.values(other.name), rtol=1e-3, atol=1e-7)
        assert float(found.data["bytes"].sel(arm=arm.name)) == float(found.data["bytes"].sel(arm=other.name))


def test_needles_are_read_once_for_all_policies_and_the_answers_are_the_same() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(30, seed=0)
    model = llama(vocab_size=192)
    arms = policy_arms(model, asked.context, ["streaming", "h2o", "tova"], [KEPT], context=60, recent=4)
    passes: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, inputs: passes.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        shared = dict(recalled(model, asked, arms))
        assert (passes.count(60), passes.count(61)) == (1, 1)
    finally:
        hook.remove()
    own = dict(recalled(model, asked, [replace(arm, first_pass="own") for arm in arms]))
    for name, found in shared.items():
        assert found.seen is not None
        assert 0 < found.seen.double().mean() < 1
        assert torch.equal(found.seen, own[name].seen)
        assert torch.equal(found.unseen, own[name].unseen)


def test_an_arm_that_changes_more_than_its_cache_reads_its_context_itself() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(30, seed=0)
    model = llama(vocab_size=192)
    arms = policy_arms(model, asked.context, ["streaming", "h2o"], [KEPT], context=60, recent=4)
    inner = arms[0].open

    @contextmanager
    def louder(model: Any, texts: Texts) -> Iterator[Any]:
        hook = model.model.layers[0].mlp.register_forward_hook(lambda *hooked: 5 * hooked[-1])
        try:
            with inner(model, texts) as cache:
                yield cache
        finally:
            hook.remove()

    own = Arm("louder", louder)
    alone, beside = dict(recalled(model, asked, [own]))["louder"], dict(recalled(model, asked, [*arms, own]))["louder"]
    assert torch.equal(alone.seen, beside.seen)  # type: ignore[arg-type]
    assert not torch.equal(beside.seen, dict(recalled(model, asked, arms))[arms[0].name].seen)  # type: ignore[arg-type]
