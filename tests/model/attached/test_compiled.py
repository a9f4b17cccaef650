"""Attached models are one graph under `torch.compile`, with the values and gradients of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

import sinkscope as ss
from sinkscope.attention import AttentionSpec, Causal, LogitSlot, Window
from tests.model.attached.hosts import host, inputs, stir
from tests.shapes import unchecked

pytestmark = [pytest.mark.slow, unchecked, pytest.mark.filterwarnings("ignore")]  # the compiler's own

WINDOW = AttentionSpec(slots=(LogitSlot(),), mask=Causal() & Window(4))


def of_a_release(*case: object) -> Any:
    return pytest.param(*case, marks=pytest.mark.release)


def batch(name: str, padded: bool) -> dict[str, Tensor]:
    found = dict(inputs(name))
    if padded:
        mask = torch.ones_like(found["input_ids"])
        mask[0, :5] = 0
        found |= {"attention_mask": mask}
        if name != "bert":
            found["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return found if name in ("bert", "vit") else found | {"use_cache": False}


def answers(model: PreTrainedModel, run: Callable[..., Any], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output at real tokens, and gradients of its mean square."""
    found = run(**given)[0]
    if "attention_mask" in given:
        found = found[given["attention_mask"].bool()]
    learned = {path: p for path, p in model.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(found.square().mean(), [*learned.values()], allow_unused=True)
    zeros = [torch.zeros_like(p) if g is None else g for p, g in zip(learned.values(), slopes, strict=True)]
    return {"output": found.detach()} | dict(zip(learned, zeros, strict=True))


@pytest.mark.parametrize(
    ("name", "operation", "padded", "sink_tokens"),
    [
        of_a_release("llama", "qk_norm", False, 0),  # queries and keys are changed by hooks
        of_a_release("llama", "softpick", True, 0),
        of_a_release("gpt2", "sink_logit", False, 2),
        of_a_release("llama", "sink_logit", False, 0),
        of_a_release("llama", "sink_logit", True, 0),
        of_a_release("llama", "softmax", False, 0),
        of_a_release("llama", WINDOW, True, 0),
        of_a_release("gpt_oss", "kv_bias", True, 0),
        of_a_release("phi3", "qk_norm", False, 0),
        of_a_release("gemma2", "kv_bias", True, 0),
        of_a_release("bert", "kv_bias", True, 0),
        of_a_release("vit", "kv_bias", False, 0),
        of_a_release("mixtral", "gated_value", True, 0),
    ],
)
def test_one_graph_with_equal_values_and_gradients(
    name: str, operation: str | AttentionSpec, padded: bool, sink_tokens: int
) -> None:
    model, given = host(name), batch(name, padded)
    ss.attach(model, operation, start="as_is", seed=0, sink_tokens=sink_tokens)
    stir(model)
    torch._dynamo.reset()
    eager = answers(model, model, given)
    compiled = answers(model, torch.compile(model, fullgraph=True, backend="aot_eager"), given)
    for path, value in eager.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(compiled[path], value, atol=1e-5 * max(1.0, scale), rtol=1e-4)


@pytest.mark.release
@pytest.mark.parametrize(("name", "static"), [("llama", True), ("llama", False), ("mistral", True)])
@torch.no_grad()
def test_decoding_past_a_window_is_the_full_forward_in_eager_mode(name: str, static: bool) -> None:
    """Token by token with a cache."""
    model, ids = host(name), inputs(name)["input_ids"]
    ss.attach(model, WINDOW, start="as_is", seed=0)
    stir(model)
    whole = model(ids, use_cache=False).logits
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    options = {"max_cache_len": ids.shape[1] + 3} if static else {}
    cache = (StaticCache if static else DynamicCache)(config=model.config, **options)
    parts = [run(part, past_key_values=cache).logits for part in ids.split([7] + [1] * (ids.shape[1] - 7), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=1e-4)
