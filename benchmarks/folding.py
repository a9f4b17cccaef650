"""What a pretrained model loses when its sink becomes constants per head: by form, layers, heads, and in a stream.

Texts are the first 64 tokens of the docstrings of the corpus `python:prose`, without a BOS, so that each begins with
another token (nano: with the BOS that it was trained with). Constants come from 64 documents, and are scored on others.
Arms and controls are those of `sinkscope intervene --what fold-logit`: queries at least 8 tokens after position 0; a
control folds another token. A stream reads 16 texts of 320 tokens one by one, and is scored where its 128 keys have
dropped the first tokens; so is the model with windows of 128 in every layer, folded and written (`with_window_sinks`).

Texts are read in pieces, which `--work FOLDER` keeps: a run that was stopped, or that `--at-most` ends, goes on there.

Run: python -m benchmarks.folding [--model NAME] [--parts forms,heads] [--work FOLDER] [--at-most 3] [--save]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import MistralConfig, MistralForCausalLM

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.data.corpora import load_corpus, shuffled
from sinkscope.files import write_json
from sinkscope.files.netcdf import read_netcdf, write_netcdf
from sinkscope.interventions import Constants, FoldSink, constants
from sinkscope.model.plain import with_window_sinks
from sinkscope.statistics import mean_interval
from sinkscope.trials import Arm, OnePass, ThroughCache, Trial, cached, folded_heads, folded_stream, run
from sinkscope.trials.changes import SinkArms

CORPUS, TOKENS, SCORED, CONSTANTS, AFTER = "python:prose", 64, 200, 64, 8
FORMS = {"fold-logit": "logit", "fold-sink": "logit+value", "fold-key": "key+value"}
LONG, LONG_TEXTS, KEYS, WRITTEN = 320, 16, 128, 48
CLOSER = 12  # heads that are folded one by one, for each of the two sides of the ranking


def texts(model: str, tokens: int, count: int, skip: int = 0) -> Tensor:
    """The first tokens of so many documents, in an order of their own; after a BOS for models of the package."""
    tokenizer = ss.model.load_tokenizer(model)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    bos = [first] if model.startswith("nano") else []
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


@dataclass(eq=False)
class Pieces:
    """Results of some texts at a time, in a folder; at most `left` new ones are made."""

    work: Path
    left: int

    def of(self, name: str, rows: Tensor, size: int, make: Callable[[Tensor], xr.Dataset]) -> xr.Dataset:
        """What `make` finds in all rows. Raises `Unfinished` where pieces are missing and none may be made."""
        found = []
        for start in range(0, len(rows), size):
            path = self.work / f"{name}-{start}.nc"
            if not path.exists():
                if self.left < 1:
                    raise Unfinished(f"{name}: {start} of {len(rows)} texts")
                write_netcdf(make(rows[start : start + size]), path)
                self.left -= 1
            found.append(read_netcdf(path))
        return xr.concat(found, "text", data_vars="minimal", coords="minimal", compat="override", join="override")

    def trial(self, name: str, rows: Tensor, size: int, make: Callable[[Tensor], Trial]) -> Trial:
        return Trial(self.of(name, rows, size, lambda part: make(part).data))

    def fold(self, model: Any, known: Tensor) -> FoldSink:
        """The sink of position 0, from constants that are measured once."""
        path = self.work / "constants.pt"
        if not path.exists():
            made = constants(model, known, (0,), AFTER)
            torch.save({"keys": made.keys, "values": made.values, "logits": made.logits, "texts": made.texts}, path)
        return FoldSink((0,), AFTER, constants=Constants(**torch.load(path, weights_only=True)))


class Unfinished(Exception):
    """A run that ends before all pieces are there."""


def costs(trial: Trial) -> dict[str, Any]:
    """Nats and KL of each arm with intervals, and by how much it costs more than its controls."""
    result = {}
    for arm in trial.named("arm"):
        nats, kl = trial.cost(arm, "nats"), trial.cost(arm)
        result[arm] = {"nats": [nats.value, nats.low, nats.high], "kl": [kl.value, kl.low, kl.high]}
        if trial.controls(arm):
            more, count = trial.difference(arm, score="nats"), len(trial.controls(arm))
            result[arm] |= {"more_than_controls": [more.value, more.low, more.high], "controls": count}
    return {"texts": trial.texts, "arms": result}


def arms_on(fold: FoldSink, layers: tuple[int, ...] | None = None, suffix: str = "") -> list[Arm]:
    """The arms of `intervene` in some layers."""
    arms = SinkArms(fold.targets, AFTER, layers, fold.constants, suffix=suffix)
    return [arms.arm(name) for name in FORMS]


def forms(model: Any, scored: Tensor, fold: FoldSink, pieces: Pieces) -> dict[str, Any]:
    arms = arms_on(fold)
    return costs(pieces.trial("forms", scored, 8, lambda rows: run(model, rows, arms, reading=OnePass(), controls=1)))


def some_layers(name: str, count: int, texts: int, size: int) -> "Part":
    """The forms in so many groups of layers that lie together."""

    def part(model: Any, scored: Tensor, fold: FoldSink, pieces: Pieces) -> dict[str, Any]:
        total = len(fold.constants.logits[AFTER])
        groups = [group.tolist() for group in torch.arange(total).tensor_split(min(count, total))]
        arms = [arm for group in groups for arm in arms_on(fold, tuple(group), f"@{group[0]}-{group[-1]}")[:2]]
        make = lambda rows: run(model, rows, arms, reading=OnePass(), controls=0)  # noqa: E731
        return costs(pieces.trial(name, scored[:texts], size, make))

    return part


def heads(model: Any, scored: Tensor, fold: FoldSink, pieces: Pieces) -> dict[str, Any]:
    """Estimates for every head, then the exact nats of those that need their logit to depend on the query most."""
    folds = {form: replace(fold, form=form) for form in FORMS.values()}
    make = lambda rows: folded_heads(model, rows, folds, draws=2, batch_size=4)  # noqa: E731
    found = pieces.of("heads", scored[:48], 8, make)
    estimate = (found["slope"] + found["curvature"]).mean("text")
    rest = (estimate.sel(form="logit+value") - estimate.sel(form="key+value")).values
    order = [divmod(int(index), rest.shape[1]) for index in (-rest).argsort(axis=None)]
    arms = [_head(folds[form], form, head) for head in order[:CLOSER] for form in ("logit", "logit+value")]
    again = lambda rows: run(model, rows, arms, reading=OnePass(), controls=0)  # noqa: E731
    exact = costs(pieces.trial("exact", scored[:24], 4, again))
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

    def early(batch: Any) -> Tensor:
        return (torch.arange(batch.ids.shape[1]) < AFTER).expand(batch.ids.shape)

    name = f"{form}@{head[0]}.{head[1]}"
    return Arm(name, lambda model, _: one.applied(model), touched=early, facts={"fold": one.describe()})


def stream(model: Any, scored: Tensor, fold: FoldSink, pieces: Pieces) -> dict[str, Any]:
    """Streams of as many keys with and without sinks, and with the sink as constants instead; after the first drop."""
    tokens = min(LONG, model.config.max_position_embeddings)
    keys = KEYS * tokens // LONG
    long = texts(str(model.config.name_or_path), tokens, LONG_TEXTS)

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
    make = lambda rows: run(model, rows, arms, reading=ThroughCache(1, 1), controls=0, batch_size=LONG_TEXTS)  # noqa: E731
    trial = pieces.trial("stream", long, LONG_TEXTS, make)
    most = trial.difference("no sink kept, logit+value", "4 sinks kept", "nats")
    difference = {"logit+value against 4 sinks": [most.value, most.low, most.high]}
    return {"keys": keys, "tokens": tokens, **costs(trial), **difference}


def windowed(model: Any, keys: int) -> MistralForCausalLM:
    """The same weights with a window of so many keys in every layer."""
    llama = model.to_llama() if hasattr(model, "to_llama") else model
    config = {
        name: value for name, value in llama.config.to_dict().items() if name not in ("model_type", "layer_types")
    }
    host = MistralForCausalLM(MistralConfig(**config | {"sliding_window": keys}))
    host.load_state_dict(llama.state_dict())
    return host.eval()


def written(model: Any, scored: Tensor, fold: FoldSink, pieces: Pieces) -> dict[str, Any]:
    """All layers windows: without a sink, with the form `logit` in its place, and as GraniteSWA has it written.

    Nats lost against the model without windows, of queries that no longer see token 0. The written model's earlier
    queries see the token and the logit, which reaches later tokens through what they store.
    """
    tokens = min(LONG, model.config.max_position_embeddings)
    keys = KEYS * tokens // LONG
    rows = texts(str(model.config.name_or_path), tokens, WRITTEN)
    host, folded = windowed(model, keys), replace(fold, form="logit", gone=True)
    plain = with_window_sinks(host, list(fold.constants.logits[AFTER][:, :, 0]))

    def scores(part: Tensor) -> xr.Dataset:
        arms = {"full": nats(model, part, keys), "windows": nats(host, part, keys), "written": nats(plain, part, keys)}
        with folded.applied(host):
            arms["folded"] = nats(host, part, keys)
        return xr.Dataset({name: ("text", values) for name, values in arms.items()})

    found = pieces.of("written", rows, 8, scores)
    against = {name: found[name] - found["full"] for name in ("windows", "folded", "written")}
    against["written against folded"] = found["written"] - found["folded"]
    means = {name: mean_interval(values.values) for name, values in against.items()}
    result = {name: {"nats": [mean.value, mean.low, mean.high]} for name, mean in means.items()}
    return {"keys": keys, "tokens": tokens, "texts": WRITTEN, "arms": result}


@torch.no_grad()
def nats(model: Any, rows: Tensor, first: int) -> np.ndarray:
    """Nats per token of each text, of what queries from `first` on predict."""
    logits = model(rows, use_cache=False).logits[:, first:-1]
    return nn.functional.cross_entropy(logits.mT, rows[:, first + 1 :], reduction="none").mean(1).double().numpy()


Part = Callable[[Any, Tensor, FoldSink, Pieces], dict[str, Any]]
PARTS: dict[str, Part] = {
    "forms": forms,
    "heads": heads,
    "bands": some_layers("bands", 6, 32, 8),
    "stream": stream,
    "written": written,
    "layers": some_layers("layers", 1000, 24, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--work", type=Path, default=None, help="a folder for finished pieces")
    parser.add_argument("--scored", type=int, default=SCORED, help="texts that are scored, in the parts that take all")
    parser.add_argument("--at-most", type=int, default=1000, help="stop after so many new pieces")
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    title = Path(asked.model).name
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"fold_{title.partition('-')[0].lower()}.json"
    result = json.loads(path.read_text()) if path.is_file() else {"model": title, "parts": {}}
    model = ss.load(asked.model)
    model.config.name_or_path = asked.model
    known = texts(asked.model, TOKENS, CONSTANTS)
    scored = texts(asked.model, TOKENS, asked.scored, skip=CONSTANTS)
    work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    work.mkdir(parents=True, exist_ok=True)
    pieces = Pieces(work, asked.at_most)
    fold = pieces.fold(model, known)
    about = {"corpus": CORPUS, "tokens": TOKENS, "after": AFTER, "constants_from": len(known)}
    for name in asked.parts.split(","):
        if name in result["parts"]:
            continue
        start = time.perf_counter()
        try:
            found = PARTS[name](model, scored, fold, pieces)
        except Unfinished as unfinished:
            print(unfinished, flush=True)
            return
        finally:
            spent = result.setdefault("seconds", {})
            spent[name] = round(spent.get(name, 0) + time.perf_counter() - start)
            command = f"python -m benchmarks.folding --model {title} --scored {asked.scored} --save"
            write_json(path, result | {"command": command, **about, "provenance": provenance()})
        result["parts"][name] = found
        print(f"{name}, {spent[name]} s: {json.dumps(found)[:2000]}", flush=True)
        write_json(path, result | {"command": command, **about, "provenance": provenance()})


if __name__ == "__main__":
    main()
