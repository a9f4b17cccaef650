"""How many sinks a stream should keep: 0, 1, 2 and 4 at the same number of keys, paired over texts of two corpora.

The texts are the first 512 tokens of 24 documents each of `python:prose` (docstrings and help topics) and
`python:code`, from the validation part, on which `nano` was not trained. They are read strictly, as if token by token.
Scored are the tokens predicted after something was dropped: −log p, and, for models trained on texts of this length,
KL(full cache ‖ stream). The numbers of keys are 128 and 256, for `nano` 64 and 128.

With `--save`, each text is written to results/real as soon as it is done, and an interrupted run continues.

Run: python -m benchmarks.streaming_sinks [--model NAME] [--texts 24] [--keys 128] [--save]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.caches.streaming import trained_length
from sinkscope.data import build_inputs
from sinkscope.files import write_json
from sinkscope.model import load_tokenizer
from sinkscope.statistics import mean_interval

SINKS, CORPORA, TOKENS = (0, 1, 2, 4), ("python:prose", "python:code"), 512
RESULT = REAL / "streaming_sinks.json"


def logs_of(model: Any, ids: Tensor, cache: ss.StreamingCache | None = None) -> Tensor:
    """log p of the next token at every place, (place, vocabulary)."""
    parts = [model(ids, use_cache=False)] if cache is None else cache.read(model, ids)
    return torch.cat([part.logits[0] for part in parts]).float().log_softmax(-1)


@torch.no_grad()
def scores(model: Any, ids: Tensor, keys: int) -> dict[str, dict[str, float]]:
    """Mean NLL on a text, for each number of sinks and for the full cache; and KL, if the model knows such lengths."""
    places, targets = slice(keys, -1), ids[0, keys + 1 :, None]  # from the first query on that misses a key
    knows = (trained_length(model) or 0) >= ids.shape[1]
    full = logs_of(model, ids)[places]
    means = {"full": {"nll": -float(full.gather(1, targets).mean())}}
    for sinks in SINKS:
        logs = logs_of(model, ids, ss.StreamingCache(model, sinks, keys - sinks))[places]
        means[str(sinks)] = {"nll": -float(logs.gather(1, targets).mean())}
        if knows:
            means[str(sinks)]["kl"] = float((full.exp() * (full - logs)).sum(-1).mean())
    return means


def summary(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Means for each number of sinks, and differences from four sinks, paired over texts, with 95 % intervals."""
    result: dict[str, Any] = {"texts": len(rows)}
    for score in rows[0]["0"]:
        for arm in rows[0]:
            if score in rows[0][arm]:
                values = np.array([row[arm][score] for row in rows])
                result[f"{score} {arm}"] = list(vars(mean_interval(values)).values())
                if arm not in ("full", "4"):
                    differences = values - np.array([row["4"][score] for row in rows])
                    result[f"{score} {arm} − 4"] = list(vars(mean_interval(differences)).values())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--keys", type=int, nargs="+")
    asked = parser.parse_args()
    title, tokenizer, model = Path(asked.model).name, load_tokenizer(asked.model), ss.load(asked.model)
    model = model.to_llama().eval() if hasattr(model, "to_llama") else model.eval()
    result = json.loads(RESULT.read_text()) if asked.save and RESULT.is_file() else {"models": {}}
    start = time.perf_counter()
    for keys in asked.keys or ((64, 128) if title == "nano" else (128, 256)):
        for corpus in CORPORA:
            inputs = build_inputs(
                "natural",
                tokenizer=tokenizer,
                vocab_size=model.config.vocab_size,
                tokens=TOKENS,
                samples=asked.texts,
                seed=0,
                corpus=corpus,
                windows="starts",
            )
            part = (
                result["models"].setdefault(title, {}).setdefault(f"{corpus}, {keys} keys", {"rows": [], "seconds": 0})
            )
            for ids in inputs.input_ids[len(part["rows"]) :]:
                part["rows"].append(scores(model, ids[None], keys))
                part |= {"inputs": inputs.description, "first": inputs.first}
                part |= {"summary": summary(part["rows"])} if len(part["rows"]) > 1 else {}
                part["seconds"] += time.perf_counter() - start
                start = time.perf_counter()
                command = f"python -m benchmarks.streaming_sinks --model {title} --save"
                about = {"command": command, "tokens": TOKENS, "provenance": provenance()}
                result["of"] = result.get("of", {}) | {title: about}
                if asked.save:
                    write_json(RESULT, result)
            for what, numbers in part["summary"].items():
                print(f"{title}, {corpus}, {keys} keys: {what} {numbers}", flush=True)


if __name__ == "__main__":
    main()
