"""What eviction refuses rather than be silently different."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from sinkscope.caches import AdaptiveHeads, EvictionCall, Policy, Protect, Pyramid, evicting
from sinkscope.caches.policies import H2O, KeyNorm, ObservedAttention, SnapKV
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.sinks import First
from tests.caches.test_eviction import IDS, generated
from tests.families.registry import COLLECTED, FAMILIES


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


def test_the_same_prompt_again_is_refused(model: PreTrainedModel) -> None:
    with evicting(model, "h2o", 8) as cache:
        generated(model, cache)
        with pytest.raises(InputError, match="rows continue at"):
            generated(model, cache)


def test_what_it_would_get_wrong_is_refused(model: PreTrainedModel) -> None:
    with evicting(model, "h2o", 8) as cache:
        with pytest.raises(InputError, match="use_cache"):
            model(IDS, past_key_values=cache, use_cache=False)
        with pytest.raises(InputError, match="no_grad"):
            model(IDS, past_key_values=cache)
        with pytest.raises(InputError, match="its own masks"):
            model(IDS, attention_mask=torch.ones(2, 1, 20, 20), past_key_values=cache)
    with torch.no_grad():
        with evicting(model, "h2o", 8) as cache:
            model(IDS, past_key_values=cache)
            with pytest.raises(InputError, match="cannot be cropped"):
                cache.crop(-1)
            with pytest.raises(InputError, match="cannot be offloaded"):
                cache.layers[0].offload()
            with pytest.raises(InputError, match="call that model itself"):
                deepcopy(model)(IDS[:, :1], past_key_values=cache)
        with pytest.raises(InputError, match="has ended"):
            model(IDS[:, :1], past_key_values=cache)


@pytest.mark.parametrize(
    ("policy", "budget", "when", "says"),
    [
        ("snapkw", 8, "prefill", "did you mean 'snapkv'"),
        (7, 8, "prefill", "expected a policy or one of"),
        ("h2o", 0, "prefill", "a number of keys"),
        ("h2o", True, "prefill", "a number of keys"),
        ("h2o", 1.5, "prefill", "a share is above 0"),
        ("h2o", 0.0, "prefill", "a share is above 0"),
        ("h2o", 8, "sometimes", "prefill, always"),
        ("streaming", 4, "prefill", "give at least 5"),
        ("snapkv", 32, "prefill", "give at least 33"),
        (Protect(H2O(), First(4), 28), 32, "prefill", "give at least 33"),
        (
            Protect(KeyNorm(), None, 5),
            AdaptiveHeads(8, 0.25),
            "prefill",
            "Adaptive.* a head 5 keys.* every head 6$",
        ),
        (
            Protect(KeyNorm(), None, 5),
            Pyramid(24, 20),
            "prefill",
            "Pyramid may leave a head 5 keys.* leave every head 6$",
        ),
        (Protect(SnapKV(), None, 5), 8, "prefill", r"Protect\(SnapKV\), which always keeps 32"),
        (
            "snapkv",
            Pyramid(16),
            "prefill",
            "Pyramid may leave a head 16 keys, too small for SnapKV, which always keeps 32",
        ),
    ],
)
def test_bad_input_is_one_line(model: PreTrainedModel, policy: Any, budget: Any, when: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as error, evicting(model, policy, budget, when):
        pass
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_a_share_that_cannot_hold_what_is_protected_is_refused(model: PreTrainedModel) -> None:
    with (
        evicting(model, Protect(KeyNorm(), First(2), 4), 0.25) as cache,
        pytest.raises(InputError, match="protected"),
    ):
        model(IDS, past_key_values=cache)


@torch.no_grad()
def test_a_pass_that_broke_off_leaves_no_usable_cache(model: PreTrainedModel) -> None:
    class Failing(Policy):
        def score(self, call: EvictionCall) -> Tensor:
            if call.layer == 1:
                raise ValueError("no")
            return torch.zeros_like(call.places, dtype=torch.float32)

    with evicting(model, Failing(), 30) as cache:
        with pytest.raises(ValueError, match="no"):
            model(IDS, past_key_values=cache)
        with pytest.raises(InputError, match="interrupted"):
            model(IDS[:, :1], past_key_values=cache)
        cache.reset()
        with pytest.raises(ValueError, match="no"):
            model(IDS, past_key_values=cache)


@torch.no_grad()
def test_scores_that_are_no_numbers_are_refused(model: PreTrainedModel) -> None:
    class Broken(Policy):
        def score(self, call: EvictionCall) -> Tensor:
            return torch.full(call.places.shape, torch.nan)

    with evicting(model, Broken(), 4) as cache, pytest.raises(InputError, match="NaN"):
        model(IDS, past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_scores_that_are_no_numbers_are_refused_of_decoded_tokens_too(model: PreTrainedModel, padded: bool) -> None:
    """The lowest of NaN would be the first slot, which is the sink's."""

    class Breaking(Policy):
        def score(self, call: EvictionCall) -> Tensor:
            return torch.full(call.places.shape, torch.nan if call.queries == 1 else 0.0)

    mask = torch.ones(len(IDS), IDS.shape[1] + 1, dtype=torch.long)
    mask[0, : 2 * padded] = 0
    with evicting(model, Breaking(), 4, "always") as cache:
        model(IDS, attention_mask=mask[:, :-1], past_key_values=cache)
        with pytest.raises(InputError, match="NaN"):
            model(IDS[:, :1], attention_mask=mask, past_key_values=cache)


