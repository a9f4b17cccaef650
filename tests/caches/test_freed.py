"""Keys and values go with their cache, not when Python's collector comes by: a GPU is full before that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from sinkscope.caches import (
    POLICIES,
    AdaptiveHeads,
    Policy,
    Protect,
    Pyramid,
    StreamingCache,
    evicting,
)
from sinkscope.caches.policies import H2O, VATP, AdaKV, FastV, PyramidKV, SnapKV
from sinkscope.quantization import Grid, QuantizeCache, quantized_cache
from sinkscope.sinks import First, Online
from tests.collector import left_by
from tests.families.registry import FAMILIES

IDS = torch.randint(3, 90, (2, 48), generator=torch.Generator().manual_seed(3))
BUDGET = 40
POLICY: dict[str, Policy] = {name: POLICIES[name]() for name in POLICIES} | {
    "fastv": FastV(tuple(range(20, 37)), 1),
    "vatp": VATP(2, 0.25),
    "ada-kv": AdaKV(SnapKV(4)),
    "pyramidkv": PyramidKV(SnapKV(4), 4),
    "protected": Protect(H2O(), Online(0.3), 2),
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build()


def generate(model: PreTrainedModel, cache: object) -> None:
    model.generate(IDS, past_key_values=cache, max_new_tokens=6, do_sample=False, pad_token_id=0)


def streams(model: PreTrainedModel) -> None:
    generate(model, StreamingCache(model, sinks=2, window=12))


def streams_at_original_distances(model: PreTrainedModel) -> None:
    generate(model, StreamingCache(model, sinks=2, window=12, distance="original"))


def quantizes(model: PreTrainedModel) -> None:
    with QuantizeCache(Grid(4), Grid(4), protect=First(1)).applied(model):
        generate(model, DynamicCache(config=model.config))


def holds_codes(model: PreTrainedModel) -> None:
    generate(model, quantized_cache(model, Grid(4, "channel", group=16), Grid(4), First(1), window=8))


def evicts(policy: Policy, budget: object = BUDGET) -> Callable[[PreTrainedModel], None]:
    def run(model: PreTrainedModel) -> None:
        with evicting(model, policy, budget, when="always") as cache:
            generate(model, cache)
            assert cache.kept

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        *(pytest.param(evicts(policy), id=name) for name, policy in POLICY.items()),
        pytest.param(evicts(H2O(), AdaptiveHeads(BUDGET, alpha=0.5)), id="heads of different length"),
        pytest.param(evicts(H2O(), Pyramid(BUDGET)), id="layers of different length"),
        streams,
        streams_at_original_distances,
        quantizes,
        holds_codes,
    ],
)
def test_nothing_of_a_cache_is_left_behind_it(use: Callable[[PreTrainedModel], None], model: PreTrainedModel) -> None:
    assert left_by(lambda: use(model)) == 0
