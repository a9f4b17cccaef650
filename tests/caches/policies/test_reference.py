"""Every policy keeps what loops over all keys that there ever were say it should, in the prompt and at each step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.caches import POLICIES, EvictingCache, Policy, evicting
from sinkscope.caches.policies import (
    H2O,
    VATP,
    ExpectedAttention,
    FastGen,
    FastV,
    ImageEdges,
    LagKV,
    LookM,
    RandomKeys,
    Scissorhands,
    SnapKV,
    Streaming,
)
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
    "expected": (ExpectedAttention(2, 9), naive_scores.expected(2, 9, FREQUENCIES)),
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
    assert CASES.keys() == POLICIES.own.keys()


FAST = {*((name, "always") for name in CASES if name != "expected"), ("key-norm", "prefill"), ("expected", "prefill")}
FAST |= {("image edges", "prefill"), ("image edges", "always"), ("fastgen, small sets", "prefill")}
RUNS = [(name, when) for name in CASES | MORE for when in ("prefill", "always")]


@pytest.mark.slow_except("streaming-always")
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