@torch.no_grad()
def test_what_a_policy_says_of_padding_counts_for_nothing(model: PreTrainedModel) -> None:
    """A row with room left keeps all of it, beside one that overwrites a key for each token."""

    class Careless(KeyNorm):
        def score(self, call: EvictionCall) -> Tensor:
            return super().score(call).masked_fill(~call.real, torch.nan)

    tokens = IDS.shape[1]
    mask = torch.ones(len(IDS), tokens + 3, dtype=torch.long)
    mask[0, : tokens - 6] = 0
    kept = []
    for policy in (KeyNorm(), Careless()):
        with evicting(model, policy, 12, "always") as cache:
            model(IDS, attention_mask=mask[:, :tokens], past_key_values=cache)
            for step in range(1, 4):
                model(IDS[:, :1], attention_mask=mask[:, : tokens + step], past_key_values=cache)
        kept.append([layer.places.sort(-1).values for layer in cache.followed])
    assert all(torch.equal(*both) for both in zip(*kept, strict=True))
    assert (kept[1][0][0] >= tokens - 6).sum(-1).tolist() == [9] * kept[1][0].shape[1]


@torch.no_grad()
def test_weights_that_are_not_the_layers_own_are_refused(model: PreTrainedModel) -> None:
    def other(module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        return sdpa_attention_forward(module, query.flip(-2), *args, **kwargs)

    AttentionInterface.register("sdpa_of_other_queries", other)
    twin = deepcopy(model)
    twin.config._attn_implementation = "sdpa_of_other_queries"
    with (
        evicting(twin, ObservedAttention(), 8) as cache,
        pytest.raises(UnsupportedModelError, match="not that of the softmax"),
    ):
        twin(IDS, past_key_values=cache)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("doge", "adds a bias to scores"),
        ("diffllama", "attends twice"),
        ("gpt_neo", "its own code"),
        ("mistral", "no layer of plain full attention"),
        ("deepseek_v32", "no layer of plain full attention"),
    ],
)
@torch.no_grad()
def test_families_that_cannot_evict_are_refused_by_name(name: str, says: str) -> None:
    family = (FAMILIES | COLLECTED)[name]
    model = family.build("eager")
    with pytest.raises(UnsupportedModelError, match=says), evicting(model, "streaming", 8) as cache:
        model(family.inputs(1, 20)["input_ids"], past_key_values=cache)
