"""Where the gradient of the loss goes in a trained model: at the first token, compared with another token of the row.

Texts as in `benchmarks.origin`: the first 64 tokens of docstrings, 32 for a pretrained model and 200 for the package's
own. Every token is predicted from those before it, and the mean loss of each text is differentiated once. Ratios are
geometric means over texts, with a t interval of their logarithms; the control is the token at position 20.

Run: python -m benchmarks.gradient_sinks [--model NAME] [--save]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import sinkscope as ss
from benchmarks.folding import CORPUS, TOKENS, texts
from benchmarks.sides import REAL, provenance
from sinkscope.files import write_json
from sinkscope.statistics import mean_interval

CONTROL, BATCH = 20, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    title, ours = Path(asked.model).name, asked.model.startswith("nano")
    model: Any = ss.load(asked.model)
    rows = texts(asked.model, TOKENS, 200 if ours else 32)
    start = time.perf_counter()
    with ss.GradientNorms(model) as gradients:
        for part in rows.split(BATCH):
            model(input_ids=part, labels=part).loss.backward()
            model.zero_grad()
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"model": title, "corpus": CORPUS, "tokens": TOKENS, "texts": len(rows)}
    ratios = gradients.ratios()
    for name, position in (("first", 0), ("control", CONTROL)):
        arrays = {"ratio": gradients.sink_ratio(position), "norm_factor": gradients.data.norm_factor[..., position]}
        arrays |= {str(kind): ratios[kind][..., position] for kind in ratios}
        found[name] = {kind: by_branch(values) for kind, values in arrays.items()}
    print({kind: branches["mixer"]["median layer"] for kind, branches in found["first"].items()})
    command = f"python -m benchmarks.gradient_sinks --model {title} --save"
    name = title if ours else title.partition("-")[0].lower()
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"gradient_sinks_{name.replace('-', '_')}.json"
    write_json(path, {"command": command, "seconds": round(seconds, 1), "provenance": provenance(), **found})


def by_branch(values: xr.DataArray) -> dict[str, Any]:
    """By branch: [mean, low, high] over texts of the median over layers, and of each layer."""
    logs = np.log(values.transpose("sample", "layer", "branch"))
    return {
        str(branch): {
            "median layer": bounds(part.median("layer").to_numpy()),
            "layers": [bounds(part[:, layer].to_numpy()) for layer in range(part.sizes["layer"])],
        }
        for branch, part in ((str(name), logs.sel(branch=name)) for name in logs.branch.values)
    }


def bounds(logs: np.ndarray) -> list[float]:
    """The geometric mean with its interval."""
    interval = mean_interval(logs[np.isfinite(logs)])
    return [float(f"{np.exp(value):.4g}") for value in (interval.value, interval.low, interval.high)]


if __name__ == "__main__":
    main()
