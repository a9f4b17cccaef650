"""Quantized caches: ours beside transformers' `QuantizedCache` (quanto, hqq), memory, predictions and time.

- Predictions: `nano` on 16 texts of 128 tokens; 64 are read at once, the others one at a time. KL(full ‖ arm) a token,
  with its 95 % interval over texts, and the bytes that a text holds behind the context and at its end. Ours
  is KIVI: keys over a channel of 32 tokens, values over a token, without a window; theirs has groups of 64 (its
  default), along each axis that works, and rounds anew every 32 tokens, or every 128 (its default). At nano's 32
  channels a head, both take their bits and one more a number. Ours is held against the best of theirs among those that
  hold no fewer bytes, at both places; where its bytes are more, that shows in the figure.
- Memory: bytes against the formula: codes, 16 bits for each step and lower end, open tokens as they are.
- Time of a token: a Llama of 8 layers × 512 with 8 heads of 64, 1,024 tokens stored, batch 1, fp32, one thread. By
  default all blocks are decoded for each token, which reads the codes and writes as many numbers as a full cache holds;
  torch has no operation that attends to codes, so that is the floor of a cache that saves memory. `keep_decoded`, as in
  trials, decodes each block once and saves none.
- Sparing: the weight of `nano`'s sink multiplied by γ in every head, KL(full ‖ quantized) of that model, 2 bits,
  simulated; share of it that sparing the sink recovers, and three random tokens in its place.
- Dose: the same with a range for each head alone, on 96 texts.

Needs the extra `quantize`. Run: python -m benchmarks.quantized_cache [--save]
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache, LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from benchmarks.memory import keep
from benchmarks.sides import Figure, at_most, beside, report
from sinkscope.caches.sizes import held_bytes
from sinkscope.data import build_inputs
from sinkscope.hooks import Editor, attention_layers, editing
from sinkscope.model import load_tokenizer
from sinkscope.quantization import Grid, QuantizeCache, effective_bits, quantized_cache
from sinkscope.sinks import Choice, First, Rows, Tokens
from sinkscope.statistics import ratio_interval
from sinkscope.trials import Arm, ThroughCache, cached, feeding, run, speeds, transformers_quantized, unchanged

TEXTS, TOKENS, CONTEXT, BATCH, GROUP = 16, 128, 64, 16, 32
STORED, STEPS, ROUNDS = 1024, 34, 1
WINDOW = 16  # with blocks of 32: 16 to 47 open tokens, on average as many as theirs leave between flushes of 128
GAMMAS = (1, 4, 16, 64)
CONTROLS = 3
DOSE_TEXTS = 96
THEIRS: tuple[tuple[Any, int, tuple[int, ...]], ...] = (
    ("quanto", 2, (0,)),
    ("quanto", 4, (0,)),
    ("hqq", 2, (0, 1)),
    ("hqq", 3, (0,)),  # along axis 1 its codes of 3 bits do not come back
    ("hqq", 4, (0, 1)),
)
Details = dict[str, Any]


def nano() -> LlamaForCausalLM:
    return ss.load("nano").to_llama().eval()


def python_text(texts: int = TEXTS) -> Tensor:
    return build_inputs(
        "natural", tokenizer=load_tokenizer("nano"), vocab_size=2048, tokens=TOKENS, samples=texts, seed=0, bos="add"
    ).input_ids


def ours(bits: int, protect: Choice | Tokens | None = None, name: str = "", window: int = 0, kept: bool = False) -> Arm:
    grids = Grid(bits, "channel", group=GROUP), Grid(bits, "token")

    def make(model: nn.Module) -> Cache:
        cache = quantized_cache(model, *grids, protect, window)
        return cache.keep_decoded() if kept else cache

    return cached(name or f"ours {bits} bits", make)


def theirs() -> list[tuple[str, int, int, Arm]]:
    """Backend, bits, flush, arm."""
    found = []
    for backend, bits, axes in THEIRS:
        for axis in axes:
            for residual in (32, 128):
                name = f"{backend} {bits} bits, axis {axis}, flush {residual}"
                made = transformers_quantized(backend, bits, group=64, residual=residual, axis=axis, name=name)
                found.append((backend, bits, residual, made))
    return found


def losses(model: nn.Module, ids: Tensor, arms: list[Arm], details: Details) -> dict[str, dict[str, float]]:
    """KL and bytes of every arm that runs; which do not is noted."""
    reading, runs = ThroughCache(CONTEXT), []
    for one in arms:
        try:
            run(model, ids[:BATCH, : CONTEXT + 2], [one], reading=reading, batch_size=BATCH)
            runs.append(one)
        except (RuntimeError, ValueError) as error:  # groups that do not divide, codes that do not come back
            details.setdefault("does not run", {})[one.name] = str(error).splitlines()[0]
    trial = run(model, ids, runs, reading=reading, batch_size=BATCH)
    found = {}
    for one in [unchanged(), *runs]:
        kl, lost = trial.cost(one.name), trial.cost(one.name, "nats")
        with feeding(model, one, ids[:BATCH]) as feed:
            for start, stop in [(0, CONTEXT), *((t, t + 1) for t in range(CONTEXT, ids.shape[1] - 1))]:
                feed.read(ids[:BATCH, start:stop])
            at_end = held_bytes(feed.cache) / len(ids[:BATCH])
        found[one.name] = {"kl": kl.value, "kl_low": kl.low, "kl_high": kl.high}
        found[one.name] |= {"nats": lost.value, "nats_low": lost.low, "nats_high": lost.high}
        found[one.name] |= {"held": float(trial.data["bytes"].sel(arm=one.name)), "held_at_end": at_end}
    return found


def predictions(details: Details) -> list[Figure]:
    model, ids = nano(), python_text()
    pairs = theirs()
    own = {bits: ours(bits) for bits in (2, 3, 4)}
    spares = {bits: ours(bits, First(1), f"ours {bits} bits, sink protected") for bits in (2, 3, 4)}
    windows = [ours(bits, None, f"ours {bits} bits, window {WINDOW}", WINDOW) for bits in own]
    every = losses(model, ids, [*own.values(), *spares.values(), *windows, *(made for *_, made in pairs)], details)
    details["nano, predictions and bytes a text"] = every
    figures = []
    for backend, bits, _ in THEIRS:
        for residual in (32, 128):
            same = [
                made.name for b, n, r, made in pairs if (b, n, r) == (backend, bits, residual) and made.name in every
            ]
            mine = every[own[bits].name]
            fair = [
                name for name in same if all(every[name][place] >= mine[place] for place in ("held", "held_at_end"))
            ]
            if not same:
                continue
            best = min(fair or same, key=lambda name: every[name]["kl"])
            what = f"{bits} bits, flush {residual}: ours / {best}"
            figures.append(at_most(f"KL at {what}", mine["kl"], every[best]["kl"], 1.0, "nats"))
            figures += [
                at_most(f"bytes {when}, {what}", mine[place], every[best][place], 1.0, "B")
                for when, place in (("behind the context", "held"), ("at the end", "held_at_end"))
            ]
    return figures


def large() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=1 << 14, **sizes)).eval()


@torch.no_grad()
def memory() -> list[Figure]:
    model, figures = large(), []
    ids = torch.randint(0, 512, (1, STORED + 24), generator=torch.Generator().manual_seed(1))
    for bits in (2, 3, 4, 8):
        keys, values = Grid(bits, "channel", group=GROUP), Grid(bits, "token")
        cache = quantized_cache(model, keys, values, First(1))
        for start, stop in [(0, STORED), *((t, t + 1) for t in range(STORED, ids.shape[1]))]:
            model(ids[:, start:stop], past_key_values=cache, logits_to_keep=1)
        closed = ids.shape[1] // GROUP * GROUP
        stored = effective_bits(keys, (GROUP, 64)) + effective_bits(values, (GROUP, 64))
        formula = 8 * 512 * (closed * stored / 8 + 2 * 4 * (ids.shape[1] - closed + 1))
        figures.append(at_most(f"bytes at {bits} bits / the formula", held_bytes(cache), formula, 1.1, "B"))
        if bits == 4:
            whole = 2 * 8 * 512 * 4 * ids.shape[1]
            figures.append(beside("bytes at 4 bits / full precision", held_bytes(cache), whole, "B"))
    return figures


def times() -> list[Figure]:
    torch.set_num_threads(1)
    ids = torch.randint(0, 512, (1, STORED + STEPS), generator=torch.Generator().manual_seed(1))
    sides = {f"ours {bits}": ours(bits) for bits in (2, 3, 4)}
    sides |= {f"kept {bits}": ours(bits, kept=True) for bits in (2, 3, 4)}
    sides |= {f"{backend} {bits}": transformers_quantized(backend, bits) for backend, bits, _ in THEIRS}
    arms = [unchanged(), *(replace(one, name=name) for name, one in sides.items())]
    found = speeds(large(), ids, arms, context=STORED, rounds=ROUNDS)
    seconds = {name: speed.step for name, speed in found.items()}
    figures = []
    for backend, bits, _ in THEIRS:
        what = f"a token behind {STORED}, {bits} bits: ours / {backend}, its defaults"
        figures.append(at_most(what, seconds[f"ours {bits}"], seconds[f"{backend} {bits}"], 1.0))
    for bits in (2, 3, 4):
        what = f"a token behind {STORED}, {bits} bits: ours / the full cache"
        figures.append(beside(what, seconds[f"ours {bits}"], seconds["full"]))
        what = f"a token behind {STORED}, {bits} bits: ours, decoded numbers kept / the full cache"
        figures.append(at_most(what, seconds[f"kept {bits}"], seconds["full"], 1.1))
    return figures


class Weighed(Editor):
    """The sink's weight multiplied by γ in every head: log γ on its scores."""

    def __init__(self, model: nn.Module, gamma: float) -> None:
        self.modules, self.gamma = set(attention_layers(model)), gamma

    def edits(self, module: nn.Module) -> bool:
        return module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        length = arguments["key"].shape[2]
        mask = torch.zeros(1, 1, length, length).masked_fill_(torch.ones(length, length).triu(1).bool(), -math.inf)
        mask[..., 0] += math.log(self.gamma)
        return arguments | {"attention_mask": mask.clamp(min=torch.finfo(torch.float32).min)}


