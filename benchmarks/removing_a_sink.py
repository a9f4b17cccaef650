"""What moves a sink that a model was trained with, and how many steps it takes: operations attached and trained.

`--model NAME`, and the docstrings of the corpus `python:prose`. A step reads the first 128 tokens of 2 documents of the
training part; measured are those of 16 documents of the validation part. AdamW without decay, gradients clipped at 1,
forward passes under bfloat16 autocast, weights and measurements in fp32. What an operation adds learns at a rate of its
own: 0.1 for its logits and biases, 1e-3 for matrices; the model's weights at 1e-4, those of LoRA (rank 16 on every
linear map but the unembedding, α = 16) at 5e-4. LoRA is merged before it is measured.

Figures before training and after 100 and 300 steps: negative log-likelihood, sink rate (ε = 0.3) and mean
attention of position 0, its share of all attention to tokens, mass of slots, the largest ratio over depths of the norm
at position 0 to that of the others, the largest ratio of maximum to median that a linear map reads, and what rounding
to 8 bits what linear maps read costs, with a range per text and one per token: KL to the arm itself, not rounded.
Weights are left as they are, since those of GGUF files lie on a 4-bit grid before training.

Arms run in turns up to each of these steps; what was measured is written at once, states are kept in `--work FOLDER`,
and a run that was stopped goes on.

Run: python -m benchmarks.removing_a_sink [--model NAME] [--work FOLDER] [--steps 300] [--save]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.data.corpora import load_corpus, shuffled, split_names
from sinkscope.files import write_json
from sinkscope.quantization import hazards, linear_maps
from sinkscope.statistics import mean_interval
from sinkscope.trials import scheme_trial

TOKENS, ROWS, HELD, STAGES, EPSILON = 128, 2, 16, (100, 300), 0.3
CORPUS, SHARE = "python:prose", 0.02
WEIGHTS, LOGITS, MATRICES, LORA = 1e-4, 0.1, 1e-3, 5e-4  # learning rates
RANK = 16
ROUNDED = {"a8-tensor": "w16a8-tensor", "a8-token": "w16a8-token"}


@dataclass(frozen=True)
class Arm:
    """What is attached, how it starts, and what learns."""

    operation: str | None
    learns: Literal["operation", "everything", "LoRA"]
    start: Literal["unchanged", "as_is"] = "unchanged"


ARMS = {
    "sink_logit, closed, b alone": Arm("sink_logit", "operation"),
    "sink_logit, closed, all weights": Arm("sink_logit", "everything"),
    "sigmoid, all weights": Arm("sigmoid", "everything"),
    "gated_elementwise, all weights": Arm("gated_elementwise", "everything"),
    "sink_logit, b = 0, b alone": Arm("sink_logit", "operation", "as_is"),
    "sink_logit, b = 0, all weights": Arm("sink_logit", "everything", "as_is"),
    "softmax, all weights": Arm(None, "everything"),
    "sink_logit, b = 0, LoRA": Arm("sink_logit", "LoRA", "as_is"),
    "sigmoid, LoRA": Arm("sigmoid", "LoRA"),
    "gated_elementwise, LoRA": Arm("gated_elementwise", "LoRA"),
    "softmax, LoRA": Arm(None, "LoRA"),
}


def texts(tokenizer: Any, steps: int) -> tuple[Tensor, Tensor]:
    """Held-out rows, and the rows of all steps: the first tokens of so many documents of either part."""
    corpus = load_corpus(CORPUS)
    split = split_names(corpus.names, SHARE, 0)

    def rows(names: tuple[str, ...], count: int) -> Tensor:
        entries, found = {entry.name: entry for entry in corpus.entries}, []
        for name in shuffled(names, 0):
            text = entries[name].read()
            ids = tokenizer(text[: 12 * TOKENS])["input_ids"] if len(text) > 3 * TOKENS else []
            if len(ids) >= TOKENS:
                found.append(ids[:TOKENS])
            if len(found) == count:
                break
        return torch.tensor(found)

    training = rows(split.train, steps * ROWS)
    return rows(split.validation, HELD), training.repeat(math.ceil(steps * ROWS / len(training)), 1)


def equipped(model: str, arm: Arm, held: Tensor) -> Any:
    """The model with the arm's operation; a lab model as a Llama, to which operations are attached."""
    loaded: Any = ss.load(model)
    loaded = loaded.to_llama() if hasattr(loaded, "to_llama") else loaded
    if arm.operation is not None:
        ss.attach(loaded, arm.operation, start=arm.start, seed=0, inputs=held)
    return loaded


def with_lora(model: Any, arm: Arm) -> Any:
    """The model with adapters on all linear maps but the unembedding, and the operation trained in full."""
    maps = [path for path in linear_maps(model) if ".operation." not in path and path != "lm_head"]
    whole = None if arm.operation is None else ["operation"]
    return get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=maps, modules_to_save=whole))


