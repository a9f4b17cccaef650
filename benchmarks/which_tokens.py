"""Which tokens of a pretrained model are sinks: without a BOS, with one and with two; what a generated token looks at.

Texts as in `benchmarks.origin`: the first 64 tokens of 20 docstrings, which begin with different tokens. A sink by
position is one wherever the text begins, one by content also elsewhere. With the numbers for `docs/probes_and_saes.md`:
the strongest keys of generated tokens, and the tokens that stand out by `Outliers`.

Run: python -m benchmarks.which_tokens --model MODEL [--save]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope as ss
from benchmarks.folding import CORPUS, TOKENS, texts
from benchmarks.sides import REAL, provenance
from sinkscope.files import write_json
from sinkscope.measurement import StrongestKeys
from sinkscope.sinks import Measured, Outliers

TEXTS, FEW, PROMPT, WRITTEN = 20, 8, 32, 16
QUARTER = 25.0  # percent of heads, above which a token counts as a strong sink


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    start = time.perf_counter()
    model: Any = ss.load(asked.model)
    tokenizer = ss.model.load_tokenizer(asked.model)
    rows = texts(asked.model, TOKENS, TEXTS)
    found: dict[str, Any] = {"model": Path(asked.model).name, "corpus": CORPUS, "tokens": TOKENS, "texts": TEXTS}
    found["first_tokens"] = int(rows[:, 0].unique().numel())
    for name, count in (("no BOS", 0), ("one BOS", 1), ("two BOS", 2)):
        found[name] = read_as(model, tokenizer, after_bos(rows, tokenizer.bos_token_id, count))
        print(name, found[name])
    found["generated"] = looked_at(model, rows[:4, :PROMPT])
    found["outliers"] = standing_out(model, rows[:FEW])
    print(found["generated"], found["outliers"])
    command = f"python -m benchmarks.which_tokens --model {found['model']} --save"
    name = found["model"].partition("-")[0].lower()
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"which_tokens_{name}.json"
    seconds = round(time.perf_counter() - start, 1)
    write_json(path, {"command": command, "seconds": seconds, "provenance": provenance(), **found})


def after_bos(rows: Tensor, bos: int, count: int) -> Tensor:
    """As many tokens, the first of them BOS."""
    return torch.cat([rows.new_full((len(rows), count), bos), rows], 1)[:, : rows.shape[1]]


def read_as(model: Any, tokenizer: Any, rows: Tensor) -> dict[str, Any]:
    """Sink rates of the first two positions, and the tokens that are sinks, each where it stands."""
    measurement = ss.measure(model, rows, [ss.AttentionReceived()], tokenizer=tokenizer)
    rates = {f"position {position}": round(float(measurement.sink_rate(position=position)), 1) for position in (0, 1)}
    columns = ["token", "sinks", "occurrences", "heads", "alpha", "first", "last"]
    table = measurement.sink_tokens()[columns]
    inside = table[(table["last"] > 1) & (table["occurrences"] >= 4)].sort_values("heads", ascending=False)
    strong = measurement.sink_tokens(least=QUARTER)[columns]
    return rates | {
        "strong": strong.round(2).to_dict("records"),
        "inside": inside.head(4).round(2).to_dict("records"),
    }


def looked_at(model: Any, prompt: Tensor) -> dict[str, Any]:
    """How often the strongest key of a head is position 0, and the value norms of the two strongest keys (medians)."""
    with ss.observe(model, StrongestKeys(2)) as observation:
        options = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False}
        model.generate(prompt, attention_mask=torch.ones_like(prompt), pad_token_id=0, **options)
    features = observation.measurement().features(2)
    first = features["key"].isel(strongest=0) == 0
    norms = [float(features["value_norm"].isel(strongest=rank).where(first).median()) for rank in (0, 1)]
    prompts = {"prompts": len(prompt), "tokens": prompt.shape[1], "written": WRITTEN}
    return prompts | {"share_at_0": round(float(first.mean()), 3), "value_norms": [round(norm, 1) for norm in norms]}


def standing_out(model: Any, rows: Tensor) -> dict[str, Any]:
    """How many tokens `Outliers` finds, and how many of them are no measured sink."""
    inputs = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    sinks, both = (
        torch.as_tensor(ss.find_tokens(model, inputs, choice).columns(inputs["attention_mask"]))
        for choice in (Measured(), Measured() + Outliers())
    )
    more = (both & ~sinks).sum(-1)
    counts = {"texts": len(rows), "of": rows.numel(), "sinks": int(sinks.sum()), "tokens": int(both.sum())}
    return counts | {"more_a_text": [int(more.min()), int(more.max())]}


if __name__ == "__main__":
    main()
