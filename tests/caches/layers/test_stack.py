"""Stacked layers: decoding a token updates all of them at once as it would update each alone."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.caches import POLICIES, EvictingCache, EvictionCall, Policy, Protect, evicting
from sinkscope.caches.layers.stack import Stack
from sinkscope.caches.notes import Note
from sinkscope.caches.policies import H2O, VATP, ExpectedAttention, FastV, KeyDiff, KeyNorm, LagKV, SnapKV, Streaming
from sinkscope.errors import InputError
from sinkscope.hooks import Editor, editing
from sinkscope.measurement import observe
from sinkscope.sinks import First, Online, TokenIds
from tests.caches import naive_scores, reference
from tests.families.registry import FAMILIES

PROMPT, TOTAL, BUDGET = 22, 34, 12
IDS = torch.randint(3, 90, (2, TOTAL), generator=torch.Generator().manual_seed(3))
IMAGE = tuple(range(20, 37))
FREQUENCIES = [10000.0 ** (-i / 4) for i in range(4)]  # of 8 channels
LOOPS: dict[str, tuple[Policy, reference.Score]] = {
    "streaming": (Streaming(3), naive_scores.streaming(3)),
    "key-norm": (KeyNorm(), naive_scores.key_norm),
    "tova": (POLICIES["tova"](), naive_scores.tova),
    "fastv": (FastV(IMAGE, 0), naive_scores.fastv(set(IMAGE), IDS)),
    "h2o": (H2O(), naive_scores.h2o(BUDGET // 2)),
    "observed": (POLICIES["observed"](), naive_scores.observed),
    "vatp": (VATP(2, 0.25), naive_scores.vatp(2, BUDGET // 4)),
    "keydiff": (KeyDiff(), naive_scores.keydiff),
    "lagkv": (LagKV(2, 4), naive_scores.lagkv(2, 4)),
    "snapkv": (SnapKV(4, 3), naive_scores.snapkv(4, 3)),
    "expected": (ExpectedAttention(2, 3), naive_scores.expected(2, 3, FREQUENCIES)),
}
MORE: dict[str, Policy] = {
    "skipping": KeyNorm(skipped_layers=1),
    "skipping, fastv": FastV(IMAGE, 1),
    "tokens": Protect(H2O(), TokenIds(*IMAGE[:2]), 2),
    "online": Protect(KeyNorm(), Online(0.3), 2),
    "first": Protect(POLICIES["tova"](), First(2), 2),
    "lagkv, its first part protected": Protect(LagKV(0, 3), First(4), 2),
    "snapkv, tokens": Protect(SnapKV(3, 3), TokenIds(*IMAGE[:2]), 2),
}


@dataclass(frozen=True)
class Alone(Policy):
    """The same policy, one layer at a time, scoring all keys."""

    policy: Policy

    @property
    def needs(self) -> tuple[Note, ...]:
        return self.policy.needs

    @property
    def reads_weights(self) -> bool:
        return self.policy.reads_weights

    @property
    def reads_rotation(self) -> bool:
        return self.policy.reads_rotation

    @property
    def skipped(self) -> int:
        return self.policy.skipped

    def score(self, call: EvictionCall) -> Tensor:
        return self.policy.score(replace(call, lowest=False))


def built(name: str = "llama", host: Any = "sdpa") -> PreTrainedModel:
    return FAMILIES[name].build(host)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return built()


def sets_of(cache: EvictingCache) -> list[dict[reference.Head, set[int]]]:
    return [
        {(row, head): set(of) for row, heads in enumerate(layer.places.tolist()) for head, of in enumerate(heads)}
        for layer in cache.kept
    ]


def stacks(cache: EvictingCache) -> list[Stack]:
    return cache.pass_state.stacks


def step(model: PreTrainedModel, cache: EvictingCache, at: int) -> Tensor:
    with torch.no_grad():
        return model(IDS[:, at : at + 1], past_key_values=cache).logits[:, -1]


def read(model: PreTrainedModel, cache: EvictingCache, until: int = TOTAL) -> list[Tensor]:
    with torch.no_grad():
        logits = [model(IDS[:, :PROMPT], past_key_values=cache).logits[:, -1]]
    return logits + [step(model, cache, at) for at in range(PROMPT, until)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_kept_sets_and_logits_match_the_loops(model: PreTrainedModel, name: str) -> None:
    policy, score = LOOPS[name]
    eager = built(host="eager")
    wanted, wanted_sets = reference.run(eager, IDS, [0, 0], PROMPT, score, BUDGET, True, None)
    eager.set_attn_implementation("eager")
    for one in (eager, model):
        with evicting(one, policy, BUDGET, "always") as cache:
            logits = read(one, cache)
            assert sum(len(stack.layers) for stack in stacks(cache)) == 2
            assert sets_of(cache) == wanted_sets[-1]
        torch.testing.assert_close(torch.stack(logits, 1), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h2o", "lagkv", "expected", *MORE])
def test_stacked_layers_match_single_layers(model: PreTrainedModel, name: str) -> None:
    """Sets after every step are looked at in a run of their own: looking moves the free slot to the end."""
    policy = LOOPS[name][0] if name in LOOPS else MORE[name]
    assert policy.together
    with evicting(model, Alone(policy), BUDGET, "always") as alone:
        wanted = read(model, alone)
        assert not stacks(alone)
    for looks in (False, True):
        with (
            evicting(model, policy, BUDGET, "always") as cache,
            evicting(model, Alone(policy), BUDGET, "always") as one,
        ):
            for at in (PROMPT, *range(PROMPT, TOTAL)) if looks else ():
                for each in (cache, one):
                    read(model, each, at) if not each.get_seq_length() else step(model, each, at)
                assert sets_of(cache) == sets_of(one)
            logits = read(model, cache) if not looks else wanted
            assert stacks(cache)
            assert sets_of(cache) == sets_of(alone)
        torch.testing.assert_close(torch.stack(logits), torch.stack(wanted), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "host"), [("gemma2", "eager"), ("gpt_oss", "eager"), ("qwen3", "sdpa"), ("gpt_neox", "sdpa")]
)
def test_weights_include_softcaps_and_learned_sinks(name: str, host: str) -> None:
    model = built(name, host)
    found = []
    for policy in (H2O(), Alone(H2O())):
        with evicting(model, policy, BUDGET, "always") as cache:
            logits = read(model, cache)
            assert bool(stacks(cache)) == policy.together
            found.append((torch.stack(logits), sets_of(cache)))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = built().to(dtype)
    found = []
    for policy in (POLICIES["tova"](), Alone(POLICIES["tova"]())):
        with evicting(model, policy, BUDGET, "always") as cache:
            found.append((torch.stack(read(model, cache)), sets_of(cache)))
    # Processors add up products of bfloat16 in other orders for one row than for several.
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-3 if dtype == torch.bfloat16 else 1e-7, rtol=0.016)
    assert found[0][1] == found[1][1]


def test_a_copy_continues_like_the_original(model: PreTrainedModel) -> None:
    with evicting(model, "h2o", BUDGET, "always") as cache:
        read(model, cache, 28)
        assert stacks(cache)
        twin = deepcopy(cache)
        first = [step(model, twin, at) for at in range(28, TOTAL)]
        assert cache.get_seq_length() == 28
        for at, logits in zip(range(28, TOTAL), first, strict=True):
            assert torch.equal(step(model, cache, at), logits)
        assert stacks(twin)
        assert sets_of(twin) == sets_of(cache)
        assert stacks(twin)[0].rows["keys"].data_ptr() != stacks(cache)[0].rows["keys"].data_ptr()


@pytest.mark.parametrize("order", [[1, 0], [1, 1], [1]])
def test_selected_rows_continue_unchanged(model: PreTrainedModel, order: list[int]) -> None:
    index = torch.tensor(order)
    with evicting(model, "vatp" if order == [1, 0] else "h2o", 60 if order == [1, 0] else BUDGET, "always") as cache:
        read(model, cache, 29)
        twin = deepcopy(cache)
        if len(order) == 2:
            twin.reorder_cache(index)
        else:
            twin.batch_select_indices(index)
        for at in range(29, TOTAL):
            with torch.no_grad():
                found = model(IDS[index, at : at + 1], past_key_values=twin).logits[:, -1]
            torch.testing.assert_close(found, step(model, cache, at)[index], atol=1e-5, rtol=1e-4)
        for layer, other in zip(twin.kept, cache.kept, strict=True):
            assert torch.equal(layer.places.sort(-1).values, other.places[index].sort(-1).values)


def test_a_second_prompt_is_read_after_decoded_tokens(model: PreTrainedModel) -> None:
    found = []
    for policy in (H2O(), Alone(H2O())):
        with evicting(model, policy, BUDGET, "always") as cache:
            read(model, cache, 27)
            with torch.no_grad():
                logits = [model(IDS[:, 27:31], past_key_values=cache).logits[:, -1]]
            assert not stacks(cache)
            logits += [step(model, cache, at) for at in range(31, TOTAL)]
            logits += [step(model, cache, at) for at in range(4)]
            assert bool(stacks(cache)) == policy.together
            found.append((torch.stack(logits), sets_of(cache)))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_observed_attention_is_that_of_single_layers(model: PreTrainedModel) -> None:
    found = []
    for policy in (H2O(), Alone(H2O())):
        with evicting(model, policy, BUDGET, "always") as cache, observe(model) as seen:
            read(model, cache)
        found.append(seen.measurement().data["attention_received"].values)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_returned_weights_are_not_overwritten() -> None:
    model = built(host="eager")
    with evicting(model, "h2o", BUDGET, "always") as cache, torch.no_grad():
        read(model, cache, 30)
        first = model(IDS[:, 30:31], past_key_values=cache, output_attentions=True).attentions
        kept = [weights.clone() for weights in first]
        model(IDS[:, 31:32], past_key_values=cache)
        assert stacks(cache)
    for weights, before in zip(first, kept, strict=True):
        assert torch.equal(weights, before)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


class Half(Editor):
    """Halves every query."""

    def edits(self, module: nn.Module) -> bool:
        return True

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {"query": arguments["query"] / 2}


def test_an_edit_that_starts_later_takes_effect(model: PreTrainedModel) -> None:
    found = []
    for policy in (H2O(), Alone(H2O())):
        with evicting(model, policy, BUDGET, "always") as cache:
            read(model, cache, 29)
            with editing(Half()):
                found.append(torch.stack([step(model, cache, at) for at in range(29, TOTAL)]))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_an_interrupted_pass_cannot_be_continued(model: PreTrainedModel) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    with evicting(model, "h2o", BUDGET, "always") as cache:
        read(model, cache, 29)
        hook = model.model.layers[1].register_forward_pre_hook(fails)
        with pytest.raises(ZeroDivisionError):
            step(model, cache, 29)
        hook.remove()
        with pytest.raises(InputError, match="interrupted"):
            step(model, cache, 29)


def test_inference_mode_can_be_entered_and_left_between_tokens(model: PreTrainedModel) -> None:
    with evicting(model, "h2o", BUDGET, "always") as cache:
        wanted = read(model, cache)
    with evicting(model, "h2o", BUDGET, "always") as cache:
        with torch.inference_mode():
            found = read(model, cache, 30)
        found.append(step(model, cache, 30))
        with torch.inference_mode():
            found += [step(model, cache, at) for at in range(31, TOTAL)]
    assert torch.equal(torch.stack(found), torch.stack(wanted))


@pytest.mark.parametrize("beams", [2, 3])
def test_beams_are_never_stacked(model: PreTrainedModel, beams: int) -> None:
    """Their rows are chosen after each token, and each choice would copy the stack."""
    with evicting(model, "h2o", BUDGET, "always") as cache:
        model.generate(
            IDS[:, :PROMPT], past_key_values=cache, num_beams=beams, max_new_tokens=8, pad_token_id=0, do_sample=False
        )
        assert not stacks(cache)


@dataclass(frozen=True)
class Unsure(Streaming):
    """Its scores are NaN from a column on."""

    until: int = 30

    def score(self, call: EvictionCall) -> Tensor:
        return super().score(call) * (torch.nan if call.total > self.until else 1.0)


def test_a_nan_score_is_refused_and_the_cache_cannot_be_continued(model: PreTrainedModel) -> None:
    with evicting(model, Unsure(2), BUDGET, "always") as cache:
        read(model, cache, 30)
        assert stacks(cache)
        with pytest.raises(InputError, match="NaN"):
            step(model, cache, 30)
        with pytest.raises(InputError, match="interrupted"):
            step(model, cache, 31)
