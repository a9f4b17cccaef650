"""May the sink's value be dropped after light tuning? A pretrained model whose sink is a constant logit, trained so.

For queries t ≥ 8 the first token's score is b_h and its value 0: the form `logit` of `sinkscope.fold`, written as an
attention function that passes gradients, and equal to the fold before the first step (checked). b_h starts at its mean
over 64 texts. A step reads the first 64 tokens of 4 docstrings of `python:prose`; AdamW without decay, gradients
clipped at 1, rate 1e-4 for weights and .01 for b_h, fp32. Scored: 200 others, nats per token of queries t ≥ 8,
against the untouched model, and against the arm without a fold that was trained on the same batches.

Run: python -m benchmarks.fold_tuning [--model NAME] [--steps 100] [--save]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

import sinkscope as ss
from benchmarks.folding import AFTER, CONSTANTS, CORPUS, TOKENS, texts
from benchmarks.sides import REAL, provenance
from sinkscope.files import write_json
from sinkscope.interventions import Constants, FoldSink, constants
from sinkscope.statistics import mean_interval

ROWS, SCORED, STAGES = 4, 200, (10, 30, 100)
WEIGHTS, LOGITS = 1e-4, 1e-2  # learning rates


@dataclass(frozen=True)
class Arm:
    """Whether the sink is folded, and what learns."""

    folded: bool
    learns: Literal["everything", "b"]


ARMS = {
    "no fold, all weights": Arm(False, "everything"),
    "logit, all weights": Arm(True, "everything"),
    "logit, b alone": Arm(True, "b"),
}


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Causal softmax attention (rows without padding) with the score of key 0 set to `module.b` and its value to 0."""
    groups, tokens = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = scaling * query @ key.mT
    late = torch.arange(tokens) >= AFTER
    column = torch.where(late[:, None], module.b[None, :, None, None], scores[..., :1])
    scores = torch.cat([column, scores[..., 1:]], -1)
    scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1)
    kept = torch.cat([weights[..., :1].masked_fill(late[:, None], 0.0), weights[..., 1:]], -1)
    return (kept @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("constant_sink", attend)


def equipped(name: str, arm: Arm, made: Constants) -> Any:
    """The model of an arm; b is a parameter of every attention module."""
    model: Any = ss.load(name)
    model = model.to_llama() if hasattr(model, "to_llama") else model
    if arm.folded:
        for layer, b in zip(model.model.layers, made.logits[AFTER], strict=True):
            layer.self_attn.b = nn.Parameter(b[:, 0].clone())
        model.set_attn_implementation("constant_sink")
    return model


@torch.no_grad()
def losses(model: Any, rows: Tensor) -> Tensor:
    """Nats per token of each row, of the tokens that queries t ≥ 8 predict."""
    model.eval()
    logits = torch.cat([model(part, use_cache=False).logits[:, AFTER:-1] for part in rows.split(8)])
    return nn.functional.cross_entropy(logits.mT, rows[:, AFTER + 1 :], reduction="none").mean(1).double()


def against(costs: Tensor, reference: Tensor) -> list[float]:
    """The mean difference per text, with its 95 % interval."""
    mean = mean_interval((costs - reference).numpy())
    return [mean.value, mean.low, mean.high]


def tuned(name: str, arm: Arm, made: Constants, batches: Tensor, scored: Tensor, steps: int) -> dict[int, Tensor]:
    """An arm's losses before the first step and at each stage."""
    model = equipped(name, arm, made)
    found = {0: losses(model, scored)}
    if arm.folded:
        fold = FoldSink((0,), AFTER, constants=made, form="logit")
        plain = ss.load(name)
        with fold.applied(plain):
            torch.testing.assert_close(found[0], losses(plain, scored), atol=1e-4, rtol=1e-4)
    groups: dict[float, list[Tensor]] = {}
    for label, weight in model.named_parameters():
        rate = LOGITS if label.endswith(".b") else WEIGHTS
        weight.requires_grad_(arm.learns == "everything" or rate == LOGITS)
        if weight.requires_grad:
            groups.setdefault(rate, []).append(weight)
    optimizer = torch.optim.AdamW([{"params": each, "lr": rate} for rate, each in groups.items()], weight_decay=0.0)
    for step in range(1, steps + 1):
        model.train()
        rows = batches[(step - 1) * ROWS : step * ROWS]
        model(rows, labels=rows, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_([weight for each in groups.values() for weight in each], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step in STAGES:
            found[step] = losses(model, scored)
            print(f"  step {step}: {float(found[step].mean()):.4f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--steps", type=int, default=STAGES[-1])
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    title = Path(asked.model).name
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"fold_tuning_{title.partition('-')[0].lower()}.json"
    made = constants(ss.load(asked.model), texts(asked.model, TOKENS, CONSTANTS), (0,), AFTER)
    scored = texts(asked.model, TOKENS, SCORED, skip=CONSTANTS)
    batches = texts(asked.model, TOKENS, asked.steps * ROWS, skip=CONSTANTS + SCORED)
    about = {
        "command": f"python -m benchmarks.fold_tuning --model {title} --steps {asked.steps} --save",
        "model": title,
        "corpus": CORPUS,
        "tokens": TOKENS,
        "after": AFTER,
        "rows": ROWS,
        "scored": len(scored),
        "provenance": provenance(),
    }
    start, found = time.perf_counter(), {}
    for name, arm in ARMS.items():
        print(name, flush=True)
        found[name] = tuned(asked.model, arm, made, batches, scored, asked.steps)
        untouched, control = found["no fold, all weights"][0], found["no fold, all weights"]
        arms = {
            label: {
                str(step): {"nats": against(costs, untouched), "against_no_fold": against(costs, control[step])}
                for step, costs in each.items()
            }
            for label, each in found.items()
        }
        write_json(path, {**about, "seconds": round(time.perf_counter() - start), "arms": arms})
    print(json.dumps(arms, indent=1))


if __name__ == "__main__":
    main()