def optimizer_of(model: Any, arm: Arm) -> torch.optim.Optimizer:
    """AdamW with the rates of `WEIGHTS`, `LOGITS` and `MATRICES`; what does not learn is frozen."""
    if arm.learns == "operation":
        ss.trainable_only(model, "operation")
    groups: dict[float, list[Tensor]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            added = LOGITS if weight.ndim < 2 else MATRICES
            rate = LORA if ".lora_" in name else added if ".operation." in name else WEIGHTS
            groups.setdefault(rate, []).append(weight)
    return torch.optim.AdamW([{"params": each, "lr": rate} for rate, each in groups.items()], weight_decay=0.0)


@torch.no_grad()
def seen(model: Any, held: Tensor) -> dict[str, Any]:
    """What is measured of a model on the held-out rows; NLL and rate with their intervals over rows."""
    model.eval()
    logits = torch.cat([model(row[None], use_cache=False).logits[:, :-1] for row in held])
    nll = torch.nn.functional.cross_entropy(logits.mT, held[:, 1:], reduction="none").mean(1)
    loss = mean_interval(nll.double().numpy())
    measured = ss.measure(model, held, observers=["AttentionReceived", "SlotReceived", "HiddenNorms"])
    received = measured.data["attention_received"]
    mass = (received * torch.arange(TOKENS, 0, -1).numpy()).sum("sample")  # over queries, layer × head × position
    rate, slots = measured.sink_rate_interval(0, EPSILON), measured.data.get("slot_received")
    costs = {
        name: scheme_trial(model, held, scheme, {}, 0, batch_size=8).cost(scheme) for name, scheme in ROUNDED.items()
    }
    return {
        "nll": [loss.value, loss.low, loss.high],
        "sink_rate": [rate.value, rate.low, rate.high],
        "received": float(received.sel(position=0).mean()),
        "share": float((mass.sel(position=0) / mass.sum("position")).mean()),
        "slots": 0.0 if slots is None else float(slots.mean()),
        "norm_ratio": float(measured.hidden_norm_ratio().max()),
        "max_median": float(hazards(model, held).sites["max_median"].max()),
        **{name: [cost.value, cost.low, cost.high] for name, cost in costs.items()},
    }


def advance(name: str, model: str, held: Tensor, rows: Tensor, until: int, work: Path, found: dict[str, Any]) -> None:
    """Train an arm from where it stands up to a step, and measure it; its state is kept."""
    arm, kept = ARMS[name], work / f"{name}.pt"
    equipped_model, done = equipped(model, arm, held), 0
    if not kept.is_file():
        found["0"] = seen(equipped_model, held)
    if arm.learns == "LoRA":
        equipped_model = with_lora(equipped_model, arm)
    optimizer = optimizer_of(equipped_model, arm)
    if kept.is_file():
        state = torch.load(kept, weights_only=True)
        equipped_model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    start = time.perf_counter()
    learning = [weight for group in optimizer.param_groups for weight in group["params"]]
    equipped_model.train()
    for step in range(done, until):
        batch = rows[step * ROWS : (step + 1) * ROWS]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = equipped_model(batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - start
    state = {"model": equipped_model.state_dict(), "optimizer": optimizer.state_dict(), "step": until}
    torch.save(state, kept)
    if arm.learns == "LoRA":
        equipped_model = equipped_model.merge_and_unload()
    found[str(until)] = seen(equipped_model, held) | {"seconds_a_step": seconds / max(1, until - done)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    parser.add_argument("--steps", type=int, default=STAGES[-1])
    parser.add_argument("--arms", help="some of the arms: parts of their names, with semicolons between")
    parser.add_argument("--at-most", type=int, default=1000, help="stop after so many stages of arms, to go on later")
    asked = parser.parse_args()
    held, rows = texts(ss.model.load_tokenizer(asked.model), STAGES[-1])
    work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    work.mkdir(parents=True, exist_ok=True)
    title = Path(asked.model).name
    name = "removing_a_sink_nano.json" if title == "nano" else "removing_a_sink.json"
    path = (REAL if asked.save else work) / name
    result = json.loads(path.read_text()) if path.is_file() else {}
    result = result if result.get("model") == title else {"arms": {}}
    chosen = [name for name in ARMS if not asked.arms or any(part in name for part in asked.arms.split(";"))]
    stages = [(until, name) for until in STAGES if until <= asked.steps for name in chosen]
    for until, name in [one for one in stages if str(one[0]) not in result["arms"].get(one[1], {})][: asked.at_most]:
        found = result["arms"].setdefault(name, {})
        advance(name, asked.model, held, rows, until, work, found)
        print(f"{name}, step {until}: {found[str(until)]}", flush=True)
        command = f"python -m benchmarks.removing_a_sink --model {title} --work FOLDER --save"
        about = {
            "model": title,
            "corpus": CORPUS,
            "rows": ROWS,
            "tokens": TOKENS,
            "held_out": len(held),
            "epsilon": EPSILON,
        }
        write_json(path, {"command": command, **about, "provenance": provenance(), "arms": result["arms"]})


if __name__ == "__main__":
    main()
