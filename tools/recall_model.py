"""`python -m tools.recall_model OUT`: train the shipped `nano-recall`, a small model that finds needles.

A Llama of 2 layers. It first reads random segments that repeat, from which it learns to look up what followed a token
before, and then keys and values in noise, asked for at the end. Where nothing is asked, its second layer rests on the
BOS: the strong sink for which it is shipped. Interrupted, it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sinkscope.evaluate.needles import Alphabet, Needles
from sinkscope.files import write_json, writing
from sinkscope.probes import measure
from sinkscope.training.machine import keep_freed_memory
from sinkscope.training.run.record import host, parameters, versions
from sinkscope.training.schedule import Trapezoid

NAME = "nano-recall"
CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Segments:
    """Rows of `length` tokens behind the BOS: a random segment of a period between `shortest` and `longest`, repeated.

    Short periods first: copying what followed a token before pays at once, and the heads that do it form in a few
    hundred steps.
    """

    steps: int
    batch_size: int
    length: int
    shortest: int
    longest: int

    def rows(self, alphabet: Alphabet, generator: torch.Generator) -> Tensor:
        periods = torch.randint(self.shortest, self.longest + 1, (self.batch_size, 1), generator=generator)
        first, end = alphabet.keys[0], alphabet.size
        segments = torch.randint(first, end, (self.batch_size, self.longest), generator=generator)
        repeated = segments.gather(1, torch.arange(self.length)[None] % periods)
        return torch.nn.functional.pad(repeated, (1, 0), value=alphabet.bos)


@dataclass(frozen=True)
class Asking:
    """Needles in noise, and `questions` behind them, drawn with replacement: crossing off answers does not help."""

    steps: int
    batch_size: int
    questions: int
    needles: Needles

    def rows(self, alphabet: Alphabet, generator: torch.Generator) -> Tensor:
        drawn = self.needles.drawn(self.batch_size, generator)
        again = torch.randint(drawn.keys.shape[1], (self.batch_size, self.questions), generator=generator)
        pairs = torch.stack([drawn.keys.gather(1, again), drawn.answers.gather(1, again)], -1)
        return torch.cat([drawn.context, pairs.flatten(1)], 1)


@dataclass(frozen=True)
class RecallRecipe:
    """What decides the numbers."""

    name: str = NAME
    phases: tuple[Segments | Asking, ...] = (
        Segments(300, 32, length=47, shortest=4, longest=12),
        Segments(150, 16, length=127, shortest=8, longest=60),
        Asking(150, 16, questions=12, needles=Needles(length=96, asked=7)),
        Asking(450, 16, questions=12, needles=Needles(asked=7)),
    )
    lr: float = 3e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    schedule: Trapezoid = field(default_factory=lambda: Trapezoid(warmup=30, decay=0.2))
    seed: int = 0
    alphabet: Alphabet = field(default_factory=Alphabet)
    model: dict[str, Any] = field(
        default_factory=lambda: {
            "hidden_size": 128,
            "intermediate_size": 336,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "initializer_range": 0.05,
        }
    )

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def build(self) -> LlamaForCausalLM:
        """The model with its first weights."""
        torch.manual_seed(self.seed)
        alphabet = self.alphabet
        ids = {"vocab_size": alphabet.size, "bos_token_id": alphabet.bos, "pad_token_id": alphabet.pad}
        return LlamaForCausalLM(LlamaConfig(**self.model, **ids, eos_token_id=None))

    def batch(self, step: int) -> Tensor:
        """The texts of a step, (batch, position), which depend on nothing but the seed and the step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step + 1)
        ends = itertools.accumulate(phase.steps for phase in self.phases)
        phase = next(phase for phase, end in zip(self.phases, ends, strict=True) if step < end)
        return phase.rows(self.alphabet, generator)

    def plain(self) -> dict[str, Any]:
        """JSON-able."""
        fields = asdict(self) | {"steps": self.steps, "schedule": self.schedule.model_dump()}
        return dict(json.loads(json.dumps(fields)))


