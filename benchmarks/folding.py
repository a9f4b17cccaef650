"""What a pretrained model loses when its sink becomes constants per head: by form, layers, heads, and in a stream.

Texts are the first 64 tokens of the docstrings of the corpus `python:prose`, without a BOS, so that each begins with
another token (nano: with the BOS that it was trained with). Constants come from 64 documents, and are scored on others.
Arms and controls are those of `sinkscope intervene --what fold-logit`: queries at least 8 tokens after position 0; a
control folds another token. A stream reads 16 texts of 320 tokens one by one, and is scored where its 128 keys have
dropped the first tokens.

Each part is written when it is done, and a run that was stopped goes on with the next one.

Run: python -m benchmarks.folding [--model NAME] [--parts forms,heads] [--save]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.data.corpora import load_corpus, shuffled
from sinkscope.files import write_json
from sinkscope.interventions import FoldSink
from sinkscope.trials import Arm, OnePass, ThroughCache, Trial, cached, folded_heads, folded_stream, matters, run

CORPUS, TOKENS, SCORED, CONSTANTS, AFTER = "python:prose", 64, 200, 64, 8
FORMS = {"fold-logit": "logit", "fold-sink": "logit+value", "fold-key": "key+value"}
LONG, LONG_TEXTS, KEYS = 320, 16, 128
CLOSER = 12  # heads that are folded one by one, for each of the two sides of the ranking


def texts(model: str, tokens: int, count: int, skip: int = 0) -> Tensor:
    """The first tokens of so many documents, in an order of their own; after a BOS for models of the package."""
    tokenizer = ss.model.load_tokenizer(model)
    bos = [tokenizer.bos_token_id] if model.startswith("nano") else []
    corpus = load_corpus(CORPUS)
    entries, rows = {entry.name: entry for entry in corpus.entries}, []
    for name in shuffled(corpus.names, 0):
        text = entries[name].read()
        ids = tokenizer(text[: 12 * tokens], add_special_tokens=False)["input_ids"] if len(text) > 3 * tokens else []
        if len(ids) >= tokens:
            rows.append([*bos, *ids][:tokens])
        if len(rows) == skip + count:
            break
    return torch.tensor(rows[skip:])


def costs(trial: Trial) -> dict[str, Any]:
    """Nats and KL of each arm with intervals, and by how much it costs more than its controls."""
    result = {}
    for arm in trial.named("arm"):
        nats, kl = trial.cost(arm, "nats"), trial.cost(arm)
        result[arm] = {"nats": [nats.value, nats.low, nats.high], "kl": [kl.value, kl.low, kl.high]}
        if trial.controls(arm):
            more = trial.difference(arm, score="nats")
            result[arm] |= {
                "more_than_controls": [more.value, more.low, more.high],
                "controls": len(trial.controls(arm)),
            }
    return {"texts": trial.texts, "arms": result}


def forms(model: Any, scored: Tensor, known: Tensor) -> dict[str, Any]:
    return costs(matters(model, scored, tuple(FORMS), on=(0,), after=AFTER, calibrate_on=known, controls=1))


def bands(model: Any, scored: Tensor, known: Tensor) -> dict[str, Any]:
    some, what = scored[:32], ("fold-logit", "fold-sink")
    return costs(matters(model, some, what, on=(0,), after=AFTER, calibrate_on=known, controls=0, by="band"))


def layers(model: Any, scored: Tensor, known: Tensor) -> dict[str, Any]:
    some, what = scored[:24], ("fold-logit", "fold-sink")
    return costs(matters(model, some, what, on=(0,), after=AFTER, calibrate_on=known, controls=0, by="layer"))


def heads(model: Any, scored: Tensor, known: Tensor) -> dict[str, Any]:
    """Estimates for every head, then the exact nats of those with the largest ones."""
    fold = ss.fold(model, known, on=(0,), after=AFTER)
    folds = {form: replace(fold, form=form) for form in FORMS.values()}
    found = folded_heads(model, scored[:48], folds, batch_size=4)
    estimate = (found["slope"] + found["curvature"]).mean("text")
    rest = (estimate.sel(form="logit+value") - estimate.sel(form="key+value")).values
    order = [divmod(int(index), rest.shape[1]) for index in (-rest).argsort(axis=None)]
    closer = [*order[:CLOSER]]
    arms = [_head(folds[form], form, head) for head in closer for form in ("logit", "logit+value")]
    exact = costs(run(model, scored[:24], arms, reading=OnePass(), controls=0))
    rows = [
        {
            "layer": layer,
            "head": head,
            **{name: float(found[name][layer, head]) for name in ("logit_mean", "logit_std", "mass")},
            **{form: float(estimate.sel(form=form)[layer, head]) for form in folds},
        }
        for layer in range(rest.shape[0])
        for head in range(rest.shape[1])
    ]
    return {"texts": found.sizes["text"], "heads": rows, "exact": exact}


def _head(fold: FoldSink, form: str, head: tuple[int, int]) -> Arm:
    one = replace(fold, heads=[head])
    targets = one.targets

    def early(batch: Any) -> Tensor:
        place = torch.arange(batch.ids.shape[1]).expand(batch.ids.shape)
        return place < max(first for _, first in targets.every())

    return Arm(
        f"{form}@{head[0]}.{head[1]}",
        lambda model, _: one.applied(model),
        touched=early,
        facts={"fold": one.describe()},
    )


def stream(model: Any, scored: Tensor, known: Tensor) -> dict[str, Any]:
    """Streams of as many keys with and without sinks, and with the sink as constants instead; after the first drop."""
    tokens = min(LONG, model.config.max_position_embeddings)
    keys = KEYS * tokens // LONG
    long = texts(str(model.config.name_or_path), tokens, LONG_TEXTS)
    fold = ss.fold(model, known, on=(0,), after=AFTER)

    def early(batch: Any) -> Tensor:
        return (torch.arange(batch.ids.shape[1]) < keys).expand(batch.ids.shape)

    arms = [
        cached(f"{sinks} sinks kept", lambda m, sinks=sinks: ss.StreamingCache(m, sinks, keys - sinks))
        for sinks in (0, 1, 4)
    ]
    arms += [
        folded_stream(f"no sink kept, {form}", replace(fold, form=form), keys) for form in ("logit", "logit+value")
    ]
    arms = [replace(arm, touched=early) for arm in arms]
    trial = run(model, long, arms, reading=ThroughCache(1, 1), controls=0, batch_size=LONG_TEXTS)
    most = trial.difference("no sink kept, logit+value", "4 sinks kept", "nats")
    return {
        "keys": keys,
        "tokens": tokens,
        **costs(trial),
        "logit+value against 4 sinks": [most.value, most.low, most.high],
    }


PARTS: dict[str, Callable[[Any, Tensor, Tensor], dict[str, Any]]] = {
    "forms": forms,
    "heads": heads,
    "bands": bands,
    "stream": stream,
    "layers": layers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    title = Path(asked.model).name
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"fold_{title.partition('-')[0].lower()}.json"
    result = json.loads(path.read_text()) if path.is_file() else {"model": title, "parts": {}}
    model = ss.load(asked.model)
    model.config.name_or_path = asked.model
    known = texts(asked.model, TOKENS, CONSTANTS)
    scored = texts(asked.model, TOKENS, SCORED, skip=CONSTANTS)
    about = {"corpus": CORPUS, "tokens": TOKENS, "after": AFTER, "constants_from": len(known)}
    for name in asked.parts.split(","):
        if name in result["parts"]:
            continue
        start = time.perf_counter()
        found = PARTS[name](model, scored, known)
        seconds = round(time.perf_counter() - start)
        result["parts"][name] = {**found, "seconds": seconds}
        print(f"{name}, {seconds} s: {json.dumps(found)[:2000]}", flush=True)
        command = f"python -m benchmarks.folding --model {title} --save"
        write_json(path, {"command": command, **about, "provenance": provenance(), **result})


if __name__ == "__main__":
    main()
