"""Arms of policies come with their controls, of the same budget."""

from __future__ import annotations

import pytest
import torch
from sinkscope.trials.policies import NEVER_DRAWN, Protection, policy_arms, random_places

from sinkscope.caches.policies.last_queries import SnapKV
from sinkscope.errors import InputError
from sinkscope.probes import measure
from sinkscope.trials import compare_caches, feeding
from tests.trials.caches import llama, texts

CONTEXT = 40


def test_every_budget_has_a_random_policy_and_every_protected_policy_a_random_place() -> None:
    protection = Protection.first(2, CONTEXT)
    arms = policy_arms(["snapkv", "keydiff"], [12, 0.5], context=CONTEXT, protection=protection, recent=4)
    assert [(arm.name, arm.control) for arm in arms] == [
        ("snapkv@12", False),
        ("snapkv@12+place", True),
        ("snapkv@50%", False),
        ("snapkv@50%+place", True),
        ("keydiff@12", False),
        ("keydiff@12+place", True),
        ("keydiff@50%", False),
        ("keydiff@50%+place", True),
        ("random@12", True),
        ("random@50%", True),
    ]


def test_without_protection_one_policy_shows_what_a_random_place_does() -> None:
    arms = policy_arms(["snapkv", "keydiff"], [12], context=CONTEXT)
    assert [arm.name for arm in arms if arm.control] == ["snapkv@12+place", "random@12"]


def test_a_random_policy_that_is_asked_for_is_no_control() -> None:
    arms = policy_arms(["random"], [12], context=CONTEXT)
    assert [(arm.name, arm.control) for arm in arms] == [("random@12", False), ("random@12+place", True)]


def places_of(arm: object, ids: torch.Tensor) -> torch.Tensor:
    """Which columns the first layer keeps behind the context, (row, head, kept)."""
    model = llama()
    with feeding(model, arm) as feed:
        feed.read(ids)
        return feed.cache.kept[0].places.sort(-1).values


@pytest.mark.parametrize("name", ["snapkv", "streaming", "h2o", "random", "keydiff"])
def test_all_arms_of_a_budget_keep_as_many_and_what_they_must(name: str) -> None:
    protection = Protection.first(2, CONTEXT, seed=1)
    arms = policy_arms([name], [12], context=CONTEXT, protection=protection, recent=4)
    for arm in arms:
        places = places_of(arm, texts(2, CONTEXT))
        assert places.shape[-1] == 12
        kept = set(protection.elsewhere.positions if arm.name.endswith("+place") else (0, 1))
        for head in places.flatten(0, 1).tolist():
            assert kept | set(range(36, 40)) <= set(head)


def test_random_places_are_none_of_the_first_and_none_that_is_a_sink() -> None:
    for seed in range(20):
        places = random_places(3, 20, seed, without=[9, 10]).positions
        assert len(set(places)) == 3
        assert min(places) >= NEVER_DRAWN
        assert not {9, 10} & set(places)
    with pytest.raises(InputError, match="no 5 places"):
        random_places(5, 12, 0)


def test_a_measured_sink_is_protected_where_it_stands() -> None:
    model, ids = llama(), texts(4, CONTEXT)
    found = measure(model, ids)
    alpha = found.data["attention_received"].mean("sample").max(("layer", "head")).values[:30]
    epsilon = float(sorted(alpha)[-3])  # two positions are above
    protection = Protection.measured(measure(model, ids, observers=[_first(30)]), epsilon, CONTEXT)
    assert protection.positions == tuple(sorted(int(i) for i in alpha.argsort()[-2:]))
    assert len(protection.elsewhere.positions) == 2
    assert not set(protection.positions) & set(protection.elsewhere.positions)


def _first(count: int) -> object:
    from sinkscope.probes import AttentionReceived

    return AttentionReceived(f"first:{count}")


def test_no_measured_sink_is_said() -> None:
    with pytest.raises(InputError, match="no measured sink"):
        Protection.measured(measure(llama(), texts(2, CONTEXT), observers=[_first(20)]), 0.99, CONTEXT)


def test_the_recent_part_fits_the_smallest_budget_and_is_a_policys_own_as_well() -> None:
    [arm, *_] = policy_arms(["snapkv"], [12, 0.9], context=CONTEXT)
    with arm.open(llama()) as cache:
        assert cache.plan.policy.recent == 3
        assert cache.plan.policy.policy == SnapKV(window=3)


@pytest.mark.parametrize(
    ("budgets", "recent", "said"),
    [
        ([4], 4, "too few to keep"),
        ([0.1], 4, "too few to keep"),
        ([0], None, "at least 1"),
        ([1.5], None, "at most 100%"),
    ],
)
def test_budgets_that_cannot_hold_what_must_stay_are_refused(budgets: list, recent: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy_arms(["snapkv"], budgets, context=CONTEXT, recent=recent)


def test_policies_are_compared_at_equal_budgets() -> None:
    arms = policy_arms(["keydiff"], [10], context=CONTEXT, recent=2)
    found = compare_caches(llama(), texts(4, CONTEXT + 6), arms, context=CONTEXT, rounds=0)
    kept = [found.kept(arm.name) for arm in arms]
    assert max(kept) - min(kept) < 0.01
    assert 10 / CONTEXT <= min(kept) < 14 / CONTEXT  # places and the like are held as well
