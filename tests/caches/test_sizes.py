"""What a cache holds: foretold is measured, byte by byte, and what a share allows fits it."""

from __future__ import annotations

from functools import cache as once
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, ZambaConfig

from sinkscope.caches import POLICIES, Policy, Protect, RandomLike, Renumbered, caching, evicting, held, keys_within
from sinkscope.caches.policies import VATP, ExpectedAttention, FastV, KeyNorm, LookM, PyramidKV, Scissorhands, SnapKV
from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError
from sinkscope.sinks import Online

TOKENS = 96
POLICY: dict[str, Policy] = {name: POLICIES[name]() for name in POLICIES.own if name not in ("ada-kv", "fastgen")} | {
    "snapkv": SnapKV(6),
    "vatp": VATP(2),
    "look-m": LookM((), 1, 4),
    "pyramidkv": PyramidKV(SnapKV(6), 4),
    "skipping": KeyNorm(1),
    "random like one that skips": RandomLike(FastV((), 1)),
    "online": Protect(KeyNorm(), Online(), 4),
}


@once
def model(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The heads of SmolLM2-135M, and little else."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 64}
    config = LlamaConfig(intermediate_size=16, num_hidden_layers=3, max_position_embeddings=8192, **sizes)
    return LlamaForCausalLM(config).eval().to(dtype)


def ids(tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, 60, (1, tokens), generator=torch.Generator().manual_seed(1))


def whole(dtype: torch.dtype, tokens: int = TOKENS) -> int:
    cache = DynamicCache(config=model(dtype).config)
    with torch.no_grad():
        model(dtype)(ids(tokens), past_key_values=cache, logits_to_keep=1)
    return held_bytes(cache)


@pytest.mark.parametrize("when", ["prefill", "always"])
@pytest.mark.parametrize("name", POLICY)
def test_what_is_foretold_is_held(name: str, when: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16) if name in ("expected", "snapkv") else (torch.float32,):
        with evicting(model(dtype), POLICY[name], TOKENS // 4, when) as cache, torch.no_grad():
            model(dtype)(ids(), past_key_values=cache, logits_to_keep=1)
        foretold = held(POLICY[name], model(dtype), TOKENS // 4, TOKENS, when)
        assert foretold.whole == whole(dtype)
        assert abs(held_bytes(cache) / foretold.total - 1) < 0.002, (held_bytes(cache), foretold)


@pytest.mark.parametrize("keys", [24, 60, 200])
def test_a_stream_holds_what_is_foretold(keys: int) -> None:
    with caching(model(), "streaming-cache", keys) as cache, torch.no_grad():
        model()(ids(), past_key_values=cache, logits_to_keep=1)
        for token in range(2 * (keys < TOKENS)):
            model()(ids()[:, token : token + 1], past_key_values=cache)
    assert abs(held_bytes(cache) / held("streaming-cache", model(), keys, TOKENS).total - 1) < 0.01


@pytest.mark.parametrize(
    "name", [name for name in POLICY if name not in ("fastv", "skipping", "random like one that skips")]
)
def test_a_quarter_of_the_keys_holds_about_a_quarter(name: str) -> None:
    """After a prompt: 26 % at 96 tokens, whatever the policy looks at; what it noted of queries is gone."""
    assert held(POLICY[name], model(), TOKENS // 4, TOKENS).share < (0.30 if name == "online" else 0.275)


def test_keys_that_a_share_allows_fit_it() -> None:
    for name in ("snapkv", "h2o", "streaming-cache", "scissorhands"):
        policy = POLICY.get(name, Renumbered())
        for tokens in (96, 1024):
            keys = keys_within(0.25, policy, model(), tokens, "always")
            assert held(policy, model(), keys, tokens, "always").share <= 0.25
            assert held(policy, model(), keys + 1, tokens, "always").share > 0.25


def test_where_notes_alone_are_too_many_the_policy_is_refused() -> None:
    with pytest.raises(InputError, match="ExpectedAttention: at 96 tokens its notes alone hold 103 %") as error:
        keys_within(0.25, ExpectedAttention(), model(), 96, "always")
    assert "\n" not in str(error.value)
    assert keys_within(0.25, ExpectedAttention(), model(), 96) == 22
    with pytest.raises(InputError, match="40 keys hold"):
        keys_within(0.25, Scissorhands(9, 39), model(), 96)
    with pytest.raises(InputError, match="needs 41 keys"):
        keys_within(0.25, "vatp", model(), 20)


def test_a_policy_that_depends_on_its_keys_is_asked_with_them() -> None:
    keys = keys_within(0.25, "snapkv", model(), 96, "always", fitting=lambda keys: SnapKV(max(1, keys // 4)))
    assert held(SnapKV(keys // 4), model(), keys, 96, "always").share <= 0.25


def test_layers_with_states_beside_their_keys_count() -> None:
    """Zamba names them "hybrid": with none of them counted the whole cache had 0 bytes."""
    config = ZambaConfig(hidden_size=64, num_hidden_layers=4, layers_block_type=["mamba", "hybrid"] * 2)
    assert config.layer_types.count("hybrid") == 2
    plain = LlamaConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    )
    assert held("streaming", config, 16, 100).whole == held("streaming", plain, 16, 100).whole > 0
