"""What slots take of a row's attention, where it is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.attention import AttentionSpec, ClippedSoftmax, LogitSlot, Softmax
from sinkscope.probes import SlotReceived, measure
from tests.probes.conftest import lab_model

LOGITS = [-8.0, 0.0, 3.0, 9.0]  # of the four heads: nearly nothing to nearly all


@pytest.mark.parametrize("normalizer", [Softmax(), ClippedSoftmax(gamma=0.0)], ids=["log-sum-exp", "in chunks"])
def test_a_slot_takes_its_share_of_equal_scores(normalizer: Softmax | ClippedSoftmax, ids: torch.Tensor) -> None:
    """With all scores 0, query t leaves e^b / (e^b + t + 1) to a slot of logit b, from nearly 0 to nearly 1."""
    model = lab_model(AttentionSpec(normalizer=normalizer, slots=(LogitSlot(),)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "k_proj" in name:
                parameter.zero_()
            if name.endswith("logit"):
                parameter.copy_(torch.tensor(LOGITS))
    found = measure(model, ids, [SlotReceived()]).data["slot_received"]
    slot, seen = np.exp(LOGITS)[:, None], np.arange(1, ids.shape[1] + 1)
    wanted = (slot / (slot + seen)).mean(-1)
    assert wanted.min() < 0.001
    assert wanted.max() > 0.99
    np.testing.assert_allclose(found.values, np.broadcast_to(wanted, found.shape), rtol=1e-5)
