"""What `fold`, `origin` and rotated caches say of a pretrained model: the directions that their pages report."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from sinkscope.data import build_inputs
from sinkscope.trials import matters, origin_trial, redundancy, rotation_trial

pytestmark = pytest.mark.release
CHOOSING = 4  # texts that fit constants, or choose tokens; never scored


@pytest.fixture(scope="module")
def ids(smollm2: tuple[Any, Any]) -> Tensor:
    """Windows without a BOS, which begin with different tokens."""
    model, tokenizer = smollm2
    options = {"vocab_size": model.config.vocab_size, "tokens": 64, "samples": 6 + CHOOSING, "seed": 0, "bos": "none"}
    return build_inputs("natural", tokenizer=tokenizer, **options).input_ids


def test_the_sink_folds_into_constants_only_with_its_value(smollm2: tuple[Any, Any], ids: Tensor) -> None:
    arms = ("fold-sink", "fold-logit")
    trial = matters(smollm2[0], ids[CHOOSING:], arms, on=(0,), calibrate_on=ids[:CHOOSING], controls=1, batch_size=6)
    assert abs(trial.cost("fold-sink", "nats").value) < 0.1
    assert trial.cost("fold-logit", "nats").low > 0.3


def test_one_feed_forward_makes_the_sink_at_whichever_token_comes_first(smollm2: tuple[Any, Any], ids: Tensor) -> None:
    trial = origin_trial(
        smollm2[0], ids[CHOOSING:], ("swap-first", "mute-step"), calibrate_on=ids[:CHOOSING], controls=1, batch_size=6
    )
    before = float(trial.data["rate_at_sink"].isel(arm=0).mean())

    def left(arm: str) -> float:
        return float(trial.data["rate_at_sink"].sel(arm=arm).mean())

    assert before > 0.5
    assert left("swap-first") > 0.9 * before
    assert left("mute-step") < 0.5 * before < left(trial.controls("mute-step")[0])


def test_rotation_helps_and_the_sink_still_gives_something_back(smollm2: tuple[Any, Any], ids: Tensor) -> None:
    trial = rotation_trial(smollm2[0], ids[CHOOSING:], ["kv2-kivi"], calibrate_on=ids[:CHOOSING], batch_size=6)
    (row,) = redundancy(trial).to_dict("records")
    assert row["rotated"] < row["plain"]
    assert row["rotated_protected"] < 0.85 * row["rotated"]
    assert row["rotated_protected"] < row["rotated_random"]
