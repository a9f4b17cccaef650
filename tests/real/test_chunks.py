"""What the sinks of joined chunks cost a pretrained model, and that repairing one token of each beats random ones."""

from __future__ import annotations

from typing import Any

import pytest

from sinkscope.data import build_inputs
from sinkscope.trials import chunk_sinks, chunk_trial

pytestmark = pytest.mark.release
LENGTHS = (64,) * 4


def test_every_chunk_brings_a_sink_and_its_repair_beats_random_tokens(smollm2: tuple[Any, Any]) -> None:
    model, tokenizer = smollm2
    ids = build_inputs(
        "natural", tokenizer=tokenizer, vocab_size=model.config.vocab_size, tokens=sum(LENGTHS) + 33, samples=6, seed=0
    ).input_ids
    mass = chunk_sinks(model, ids, LENGTHS)["sink_mass"].mean("text")
    later = mass.isel(chunk=slice(1, None)).sum("chunk")
    assert float(later.sel(cache="joined")) > 3 * float(later.sel(cache="at once"))
    trial = chunk_trial(model, ids, LENGTHS, (1,), repairs=("first",))
    assert trial.mean("joined").value > 0.03
    assert trial.recovered("first 1").low > 0
    assert trial.difference("first 1", "random for first 1").high < 0
    assert trial.difference("strongest dropped", "random for strongest dropped").value < 0
