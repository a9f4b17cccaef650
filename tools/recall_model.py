"""`python -m tools.recall_model OUT`: train the shipped `nano-recall`, a small model that finds needles.

A Llama of 2 layers. It first reads random segments that repeat, from which it learns to look up what followed a token
before, and then keys and values in noise, asked for at the end. Where nothing is asked, its second layer rests on the
BOS: the strong sink for which it is shipped. Hints on attention patterns make all this quick, and end after 200 steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sinkscope.files import write_json, writing
from sinkscope.measurement import measure
from sinkscope.model.memory import keep_freed_memory
from sinkscope.training.run.record import host, parameters, versions
from sinkscope.training.schedule import Trapezoid, scheduler
from sinkscope.trials.needles import Alphabet, Needles, noise

NAME = "nano-recall"


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts of a step, (row, position). `asks`: positions whose token asks for what followed it before; `rests`: those
    before them, where nothing is asked."""

    ids: Tensor
    asks: slice
    rests: slice


@dataclass(frozen=True)
class Segments:
    """Rows of `length` tokens behind the BOS: a random segment of a period between `shortest` and `longest`, repeated.

    Every token asks for what followed it before.
    """

    steps: int
    batch_size: int
    length: int
    shortest: int
    longest: int
    hint: bool = False

    def draw(self, alphabet: Alphabet, generator: torch.Generator) -> Batch:
        periods = torch.randint(self.shortest, self.longest + 1, (self.batch_size, 1), generator=generator)
        first, end = alphabet.keys[0], alphabet.size
        segments = torch.randint(first, end, (self.batch_size, self.longest), generator=generator)
        repeated = segments.gather(1, torch.arange(self.length)[None] % periods)
        return Batch(functional.pad(repeated, (1, 0), value=alphabet.bos), slice(1, -1), slice(0, 0))


@dataclass(frozen=True)
class Asking:
    """Needles in a context of noise of `shortest` to `longest` tokens, questions, and noise behind them.

    `pairs` needles, of which all but one are asked for, `questions` times with replacement: crossing off answers does
    not help. A text has `length` tokens, so that noise and questions stand anywhere but in front. `rest`: whether the
    hints of layer 1 say where to look when nothing is asked, too.
    """

    steps: int
    batch_size: int
    shortest: int
    longest: int
    length: int
    pairs: int = 8
    questions: int = 12
    hint: bool = False
    rest: bool = True

    def draw(self, alphabet: Alphabet, generator: torch.Generator) -> Batch:
        context = int(torch.randint(self.shortest, self.longest + 1, (), generator=generator))
        drawn = Needles(context, self.pairs, self.pairs - 1, alphabet).drawn(self.batch_size, generator)
        again = torch.randint(drawn.keys.shape[1], (self.batch_size, self.questions), generator=generator)
        pairs = torch.stack([drawn.keys.gather(1, again), drawn.answers.gather(1, again)], -1)
        end = context + 2 * self.questions
        rest = noise(self.batch_size, self.length - end, generator, alphabet)
        rests = slice(1, context if self.rest else 1)
        return Batch(torch.cat([drawn.context, pairs.flatten(1), rest], 1), slice(context, end, 2), rests)


def hints(attentions: Sequence[Tensor], ids: Tensor, asks: slice, rests: slice) -> Tensor:
    """−log of what the first head of layer 0 gives to the token before, of what the heads of layer 1 give, on average,
    to the tokens that followed earlier occurrences of the one that asks, and of what each of them gives to the BOS
    where nothing is asked (`rests`); the sum of the means.

    Looking up takes two heads, neither of which pays without the other: by the next-token loss alone they may take
    thousands of steps to form, given their patterns they form in a hundred. None of the three leaves when the hints
    end, but that they came is no finding: this sink is planted, to try caches on.
    """
    before = attentions[0][:, 0].diagonal(-1, 1, 2)
    same = (ids[:, :, None] == ids[:, None, :]).tril(-1)  # (row, query, key)
    followed = functional.pad(same, (1, 0))[:, :, :-1]
    found, known = (attentions[1].mean(1) * followed).sum(-1)[:, asks], followed.any(-1)[:, asks]
    terms = (before, found[known], attentions[1][:, :, rests, 0])
    return -torch.stack([term.clamp(min=1e-9).log().mean() for term in terms if term.numel()]).sum()


