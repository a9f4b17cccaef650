"""What a shared range of activations loses to in a pretrained model: outlying tokens, some of which are sinks."""

from __future__ import annotations

from typing import Any

import pytest

from sinkscope.data import build_inputs
from sinkscope.measurement.evidence import find_tokens
from sinkscope.quantization import hazards
from sinkscope.sinks import Measured, Outliers
from sinkscope.trials import scheme_trial

pytestmark = pytest.mark.release
TEXTS, TOKENS = 6, 64


def texts(model: Any, tokenizer: Any) -> Any:
    """Windows from the middle of files, without a BOS: most begin with another token."""
    options = {"vocab_size": model.config.vocab_size, "tokens": TOKENS, "samples": TEXTS, "seed": 0, "bos": "none"}
    return build_inputs("natural", tokenizer=tokenizer, **options).input_ids


def test_sinks_and_outliers_give_most_back_and_are_not_the_same_tokens(smollm2: tuple[Any, Any]) -> None:
    model, tokenizer = smollm2
    ids = texts(model, tokenizer)
    sinks, outliers = Measured(by="row"), Outliers()
    found = scheme_trial(model, ids, "w8a8-tensor", {"sinks": sinks, "outliers": outliers}, controls=1)
    nothing = found.mean("w8a8-tensor").value
    assert nothing > 0.4
    assert found.mean("sinks").value < 0.35 * nothing
    assert found.mean("outliers").value < 0.25 * nothing
    for name in ("sinks", "outliers"):
        assert found.mean(found.controls(name)[0]).value > 0.6 * nothing
    by_attention, by_activation = (find_tokens(model, ids, one).any_head() for one in (sinks, outliers))
    width = min(by_attention.shape[1], by_activation.shape[1])
    assert (by_attention[:, :width] != by_activation[:, :width]).any()


def test_a_channel_that_is_large_in_a_few_tokens_is_a_matter_of_these_tokens(smollm2: tuple[Any, Any]) -> None:
    """With the outliers protected, what is left is judged: no channel is blamed for a few tokens."""
    model, tokenizer = smollm2
    found = hazards(model, texts(model, tokenizer)[:4])
    few = found.sites[(found.sites["channel_ratio"] >= 10) & (found.sites["channel_share"] < 0.1)]
    told = found.advice[found.advice["what"].str.contains("smooth or rotate")]
    for site in few["path"]:
        assert not told["why"].str.contains(site, regex=False).any()
    assert {"outliers"} <= set(found.ranked["protected"])
    assert (found.sites["max_median_without"] <= found.sites["max_median"]).all()
