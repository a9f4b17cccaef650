"""What joining chunks that were encoded apart costs, what repairs give back, and how many sinks the chunks bring.

Texts are the beginnings of documents of `python:prose` (docstrings and help topics), from the validation part, on which
`nano` was not trained: four chunks, then the tokens that are scored. SmolLM2 reads chunks of 96 tokens and 64 scored
ones, `nano` 24 and 25, which fill its 128. Four parts, each on the same texts:

- "sinks": sinks per chunk, and the attention that they take from later tokens (`trials.chunk_sinks`).
- "in order": `trials.chunk_trial` with k = 1, 4, 16 (nano: 1, 4, 8).
- "shuffled": the same with the chunks of each text in a random order, k = 1; the reference reads them in that order.
- "needles": one fact in each chunk, three of four asked for in a chat (`trials.asked_in_chat`), k = 1 and 16.

With `--save`, each part is written to results/real as soon as it is done, and an interrupted run continues.

Run: python -m benchmarks.joined_chunks [--model NAME] [--texts 24] [--save] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
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
from sinkscope.statistics import mean_interval
from sinkscope.trials import ThroughCache, asked_in_chat, chunk_arms, chunk_sinks, chunk_trial, run

CORPUS, CHUNKS = "python:prose", 4


def shuffled(ids: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The chunks of each text in an order of its own; a first token that all texts share stays."""
    first = int(bool((ids[:, 0] == ids[0, 0]).all()))
    rows = []
    for number, row in enumerate(ids):
        chunks = row[first : sum(lengths)].split((lengths[0] - first, *lengths[1:]))
        order = np.random.default_rng(number).permutation(CHUNKS)
        rows.append(torch.cat([row[:first], *(chunks[place] for place in order), row[sum(lengths) :]]))
    return torch.stack(rows)


def sinks(model: Any, ids: Tensor, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Means over texts with 95 % intervals, a list over chunks each."""
    data = chunk_sinks(model, ids, lengths)

    def means(values: np.ndarray) -> list[list[float]]:
        return [list(vars(mean_interval(values[:, chunk])).values()) for chunk in range(CHUNKS)]

    result: dict[str, Any] = {"sinks": means(data["sinks"].values)}
    for name in ("sink_mass", "chunk_mass"):
        result[name] = {str(cache): means(data[name].sel(cache=cache).values) for cache in data["cache"].values}
    return result


def parts_of(
    model: Any, tokenizer: Any, inputs: Inputs, lengths: tuple[int, ...], work: Path | None
) -> dict[str, Callable[[], Any]]:
    """How each part is computed."""
    ids, many = inputs.input_ids, (1, 4, 8 if lengths[0] < 32 else 16)

    def folder(name: str) -> Path | None:
        return None if work is None else work / name

    def needles() -> Any:
        asked = asked_in_chat(tokenizer, ids, lengths, asked=3, seed=0)
        arms = chunk_arms(lengths, (1, many[-1]), repairs=("first", "received"))
        reading = ThroughCache(sum(lengths) + 1, None)
        return run(model, asked.context, arms, reading=reading, controls=1, needles=asked, batch_size=4).to_json()

    order = shuffled(ids, lengths)
    return {
        "sinks": lambda: sinks(model, ids, lengths),
        "in order": lambda: chunk_trial(model, ids, lengths, many, batch_size=4, out=folder("in order")).to_json(),
        "shuffled": lambda: chunk_trial(
            model, order, lengths, (1,), repairs=("first",), batch_size=4, out=folder("shuffled")
        ).to_json(),
        **({"needles": needles} if getattr(tokenizer, "chat_template", None) else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--work", type=Path)
    asked = parser.parse_args()
    title, tokenizer, model = Path(asked.model).name, load_tokenizer(asked.model), ss.load(asked.model)
    model = model.to_llama().eval() if hasattr(model, "to_llama") else model.eval()
    lengths, behind = ((24,) * CHUNKS, 25) if title == "nano" else ((96,) * CHUNKS, 65)
    inputs = build_inputs(
        "natural",
        tokenizer=tokenizer,
        vocab_size=model.config.vocab_size,
        tokens=sum(lengths) + behind,
        samples=asked.texts,
        seed=0,
        corpus=CORPUS,
        windows="starts",
    )
    path = REAL / ("joined_chunks_nano.json" if title == "nano" else "joined_chunks.json")
    result = json.loads(path.read_text()) if asked.save and path.is_file() else {}
    result |= {"command": f"python -m benchmarks.joined_chunks --model {title} --texts {asked.texts} --save"}
    result |= {"model": title, "inputs": inputs.description, "lengths": list(lengths), "provenance": provenance()}
    done = result.setdefault("parts", {})
    for name, compute in parts_of(model, tokenizer, inputs, lengths, asked.work).items():
        if name in done:
            continue
        start = time.perf_counter()
        done[name] = {"result": compute(), "seconds": round(time.perf_counter() - start)}
        print(
            f"{title}, {name}: {done[name]['seconds']} s, {done[name]['result'].get('verdict', done[name]['result'])}",
            flush=True,
        )
        if asked.save:
            write_json(path, result)


if __name__ == "__main__":
    main()