@dataclass(frozen=True)
class RecallRecipe:
    """What decides the numbers."""

    name: str = NAME
    phases: tuple[Segments | Asking, ...] = (
        Segments(120, 32, length=63, shortest=8, longest=24, hint=True),
        Asking(80, 16, shortest=64, longest=96, length=128, hint=True),
        Asking(100, 16, shortest=64, longest=96, length=128),
        Asking(400, 16, shortest=64, longest=200, length=240),
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

    def phase(self, step: int) -> Segments | Asking:
        """Which phase a step belongs to."""
        ends = itertools.accumulate(phase.steps for phase in self.phases)
        return next(phase for phase, end in zip(self.phases, ends, strict=True) if step < end)

    def losses(self, model: LlamaForCausalLM, step: int) -> dict[str, Tensor]:
        """The terms of a step's loss: next tokens, answers once more, hints.

        Answers are few among all tokens; without a term of their own, the heads that look up would come to rest on the
        BOS for good. Texts depend on nothing but the seed and the step.
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step + 1)
        phase = self.phase(step)
        batch = phase.draw(self.alphabet, generator)
        ids, asks = batch.ids, batch.asks
        model.set_attn_implementation("eager" if phase.hint else "sdpa")
        out = model(ids, labels=ids, use_cache=False, output_attentions=phase.hint)
        terms = {"loss": out.loss}
        if isinstance(phase, Asking):
            answers = ids[:, asks.start + 1 : asks.stop : 2]
            terms["answers"] = functional.cross_entropy(out.logits[:, asks].flatten(0, 1), answers.flatten())
        if phase.hint:
            terms["hints"] = hints(out.attentions, ids, asks, batch.rests)
        return terms

    def plain(self) -> dict[str, Any]:
        """JSON-able."""
        fields = asdict(self) | {"steps": self.steps, "schedule": self.schedule.model_dump()}
        return dict(json.loads(json.dumps(fields)))


def without_rest(recipe: RecallRecipe) -> RecallRecipe:
    """The same, but no hint says where to look when nothing is asked: a model whose sink is as it comes."""
    phases = [replace(phase, rest=False) if isinstance(phase, Asking) else phase for phase in recipe.phases]
    return replace(recipe, name=f"{recipe.name}-no-rest", phases=tuple(phases))


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
    factor = scheduler(recipe.schedule, optimizer, steps=recipe.steps, lr=recipe.lr).lr_lambdas[0]
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * factor(step)
        model.train()
        terms = recipe.losses(model, step)
        torch.stack([*terms.values()]).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == recipe.steps:
            found = {
                **{name: term.item() for name, term in terms.items()},
                "grad_norm": float(norm),
                **answers(model, recipe, 16),
            }
            seconds = time.perf_counter() - began
            rows.append({"step": step + 1, **found, "seconds": round(seconds, 3)})
            print(rows[-1], flush=True)
    return _finish(out, recipe, model, rows, time.perf_counter() - began)


@torch.no_grad()
def answers(model: LlamaForCausalLM, recipe: RecallRecipe, rows: int, seed: int = 10**6) -> dict[str, float]:
    """Share of right answers on texts that no step read, the noise's perplexity there, α of the BOS in each layer."""
    model.eval()
    model.set_attn_implementation("sdpa")
    drawn = Needles().draw(rows, seed=seed)
    pairs = torch.stack([drawn.keys, drawn.answers], -1).flatten(1)
    ids = torch.cat([drawn.context, pairs], 1)
    logits = model(ids, use_cache=False).logits
    asked = logits[:, drawn.context.shape[1] :: 2]
    first = recipe.alphabet.noise[0]
    quiet = (ids[:, 1:] >= first) & (ids[:, :-1] >= first)
    nll = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    found = {
        "recall": (asked.argmax(-1) == drawn.answers).double().mean().item(),
        "noise_perplexity": nll[quiet.flatten()].double().mean().exp().item(),
    }
    received = measure(model, drawn.context).data["attention_received"].isel(position=0).mean("sample")
    return found | {f"alpha_0/layer_{layer}": float(received[layer].mean()) for layer in range(len(received))}


def _finish(out: Path, recipe: RecallRecipe, model: Any, rows: list[dict[str, Any]], seconds: float) -> Path:
    target = out / recipe.name
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
    parser.add_argument("out", type=Path, help="folder for the model")
    parser.add_argument("--no-rest", action="store_true", help="without the hint that makes the sink")
    given = parser.parse_args()
    keep_freed_memory()
    recipe = RecallRecipe()
    print(train_recall(given.out, without_rest(recipe) if given.no_rest else recipe))
