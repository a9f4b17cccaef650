"""What slots take of a row's attention, where it is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.attention import AttentionSpec, ClippedSoftmax, LogitSlot, Softmax
from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, GivenTo, QueriesAbove, SlotReceived, measure
from tests.measurement.conftest import lab_model
from tests.measurement.observers.naive import close, look

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


@pytest.mark.parametrize("name", ["llama", "bert", "gpt_oss", "granite_swa", "lab:sigmoid", "lab:kv_bias"])
def test_queries_above_are_counted_over_the_whole_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, QueriesAbove(0.2), AttentionReceived("all"), GivenTo(1))
    for index, layer in enumerate(layers):
        weights = layer.weights
        if name == "lab:sigmoid":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-8)
        queries = weights.sum(-2) / torch.from_numpy(data["attention_received"][:, index].values)
        close(data["queries_above"][:, index], (weights > 0.2).sum(-2) / queries.round())
        close(data["given_to"][:, index], weights[..., 1])


@torch.no_grad()
def test_padding_in_front_moves_what_is_given_to_a_token(ids: torch.Tensor) -> None:
    model = lab_model("softmax")
    padded = {
        "input_ids": torch.nn.functional.pad(ids, (3, 0)),
        "attention_mask": torch.ones(len(ids), ids.shape[1] + 3),
    }
    padded["attention_mask"][:, :3] = 0
    for observer, name in ((GivenTo(2), "given_to"), (QueriesAbove(0.1), "queries_above")):
        plain, moved = (measure(model, inputs, [observer]).data[name].values for inputs in (ids, padded))
        np.testing.assert_allclose(moved[..., : plain.shape[-1]], plain, atol=1e-5)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InputError, match="to = -1"):
        GivenTo(-1)
    with pytest.raises(InputError, match="epsilon = 1"):
        QueriesAbove(1.0)
