"""KL and the share of tokens that agree, over many ways to round one pretrained model.

The words of a verdict (`trials.words`) bound both, so the bounds on agreement should fit those on KL. Arms: caches of 8
to 2 bits, by channel and by token, with nothing, the first token, or measured sinks protected; activations of linear
maps of 8 and 6 bits, a range per token or per row, with sinks or outliers protected. Texts: prose that ships, and
Python; the second half of each is scored. The sinks are found in texts of their own.

Printed are the arms in order of KL, and the least agreement among those at or below τ and 5 τ.

Run: python -m benchmarks.agreement MODEL [--texts 40] [--out FOLDER] [--save]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sinkscope as ss
from sinkscope.data import build_inputs
from sinkscope.interventions import Intervention
from sinkscope.model import load_tokenizer
from sinkscope.quantization import Grid, QuantizeCache, scheme_named
from sinkscope.sinks import Choice, First, Measured, Outliers
from sinkscope.trials import Arm, OnePass, Trial, run
from sinkscope.trials.words import TOLERANCE

CHOOSING = 16  # texts in which sinks are found
CACHES = {f"kv{bits}-{name}": (bits, name) for bits in (8, 6, 4, 3, 2) for name in ("channel", "token")}
MAPS = ("w8a8-token", "w8a8-tensor", "w6a6-token")


def texts_of(model: nn.Module, name: str, count: int, tokens: int) -> Tensor:
    """`count` texts, prose and code by turns while there is prose, code after that."""
    tokenizer = load_tokenizer(name)
    vocabulary = len(tokenizer)
    rows = [
        build_inputs(
            "natural",
            tokenizer=tokenizer,
            vocab_size=vocabulary,
            tokens=tokens,
            samples=count,
            seed=0,
            corpus=corpus,
            split="all",
        ).input_ids
        for corpus in ("prose", "python")
    ]
    both = min(map(len, rows))
    mixed = torch.stack([part[:both] for part in rows], 1).flatten(0, 1)
    return torch.cat([mixed, *(part[both:] for part in rows)])[:count]


def changed(name: str, made: Intervention) -> Arm:
    @contextmanager
    def opened(model: nn.Module, texts: Any) -> Iterator[None]:
        with made.applied(model):
            yield None

    return Arm(name, opened)


def arms_of(model: nn.Module, choosing: Tensor, scored: Tensor) -> Iterator[Arm]:
    protected: dict[str, Choice | None] = {"": None, " first:1": First(1), " measured": Measured()}
    sinks = ss.find_tokens(model, choosing, Measured())
    for name, (bits, along) in CACHES.items():
        keys = Grid(bits, "channel", group=32) if along == "channel" else Grid(bits, "token")
        for word, choice in protected.items():
            tokens = sinks if isinstance(choice, Measured) else choice
            yield changed(name + word, QuantizeCache(keys, Grid(bits, "token"), tokens))
    outliers = ss.find_tokens(model, scored, Outliers())
    for name in MAPS:
        scheme = scheme_named(name)
        for word, tokens in {"": None, " measured": sinks, " outliers": outliers}.items():
            yield changed(name + word, scheme.make(model, choosing, tokens))


def table(trial: Trial) -> list[dict[str, Any]]:
    rows = []
    for name in trial.arms[1:]:
        kl, agreement = (trial.mean(name, score) for score in ("kl", "agreement"))
        rows.append(
            {"arm": name, "kl": kl.value, "kl_low": kl.low, "kl_high": kl.high}
            | {"agreement": agreement.value, "agreement_low": agreement.low, "agreement_high": agreement.high}
        )
    return sorted(rows, key=lambda row: row["kl"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    if given.model is None:  # as `make bench` calls it
        print(__doc__)
        return
    model = ss.load(given.model)
    ids = texts_of(model, given.model, CHOOSING + given.texts, given.tokens)
    choosing, scored = ids[:CHOOSING], ids[CHOOSING:]
    trial = run(
        model,
        scored,
        list(arms_of(model, choosing, scored)),
        reading=OnePass(from_token=given.tokens // 2),
        controls=0,
        out=given.out,
        progress=lambda done, total, found: print(f"{done}/{total}", flush=True),
    )
    rows = table(trial)
    for row in rows:
        interval = f"({row['kl_low']:.4f} to {row['kl_high']:.4f})"
        print(f"{row['arm']:<24} KL {row['kl']:.4f} {interval}   {row['agreement']:.3f}")
    for bound in (TOLERANCE, 5 * TOLERANCE):
        near = [row["agreement"] for row in rows if bound / 2 <= row["kl"] <= bound]
        print(f"KL {bound / 2:g} to {bound:g}: agreement {np.round(near, 3)}")
    if given.save:
        facts = {"texts": given.texts, "tokens": given.tokens, "record": trial.record}
        given.save.write_text(json.dumps({"rows": rows, **facts}, indent=1, default=str))


if __name__ == "__main__":
    main()