def tokenizer_of(alphabet: Alphabet) -> PreTrainedTokenizerFast:
    """Words between blanks, each an id; the BOS before every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: identity for identity, word in enumerate(alphabet.words())}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", pad_token="<pad>", unk_token="<unk>", add_bos_token=True
    )


def train_recall(out: Path, recipe: RecallRecipe) -> Path:
    """Train and save with tokenizer, record and log, as shipped models are; return where."""
    out.mkdir(parents=True, exist_ok=True)
    model = recipe.build()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=True
    )
    rows, start, before = _resumed(out / CHECKPOINT, model, optimizer)
    began = time.perf_counter() - before
    for step in range(start, recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.schedule.rate(step, steps=recipe.steps, lr=recipe.lr)
        ids = recipe.batch(step)
        model.train()
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == recipe.steps:
            found = {"loss": loss.item(), "grad_norm": float(norm), **answers(model, recipe, 16)}
            seconds = time.perf_counter() - began
            rows.append({"step": step + 1, **found, "seconds": round(seconds, 3)})
            print(rows[-1], flush=True)
        if (step + 1) % 100 == 0:
            _save(out / CHECKPOINT, model, optimizer, rows, step + 1, time.perf_counter() - began)
    return _finish(out, recipe, model, rows, time.perf_counter() - began)


@torch.no_grad()
def answers(model: LlamaForCausalLM, recipe: RecallRecipe, rows: int, seed: int = 10**6) -> dict[str, float]:
    """Share of right answers on texts that no step read, the noise's perplexity there, α of the BOS in each layer."""
    model.eval()
    drawn = Needles().draw(rows, seed=seed)
    pairs = torch.stack([drawn.keys, drawn.answers], -1).flatten(1)
    ids = torch.cat([drawn.context, pairs], 1)
    logits = model(ids, use_cache=False).logits
    asked = logits[:, drawn.context.shape[1] :: 2]
    first = recipe.alphabet.noise[0]
    quiet = (ids[:, 1:] >= first) & (ids[:, :-1] >= first)
    nll = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    found = {
        "recall": (asked.argmax(-1) == drawn.answers).double().mean().item(),
        "noise_perplexity": nll[quiet.flatten()].double().mean().exp().item(),
    }
    received = measure(model, drawn.context).data["attention_received"].isel(position=0).mean("sample")
    return found | {f"alpha_0/layer_{layer}": float(received[layer].mean()) for layer in range(len(received))}


def _resumed(path: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[dict[str, Any]], int, float]:
    if not path.exists():
        return [], 0, 0.0
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["rows"], kept["step"], kept["seconds"]


def _save(path: Path, model: Any, optimizer: Any, rows: list[dict[str, Any]], step: int, seconds: float) -> None:
    with writing(path) as draft:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "rows": rows, "step": step, "seconds": seconds}, draft)


def _finish(out: Path, recipe: RecallRecipe, model: Any, rows: list[dict[str, Any]], seconds: float) -> Path:
    target = out / NAME
    model.to(torch.bfloat16).float()  # as it will be loaded
    found = answers(model, recipe, 256, seed=2 * 10**6)
    record = {
        "recipe": recipe.plain(),
        "seed": recipe.seed,
        "parameters": parameters(model),
        "host": host(torch.device("cpu")),
        "status": "finished",
        "step": recipe.steps,
        "seconds": round(seconds, 1),
        "results": found,
        "versions": versions(),
    }
    with writing(target) as draft:
        model.to(torch.bfloat16).save_pretrained(draft)
        tokenizer_of(recipe.alphabet).save_pretrained(draft)
        write_json(draft / "record.json", record)
        (draft / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for checkpoints, and for the model at the end")
    given = parser.parse_args()
    keep_freed_memory()
    print(train_recall(given.out, RecallRecipe()))
