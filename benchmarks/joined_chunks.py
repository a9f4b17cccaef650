"""What joining chunks that were encoded apart costs, what repairs give back, and how many sinks the chunks bring.

Texts are the beginnings of documents of `python:prose` (docstrings and help topics), from the validation part, on which
`nano` was not trained: four chunks, then the tokens that are scored. SmolLM2 reads chunks of 96 tokens and 64 scored
ones, `nano` 24 and 24, which fill its 128. Four parts, each on the same texts:

- "sinks": sinks per chunk, and the attention that they take from later tokens (`trials.chunk_sinks`).
- "in order": `trials.chunk_trial` with k = 1 and 16 (nano: 1, 4, 8).
- "shuffled": the same with the chunks of each text in a random order, k = 1; the reference reads them in that order.
- "needles": one fact in each chunk, three of four asked for in a chat (`trials.asked_in_chat`), k = 1 and 16.

With `--save`, each part is written to results/real when it is done, with the seconds that its passes took; with
`--work`, a run that was stopped goes on.

Run: python -m benchmarks.joined_chunks [--model NAME] [--texts 24] [--save] [--work FOLDER]
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

import numpy as np
import torch
from torch import Tensor

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.data import Inputs, build_inputs
from sinkscope.files import write_json
from sinkscope.model import load_tokenizer
from sinkscope.statistics import Interval, mean_interval, share_interval
from sinkscope.trials import Asked, Texts, asked_in_chat, chunk_arms, chunk_sinks, chunk_trial, recalled, unchanged

CORPUS, CHUNKS, DEPTHS = "python:prose", 4, (1, 16)
SHORT, LONG = (24,) * CHUNKS, (96,) * CHUNKS


def shuffled(ids: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The chunks of each text in an order of its own; a first token that all texts share stays."""
    first = int(bool((ids[:, 0] == ids[0, 0]).all()))
    rows = []
    for number, row in enumerate(ids):
        chunks = row[first : sum(lengths)].split((lengths[0] - first, *lengths[1:]))
        order = np.random.default_rng(number).permutation(CHUNKS)
        rows.append(torch.cat([row[:first], *(chunks[place] for place in order), row[sum(lengths) :]]))
    return torch.stack(rows)


def in_pieces(work: Path, name: str, count: int, compute: Callable[[slice], dict[str, Any]]) -> dict[str, Any]:
    """What is computed of one text at a time, lists over texts by name, each text's kept in a file as it is done."""
    joined: dict[str, Any] = {}
    for start in range(count):
        path = work / f"{name} {start}.json"
        if not path.is_file():
            begun = time.perf_counter()
            rows_by_name = compute(slice(start, start + 1))
            write_json(path, {"seconds": time.perf_counter() - begun, "rows": rows_by_name})
        for key, rows in json.loads(path.read_text())["rows"].items():
            joined.setdefault(key, []).extend(rows)
    return joined


def seconds_of(work: Path, name: str) -> float:
    """What the pieces of a part took, or the arms of a trial."""
    pieces = [json.loads(path.read_text())["seconds"] for path in work.glob(f"{name} *.json")]
    log = work / name / "scores.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    return sum(pieces) + sum(line["seconds"] * (line["stop"] - line["start"]) for line in lines)


def sinks(model: Any, ids: Tensor, lengths: tuple[int, ...], work: Path) -> dict[str, Any]:
    """Means over texts with 95 % intervals, a list over chunks each."""

    def of(rows: slice) -> dict[str, Any]:
        data = chunk_sinks(model, ids[rows], lengths)
        found = {"sinks": data["sinks"].values.tolist()}
        for cache in data["cache"].values:
            for name in ("sink_mass", "chunk_mass"):
                found[f"{name} {cache}"] = data[name].sel(cache=cache).values.tolist()
        return found

    def means(values: np.ndarray) -> list[list[float]]:
        return [list(vars(mean_interval(values[:, chunk])).values()) for chunk in range(CHUNKS)]

    found = {name: means(np.array(rows)) for name, rows in in_pieces(work, "sinks", len(ids), of).items()}
    result: dict[str, Any] = {"sinks": found.pop("sinks")}
    for name, numbers in found.items():
        what, _, cache = name.partition(" ")
        result.setdefault(what, {})[cache] = numbers
    return result