@torch.no_grad()
def sparing(details: Details, texts: int = TEXTS, only: str = "") -> list[Figure]:
    model, ids = nano(), python_text(texts)
    layers = list(attention_layers(model))
    shapes = {
        "per token": (Grid(2, "token"), Grid(2, "token")),
        "KIVI": (Grid(2, "channel", group=GROUP), Grid(2, "token")),
        "per head": (Grid(2, "head"), Grid(2, "head")),
    }
    shapes = {name: grids for name, grids in shapes.items() if only in name}
    sink = ss.find_tokens(model, ids, First(1))
    texts_of = Rows.plain([ids.shape[1]] * len(ids))
    controls = [sink.random(np.random.default_rng(seed), texts_of) for seed in range(CONTROLS)]
    chosen: dict[str, Tokens | None] = {"nothing": None, "sink": sink.on(texts_of)}
    chosen |= {f"random {number}": control for number, control in enumerate(controls)}
    shares: dict[str, list[float]] = {name: [] for name in shapes}
    for gamma in GAMMAS:
        with editing(Weighed(model, gamma)):
            reference = [model(part).logits.double().log_softmax(-1) for part in ids.split(BATCH)]
            weight = ss.measure(model, ids[:BATCH]).data["attention_received"].sel(position=0)
            details[f"γ {gamma}: mean α of the sink, last layer"] = float(weight.mean("sample")[-1].mean())
            for name, grids in shapes.items():
                rows = {key: diverged(model, ids, reference, grids, one) for key, one in chosen.items()}
                nothing = rows["nothing"]
                row = {"KL, nothing protected": float(nothing.mean())}
                for key in list(rows)[1:]:
                    row[f"recovered, {key}"] = float(1 - rows[key].mean() / nothing.mean())
                low, high = of_shares(nothing, rows["sink"])
                details[f"γ {gamma}, {name}, 2 bits"] = row | {"from": low, "to": high}
                shares[name].append(row["recovered, sink"])
                print(name, gamma, {key: round(value, 4) for key, value in row.items()}, flush=True)
    assert len(layers) == model.config.num_hidden_layers
    figures = []
    for name, found in shares.items():
        for (before, after), (low, high) in zip(pairwise(found), pairwise(GAMMAS), strict=True):
            what = f"{name}: recovered by sparing the sink at γ {low} / at γ {high}"
            figures.append(at_most(what, before, after, 1.0, "share"))
    return figures


