"""Lab layers under a mask run in blocks of queries: what observers get is what one call would have given them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch

from sinkscope.attention import AttentionSpec, Causal, LogitSlot, Window
from sinkscope.measurement import AttentionReceived, measure, observe
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, Piece
from tests.measurement.conftest import lab_model
from tests.measurement.observers.naive import close

TOKENS = 300  # two blocks


@dataclass(frozen=True)
class Kept(Observer):
    """Keeps the calls."""

    calls: list[AttentionCall] = field(default_factory=list, compare=False)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        self.calls.append(call)
        return ()

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        return {}

    def describe(self) -> dict[str, object]:
        return {"name": "Kept"}


@pytest.mark.parametrize("slots", [(), (LogitSlot(initial=1.0),)])
def test_the_kernels_log_sum_exp_is_joined(slots: tuple[LogitSlot, ...]) -> None:
    model = lab_model(AttentionSpec(mask=Causal() & Window(40), slots=slots), max_position_embeddings=TOKENS)
    ids, kept = torch.randint(0, 97, (2, TOKENS), generator=torch.Generator().manual_seed(0)), Kept()
    with observe(model, kept), torch.no_grad():
        model(ids)
    received = measure(model, ids, [AttentionReceived()]).data["attention_received"]
    for index, call in enumerate(kept.calls):
        assert call.kernel_lse is not None
        torch.testing.assert_close(call.kernel_lse, call._computed_lse())
        weights = call.operation_weights(slice(0, TOKENS)).token.detach()
        close(received[:, index], weights.sum(-2) / torch.arange(TOKENS, 0, -1).clamp(max=40), 1e-5)
