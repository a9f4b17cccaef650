"""What a pretrained model loses with its sink, and that random keys without it are a strawman."""

from __future__ import annotations

from typing import Any

import pytest

from sinkscope.data import build_inputs
from sinkscope.trials import ThroughCache, eviction_trial, policy_arms, run

pytestmark = pytest.mark.release
CONTEXT, KEYS = 96, 24


def test_the_sink_is_worth_more_than_the_policy(smollm2: tuple[Any, Any]):
    model, tokenizer = smollm2
    ids = build_inputs(
        "natural", tokenizer=tokenizer, vocab_size=model.config.vocab_size, tokens=128, samples=14, seed=0
    ).input_ids
    trial = eviction_trial(model, ids, ["streaming"], [KEYS], context=CONTEXT, without_sinks=True, batch_size=6)
    assert trial.record["protect"]["positions"] == [0]
    assert trial.texts == 6
    # streaming keeps the first four by itself: they are taken away too, and four random ones kept in their place
    assert trial.difference("streaming@24 without sinks", "streaming@24").low > 1
    assert trial.cost("streaming@24 without sinks", "nats").value > 1
    bare = policy_arms(model, ids, ["random"], [KEYS], context=CONTEXT)
    unprotected = run(model, ids[8:], bare, reading=ThroughCache(CONTEXT, None), batch_size=6)
    assert unprotected.mean("random@24").value > trial.mean("random for streaming@24").value + 0.3