def needles(model: Any, asked: Asked, lengths: tuple[int, ...], work: Path) -> dict[str, Any]:
    """The share of right answers with its 95 % interval over chats, and the difference from "joined", paired."""
    arms = [unchanged()]
    for arm in chunk_arms(lengths, DEPTHS, repairs=("first",)):
        arms.append(arm)
        if arm.control is not None and (control := arm.control(0, Texts.of_ids(asked.context))) is not None:
            arms.append(replace(control, name=f"random for {arm.name}"))

    def of(rows: slice) -> dict[str, Any]:
        part = Asked(asked.context[rows], asked.keys[rows], asked.answers[rows], asked.places[rows])
        answers = recalled(model, part, arms, rows.start)
        return {name: found.unseen.double().mean(1).tolist() for name, found in answers.items()}

    shares = {name: np.array(rows) for name, rows in in_pieces(work, "needles", len(asked), of).items()}
    rows = [
        {
            "arm": name,
            **_named("recall", share_interval(values)),
            **_named("more_than_joined", mean_interval(values - shares["joined"])),
        }
        for name, values in shares.items()
    ]
    return {"chats": len(asked), "questions": asked.keys.shape[1], "arms": rows}


def _named(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def parts_of(
    model: Any,
    tokenizer: Any,
    ids: Tensor,
    lengths: tuple[int, ...],
    work: Path,
    fewer: int | None,
) -> dict[str, Callable[[], Any]]:
    """How each part is computed; all but "sinks" on `fewer` texts."""
    many = (1, 4, 8) if lengths[0] < 32 else DEPTHS

    def trial(name: str, rows: Tensor, recompute: tuple[int, ...], **more: Any) -> Any:
        return chunk_trial(model, rows, lengths, recompute, out=work / name, **more).to_json()

    def asked() -> Any:
        return needles(model, asked_in_chat(tokenizer, ids[:fewer], lengths, asked=3, seed=0), lengths, work)

    return {
        "in order": lambda: trial("in order", ids[:fewer], many),
        **({"needles": asked} if getattr(tokenizer, "chat_template", None) else {}),
        "sinks": lambda: sinks(model, ids, lengths, work),
        "shuffled": lambda: trial("shuffled", shuffled(ids[:fewer], lengths), (1,), repairs=("first",)),
    }


def inputs_of(model: Any, tokenizer: Any, tokens: int, texts: int) -> Inputs:
    """The beginnings of documents."""
    return build_inputs(
        "natural",
        tokenizer=tokenizer,
        vocab_size=model.config.vocab_size,
        tokens=tokens,
        samples=texts,
        seed=0,
        corpus=CORPUS,
        windows="starts",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--fewer", type=int, help="texts of all parts but `sinks`")
    parser.add_argument("--parts", nargs="+", help="parts to run; default: all")
    parser.add_argument("--work", type=Path)
    asked = parser.parse_args()
    title, tokenizer, model = Path(asked.model).name, load_tokenizer(asked.model), ss.load(asked.model)
    model = model.to_llama().eval() if hasattr(model, "to_llama") else model.eval()
    model.config.name_or_path = title  # in results, where a path would be the machine's
    lengths, behind = (SHORT, 25) if title == "nano" else (LONG, 65)
    inputs = inputs_of(model, tokenizer, sum(lengths) + behind, asked.texts)
    path = REAL / ("joined_chunks_nano.json" if title == "nano" else "joined_chunks.json")
    result = json.loads(path.read_text()) if asked.save and path.is_file() else {}
    fewer = "" if asked.fewer is None else f" --fewer {asked.fewer}"
    result |= {"command": f"python -m benchmarks.joined_chunks --model {title} --texts {asked.texts}{fewer} --save"}
    result |= {"model": title, "inputs": inputs.description, "lengths": list(lengths), "provenance": provenance()}
    done = result.setdefault("parts", {})
    work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    work.mkdir(parents=True, exist_ok=True)
    for name, compute in parts_of(model, tokenizer, inputs.input_ids, lengths, work, asked.fewer).items():
        if name in done or (asked.parts and name not in asked.parts):
            continue
        done[name] = {"result": compute(), "seconds": round(seconds_of(work, name))}
        print(
            f"{title}, {name}: {done[name]['seconds']} s, {done[name]['result'].get('verdict', done[name]['result'])}",
            flush=True,
        )
        if asked.save:
            write_json(path, result)


if __name__ == "__main__":
    main()
