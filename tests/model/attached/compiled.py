"""Run by `test_compiled.py` in a process without shape checks: attached models under `torch.compile`."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

import sinkscope as ss
from sinkscope.attention import AttentionSpec, Causal, LogitSlot, Window
from tests.model.attached.hosts import HOSTS, host, inputs, stir
from tests.model.attached.test_catalog import NAMES

WINDOW = AttentionSpec(slots=(LogitSlot(),), mask=Causal() & Window(4))
EVERY = {
    **{f"llama {name}": ("llama", name) for name in NAMES},
    **{f"{name} kv_bias": (name, "kv_bias") for name in HOSTS},
    **{f"{name} gated_value": (name, "gated_value") for name in ("gpt2", "gpt_neox", "phi3", "mixtral")},
    **{f"{name} qk_norm": (name, "qk_norm") for name in ("gpt2", "gpt_neox", "phi3")},
    **{f"{name} window": (name, WINDOW) for name in ("llama", "mistral", "gpt_oss")},
    **{f"{name} tokens": (name, "sink_logit") for name in ("llama", "gpt2", "opt", "vit")},
}


def given(name: str, padded: bool) -> dict[str, Tensor]:
    found = dict(inputs(name))
    if padded:
        mask = torch.ones_like(found["input_ids"])
        mask[0, :5] = 0
        found |= {"attention_mask": mask}
        if name != "bert":
            found["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return found if name in ("bert", "vit") else found | {"use_cache": False}


def answers(model: PreTrainedModel, run: object, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output at real tokens, and gradients of its mean square."""
    found = run(**batch)[0]  # type: ignore[operator]
    if "attention_mask" in batch:
        found = found[batch["attention_mask"].bool()]
    learned = {path: p for path, p in model.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(found.square().mean(), [*learned.values()], allow_unused=True)
    zeros = [torch.zeros_like(p) if g is None else g for p, g in zip(learned.values(), slopes, strict=True)]
    return {"output": found.detach()} | dict(zip(learned, zeros, strict=True))


def check(case: str) -> None:
    """`case` may name one of the two: whole samples, or padded ones."""
    case, _, one = case.partition(": ")
    name, spec = EVERY[case]
    model = host(name)
    ss.attach(model, spec, start="as_is", seed=0, sink_tokens=2 if case.endswith("tokens") else 0)
    stir(model)
    for padded in (one == "padded",) if one else (False, True) if name != "vit" else (False,):
        torch._dynamo.reset()
        batch = given(name, padded)
        eager = answers(model, model, batch)
        torch._dynamo.utils.counters.clear()
        compiled = answers(model, torch.compile(model, fullgraph=True, backend="aot_eager"), batch)
        for path, value in eager.items():
            scale = float(value.abs().max())
            torch.testing.assert_close(compiled[path], value, atol=1e-5 * max(1.0, scale), rtol=1e-4)
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        print(case, "padded" if padded else "whole", breaks, "breaks")


@torch.no_grad()
def decode(case: str) -> None:
    """Token by token with a cache, past the window of the hosts that have one, as the full forward in eager mode."""
    name, kind = case.split()
    model, ids = host(name), inputs(name)["input_ids"]
    ss.attach(model, WINDOW, start="as_is", seed=0)
    stir(model)
    whole = model(ids, use_cache=False).logits
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    options = {"max_cache_len": ids.shape[1] + 3} if kind == "static" else {}
    cache = (StaticCache if kind == "static" else DynamicCache)(config=model.config, **options)
    parts = [run(part, past_key_values=cache).logits for part in ids.split([7] + [1] * (ids.shape[1] - 7), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=1e-4)
    print(case, sum(torch._dynamo.utils.counters["graph_break"].values()), "breaks")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or EVERY:
        if wanted.endswith(("static", "dynamic")):
            decode(wanted)
        else:
            check(wanted)
