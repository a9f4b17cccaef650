"""Every policy keeps what loops over all keys that there ever were say it should, in the prompt and at each step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.caches import POLICIES, EvictingCache, Policy, Protect, evicting
from sinkscope.caches.policies import (
    H2O,
    VATP,
    AdaKV,
    ExpectedAttention,
    FastGen,
    FastV,
    ImageEdges,
    LagKV,
    LookM,
    PyramidKV,
    RandomKeys,
    RandomLike,
    Scissorhands,
    SnapKV,
    Streaming,
)
from sinkscope.sinks import First
from tests.caches import naive_scores, reference
from tests.families.registry import FAMILIES

PROMPT, TOTAL, BUDGET, PADS = 22, 30, 12, [0, 5]
IMAGE = (20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36)
FREQUENCIES = [10000.0 ** (-i / 4) for i in range(4)]  # of 8 channels
IDS = torch.randint(3, 90, (2, TOTAL), generator=torch.Generator().manual_seed(3))

CASES: dict[str, tuple[Policy, reference.Score]] = {
    "streaming": (Streaming(3), naive_scores.streaming(3)),
    "random": (RandomKeys(5), naive_scores.shuffled(5)),
    "key-norm": (POLICIES["key-norm"](), naive_scores.key_norm),
    "keydiff": (POLICIES["keydiff"](), naive_scores.keydiff),
    "lagkv": (LagKV(2, 4), naive_scores.lagkv(2, 4)),
    "snapkv": (SnapKV(4, 3), naive_scores.snapkv(4, 3)),
    "tova": (POLICIES["tova"](), naive_scores.tova),
    "scissorhands": (Scissorhands(9, 3), naive_scores.scissorhands(9, 3)),
    "fastv": (FastV(IMAGE, 0), naive_scores.fastv(set(IMAGE), IDS)),
    "h2o": (H2O(), naive_scores.h2o(BUDGET // 2)),
    "observed": (POLICIES["observed"](), naive_scores.observed),
    "vatp": (VATP(2, 0.25), naive_scores.vatp(2, BUDGET // 4)),
    "expected": (ExpectedAttention(2, 5), naive_scores.expected(2, 5, FREQUENCIES)),
    "fastgen": (FastGen((), IMAGE, 1, 0.2, 0.2, 0.7), naive_scores.fastgen(set(IMAGE), 0.2, 0.2, 0.7, IDS)),
    "look-m": (LookM(IMAGE, 2, 3), naive_scores.look_m(set(IMAGE), 2, 3, IDS)),
}
MORE: dict[str, tuple[Policy, reference.Score]] = {
    "averaged": (LookM(IMAGE, 2, 3, "averaged"), naive_scores.look_m(set(IMAGE), 2, 3, IDS)),
    "weighted": (LookM(IMAGE, 2, 3, "weighted"), naive_scores.look_m(set(IMAGE), 2, 3, IDS)),
    "fastgen, small sets": (FastGen((), IMAGE, 1, 0.2, 0.2, 0.3), naive_scores.fastgen(set(IMAGE), 0.2, 0.2, 0.3, IDS)),
    "image edges": (
        ImageEdges((int(IDS[0, 10]),), (int(IDS[1, 19]),), 1, 2),
        naive_scores.image_edges(int(IDS[0, 10]), int(IDS[1, 19]), 1, 2, IDS),
    ),
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("eager")


def kept_sets(cache: EvictingCache) -> list[dict[reference.Head, set[int]]]:
    """Which columns each head of each layer keeps."""
    return [
        {
            (row, head): {place for place in places if place >= PADS[row]}
            for row, heads in enumerate(layer.places.tolist())
            for head, places in enumerate(heads)
        }
        for layer in cache.kept
    ]


def run(
    model: PreTrainedModel, ids: Tensor, policy: Policy, when: str
) -> tuple[Tensor, list[list[dict[reference.Head, set[int]]]]]:
    logits, sets = [], []
    mask = (torch.arange(TOTAL) >= torch.tensor(PADS)[:, None]).long()
    with evicting(model, policy, BUDGET, when) as cache, torch.no_grad():  # type: ignore[arg-type]
        for start, stop in [(0, PROMPT), *((t, t + 1) for t in range(PROMPT, TOTAL))]:
            out = model(ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache)
            logits.append(out.logits[:, -1])
            sets.append(kept_sets(cache))
    return torch.stack(logits, 1), sets


def test_every_policy_has_a_reference() -> None:
    elsewhere = {"qhitter"}  # test_q_hitter.py
    assert CASES.keys() | SPREAD.keys() | elsewhere == POLICIES.own.keys()


SPREAD: dict[str, tuple[Policy, reference.Spread]] = {
    "ada-kv": (AdaKV(SnapKV(4, 3), 0.25), naive_scores.adaptive(BUDGET, 0.25, 4)),
    "pyramidkv": (PyramidKV(SnapKV(4, 3), 4.0), naive_scores.pyramid(BUDGET, 4.0, 4, 2)),
}


@pytest.mark.parametrize("name", SPREAD)
def test_a_budget_is_spread_as_by_the_paper(model: PreTrainedModel, name: str) -> None:
    """The window stands outside of what is distributed."""
    policy, spread = SPREAD[name]
    score = naive_scores.snapkv(4, 3)
    wanted, wanted_sets = reference.run(model, IDS, PADS, PROMPT, score, spread, False)
    logits, sets = run(model, IDS, policy, "prefill")
    assert sets == wanted_sets
    assert len({len(head) for layer in sets[0] for head in layer.values()}) > 1
    torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["ada-kv", "pyramidkv"])
def test_the_papers_settings_run_at_96_keys(name: str) -> None:
    model = FAMILIES["llama"].build("sdpa")
    ids = torch.randint(3, 90, (1, 128), generator=torch.Generator().manual_seed(3))
    with evicting(model, name, 96) as cache, torch.no_grad():
        model(ids, past_key_values=cache)
    counts = [(layer.places >= 0).sum(-1) for layer in cache.kept]
    assert all(bool((layer.places >= 96).sum(-1).eq(32).all()) for layer in cache.kept)
    assert sum(int(count.sum()) for count in counts) == 96 * 2 * 2


def test_a_control_drops_where_its_policy_does_and_nowhere_else(model: PreTrainedModel) -> None:
    for policy in (FastV(IMAGE, 1), Protect(Streaming(2), None, 3), H2O(), FastGen((), IMAGE, 1, 0.2, 0.2, 0.3)):
        budget = 1.0 if isinstance(policy, FastGen) else BUDGET
        sets = []
        for one in (policy, RandomLike(policy, 1), RandomLike(policy, 2)):
            with evicting(model, one, budget) as cache, torch.no_grad():
                model(IDS, past_key_values=cache)
            sets.append([{p for p in head if p >= 0} for layer in cache.kept for head in layer.places[0].tolist()])
        assert [len(head) for head in sets[0]] == [len(head) for head in sets[1]] == [len(head) for head in sets[2]]
        assert sets[1] != sets[2]
        assert sets[0] != sets[1]
        if isinstance(policy, FastV):  # the first layer keeps all, and text goes last
            image = {k for k in range(TOTAL) if int(IDS[0, k]) in IMAGE}
            assert all(len(head) == TOTAL for head in sets[1][:2])
            assert all(len(image) >= TOTAL - BUDGET for _ in sets[1]) == all(
                set(range(TOTAL)) - image <= head for head in sets[1][2:]
            )
        if isinstance(policy, Protect):
            assert all({0, 1, TOTAL - 3, TOTAL - 2, TOTAL - 1} <= head for head in sets[1])


def test_a_policy_says_what_is_used() -> None:
    fitted = Protect(SnapKV(), First(1), 6).fitted(6)
    assert fitted.describe(24) == {
        "policy": "Protect",
        "protect": "first:1",
        "recent": 6,
        "newest": 6,
        "changed_from": {"recent": 32},
        "of": {"policy": "SnapKV", "window": 6, "kernel": 5, "newest": 6, "changed_from": {"window": 32}},
    }
    assert H2O().describe(24) == {"policy": "H2O", "recent": 0.5, "newest": 12}
    assert H2O().describe() == {"policy": "H2O", "recent": 0.5}
    assert RandomLike(FastV(layers=1), 3).describe()["of"]["layers"] == 1


FAST = {*((name, "always") for name in CASES if name != "expected"), ("key-norm", "prefill"), ("expected", "prefill")}
FAST |= {("image edges", "prefill"), ("image edges", "always"), ("fastgen, small sets", "prefill")}
RUNS = [(name, when) for name in CASES | MORE for when in ("prefill", "always")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "when"), [run if run in FAST else pytest.param(*run, marks=pytest.mark.slow) for run in RUNS]
)
def test_kept_sets_and_logits_are_those_of_the_loops(model: PreTrainedModel, name: str, when: str) -> None:
    policy, score = (CASES | MORE)[name]
    always = when == "always"
    wanted, wanted_sets = reference.run(model, IDS, PADS, PROMPT, score, BUDGET, always, policy.merges)
    for host in ("eager", "sdpa"):
        model.set_attn_implementation(host)
        logits, sets = run(model, IDS, policy, when)
        assert sets == wanted_sets
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-4)
    model.set_attn_implementation("eager")


def test_borders_of_an_image_reach_eight_tokens_inside_and_four_outside(model: PreTrainedModel) -> None:
    ids = torch.arange(3, 33)[None]  # each token once
    for policy, border in ((ImageEdges((15,), (99,), 1, 2), (8, 20)), (ImageEdges((99,), (15,), 1, 2), (4, 16))):
        with evicting(model, policy, 15) as cache, torch.no_grad():
            model(ids, past_key_values=cache)
        wanted = [0, *range(*border), 28, 29]
        assert all(sorted(places) == wanted for layer in cache.kept for places in layer.places[0].tolist())
