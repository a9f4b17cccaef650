"""What dropping keys does to predictions: 20,000 tokens of a stream, and sinks that stand elsewhere than in front.

- `nano` on a python file that it never saw: the full cache beyond the lengths of its training, and streams of 128 keys.
- `nano-recall` on its own noise, whose perplexity cannot be below 4: with no sink, one, four, and with unturned ones.
- `nano` with its BOS at places 0, 3 and 6: SnapKV and KeyDiff, 96 tokens cut to 16, the last 8 among them, 32 tokens
  scored, 200 texts; protected is the measured sink, what is one online, the first 1 or 4 tokens, or a random place. The
  same of `nano-recall`. Differences are paired by text.

Intervals are 95 %, Student's t, over blocks of 500 tokens of a stream, over texts otherwise.

Run: python -m benchmarks.cache_quality [--save]
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

import sinkscope as ss
from benchmarks.sides import Figure, at_least, at_most, report
from sinkscope.caches import Protect, StreamingCache, evicting
from sinkscope.caches.policies import POLICIES
from sinkscope.data import build_inputs
from sinkscope.model import load_tokenizer
from sinkscope.sinks import First, Measured, Online, Positions
from sinkscope.statistics import mean_interval
from sinkscope.trials import Arm, ThroughCache, Trial, noise, run

TOKENS, BLOCK, CHUNK = 20_000, 500, 128
FULL = 4096  # tokens that the full cache reads
CONTEXT, KEPT, RECENT, SCORED, TEXTS = 96, 16, 8, 32, 200
MEASURED = 32  # texts in which sinks are measured, which are not scored
PLACES = (0, 3, 6)  # of the BOS; the first four tokens contain the second one, not the third
STREAMS = {"0 + 128": (0, 128, "cache"), "1 + 127": (1, 127, "cache"), "4 + 124": (4, 124, "cache")}
UNTURNED = {"1 + 127, not turned": (1, 127, "original"), "4 + 124, not turned": (4, 124, "original")}

Details = dict[str, dict[str, float]]


def llama(name: str) -> nn.Module:
    model = ss.load(name)
    return model.to_llama().eval() if hasattr(model, "to_llama") else model


def python_text() -> Tensor:
    return build_inputs(
        "natural", tokenizer=load_tokenizer("nano"), vocab_size=2048, tokens=TOKENS + 1, samples=1, seed=0
    ).input_ids


def filler() -> Tensor:
    ids = noise(1, TOKENS, torch.Generator().manual_seed(0))
    return torch.nn.functional.pad(ids, (1, 0), value=0)


@torch.no_grad()
def streamed(model: nn.Module, ids: Tensor, sinks: int, window: int, distance: str) -> Tensor:
    """−log p of every token behind the first, each predicted as if the tokens came one by one."""
    cache = StreamingCache(model, sinks=sinks, window=window, distance=distance)
    logits = (output.logits for output in cache.read(model, ids[:, :-1], chunk=CHUNK))
    parts = [part.double().log_softmax(-1) for part in logits]
    return -torch.cat(parts, 1).gather(2, ids[:, 1:, None])[0, :, 0]


@torch.no_grad()
def full(model: nn.Module, ids: Tensor) -> Tensor:
    """The same with everything kept, for the first tokens of the text."""
    cache, parts = DynamicCache(config=model.config), []
    for start in range(0, FULL, CHUNK):
        places = torch.arange(start, start + CHUNK)[None]
        part = ids[:, start : start + CHUNK]
        parts.append(model(part, past_key_values=cache, position_ids=places).logits.double().log_softmax(-1))
    return -torch.cat(parts, 1).gather(2, ids[:, 1 : FULL + 1, None])[0, :, 0]


def perplexity(nll: Tensor, block: int = BLOCK) -> dict[str, float]:
    """exp of the mean, and of the ends of its interval over blocks."""
    means = nll[: len(nll) // block * block].view(-1, block).mean(1)
    found = mean_interval(means.numpy())
    ends = {"low": math.exp(found.low), "high": math.exp(found.high)} if len(means) > 1 else {}  # one block has none
    return {"perplexity": math.exp(nll.mean()), **ends}


def streams(details: Details) -> list[Figure]:
    nano, recall, text, quiet = llama("nano"), llama("nano-recall"), python_text(), filler()
    whole = full(nano, text)
    for start, end in ((128, 192), (192, 512), (512, 1024), (1024, 2048), (2048, FULL)):
        details[f"nano, full cache, tokens {start} to {end}"] = perplexity(whole[start:end], 64)
    flat: dict[str, Tensor] = {}
    for name, shape in (STREAMS | UNTURNED).items():
        flat[name] = streamed(nano, text, *shape)
        details[f"nano, {name}, last 10,000 tokens"] = perplexity(flat[name][-10_000:])
        details[f"nano, {name}, tokens 500 to 10,000"] = perplexity(flat[name][500:10_000])
    of_noise = {name: streamed(recall, quiet, *shape) for name, shape in (STREAMS | UNTURNED).items()}
    for name, nll in of_noise.items():
        details[f"nano-recall, {name}, from token 500 on"] = perplexity(nll[500:])
    details["nano-recall, full cache, tokens 1,024 to 4,096"] = perplexity(full(recall, quiet)[1024:])
    early, late = (
        details[f"nano, full cache, tokens {span}"]["perplexity"] for span in ("128 to 192", f"2048 to {FULL}")
    )
    last, first = (flat["4 + 124"][part].mean().exp().item() for part in (slice(-10_000, None), slice(500, 10_000)))
    none, one = (details[f"nano-recall, {name}, from token 500 on"]["perplexity"] for name in ("0 + 128", "1 + 127"))
    return [
        at_least("nano, full cache: perplexity beyond 2,048 tokens / at 128 to 192", late, early, 5, "ppl"),
        at_most("nano, 4 + 124 streamed: last 10,000 tokens / those before", last, first, 1.15, "ppl"),
        at_least("nano, full cache beyond 2,048 / 4 + 124 streamed, last 10,000", late, last, 5, "ppl"),
        at_least("nano-recall: no sink / one sink", none, one, 1.1, "ppl"),
        at_most("nano-recall: one sink / the floor of 4", one, 4.0, 1.1, "ppl"),
    ]


def moved_sink(place: int) -> Tensor:
    """Texts whose BOS stands behind so many tokens of the text."""
    ids = build_inputs(
        "natural",
        tokenizer=load_tokenizer("nano"),
        vocab_size=2048,
        tokens=CONTEXT + SCORED,
        samples=MEASURED + TEXTS,
        seed=0,
        bos="add",
    ).input_ids
    return torch.cat([ids[:, 1 : place + 1], ids[:, :1], ids[:, place + 1 :]], 1)


def protected(model: nn.Module, ids: Tensor, policy: str, details: Details, where: str) -> Trial:
    """What protecting sinks or other tokens saves, against protecting nothing but the newest."""
    scores = POLICIES[policy](window=RECENT) if policy == "snapkv" else POLICIES[policy]()
    measured = ss.find_tokens(model, ids[:MEASURED, :CONTEXT], Measured(0.3))
    free = sorted(set(range(8, CONTEXT - RECENT)) - set(measured.positions))
    elsewhere = np.random.default_rng(0).choice(free, len(measured.positions), replace=False)
    sinks = {
        "nothing": None,
        "measured": measured,
        "online": Online(0.3),
        "first 1": First(1),
        "first 4": First(4),
        "a random place": Positions(*sorted(elsewhere.tolist())),
    }
    arms = [
        Arm(name, lambda model, texts, kept=kept: evicting(model, Protect(scores, kept, RECENT), KEPT))
        for name, kept in sinks.items()
    ]
    found = run(model, ids[MEASURED:], arms, reading=ThroughCache(CONTEXT, None), controls=0, batch_size=50)
    where = f"{where}, {policy}"
    details[f"{where}: measured sinks"] = {f"place {place}": float(place) for place in measured.positions}
    details[f"{where}: nothing protected against the full cache, nats"] = vars(found.cost("nothing", "nats"))
    for name in list(sinks)[1:]:
        saved = found.difference(name, "nothing", "nats")
        details[f"{where}: {name} against nothing protected, nats"] = vars(saved)
    details[f"{where}: first 4 against measured, nats"] = vars(found.difference("first 4", "measured", "nats"))
    return found


def sinks_elsewhere(details: Details) -> list[Figure]:
    model, figures = llama("nano"), []
    for place in PLACES:
        for policy in ("snapkv", "keydiff"):
            found = protected(model, moved_sink(place), policy, details, f"nano, BOS at place {place}")
            if place:
                saved = found.difference("first 4", "measured", "nats").value
                what = f"nano, {policy}: nats saved by the measured sink at place {place}, beyond first 4"
                figures.append(at_least(what, saved, 0.10, 1, "nats"))
    recall = llama("nano-recall")
    ids = noise(MEASURED + TEXTS, CONTEXT + SCORED, torch.Generator().manual_seed(1))
    ids[:, PLACES[-1]] = 0
    found = protected(recall, ids, "keydiff", details, f"nano-recall, BOS at place {PLACES[-1]}")
    saved = found.difference("first 4", "measured", "nats").value
    what = f"nano-recall, keydiff: nats saved by the measured sink at place {PLACES[-1]}, beyond first 4"
    return [*figures, at_least(what, saved, 0.10, 1, "nats")]


if __name__ == "__main__":
    details: Details = {}
    figures = [*streams(details), *sinks_elsewhere(details)]
    for what, numbers in details.items():
        print(what, {name: round(number, 4) for name, number in numbers.items()})
    report("cache_quality", figures, details)