def diverged(
    model: nn.Module, ids: Tensor, reference: list[Tensor], grids: tuple[Grid, Grid], protect: Tokens | None
) -> np.ndarray:
    """KL(full ‖ quantized), a number for each text; of tokens after the first, which one arm protects."""
    found = []
    for number, (part, full_logs) in enumerate(zip(ids.split(BATCH), reference, strict=True)):
        place = slice(number * BATCH, number * BATCH + len(part))
        with QuantizeCache(*grids, None if protect is None else protect.part(place)).applied(model):
            logs = model(part).logits.double().log_softmax(-1)
        found.append((full_logs.exp() * (full_logs - logs)).sum(-1)[:, 1:].mean(1))
    return torch.cat(found).numpy()


def of_shares(nothing: np.ndarray, protected: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of 1 − mean(protected) / mean(nothing), over texts."""
    share = ratio_interval(protected, nothing)
    return 1 - share.high, 1 - share.low


PARTS: dict[str, Callable[[Details], list[Figure]]] = {
    "predictions": predictions,
    "memory": lambda _: memory(),
    "times": lambda _: times(),
    "sparing": sparing,
    "dose": lambda details: sparing(details, DOSE_TEXTS, "per head"),
}

if __name__ == "__main__":
    keep()
    warnings.simplefilter("ignore")
    details: Details = {}
    figures: list[Figure] = []
    for name in [name for name in PARTS if name in sys.argv] or list(PARTS):
        figures += PARTS[name](details)
        report("quantized_cache", figures, details)  # so far: each part takes minutes
    for what, numbers in details.items():
        print(what, numbers)
