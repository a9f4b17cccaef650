"""Numbers of an arm on texts longer than what is compared at once, beside the formula written out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.trials import Arm, OnePass, Texts, run
from sinkscope.trials.scoring import PLACES


def test_every_place_of_a_long_text_is_compared_with_its_own() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).eval()
    ids = torch.randint(50, (3, 2 * PLACES + 5))

    def sharpen(module: nn.Module, args: Any, output: Any) -> Any:
        output.logits = 9 * output.logits
        return output

    @contextmanager
    def sharper(model: nn.Module, texts: Texts) -> Iterator[None]:
        handle = model.register_forward_hook(sharpen)
        try:
            yield None
        finally:
            handle.remove()

    trial = run(model, ids, [Arm("sharper", sharper)], reading=OnePass(), controls=0)
    with torch.no_grad():
        logits = model(ids).logits.double()[:, :-1]
    p, q = logits.log_softmax(-1), (9 * logits).log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1).mean(1)
    nats = -q.gather(-1, ids[:, 1:, None])[..., 0].mean(1)
    assert torch.allclose(torch.tensor(trial.values("sharper")), kl, atol=1e-5)
    assert torch.allclose(torch.tensor(trial.values("sharper", "nats")), nats, atol=1e-5)
    assert (kl > 1e-3).all()
