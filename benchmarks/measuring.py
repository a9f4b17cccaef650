"""What `sinkscope measure` says of a model, as pages show it: each part with the command that a user types.

Run: python -m benchmarks.measuring MODEL [--save]

A pretrained decoder: by layer, definition, head, depth, kind of token, length and threshold, and by input. The shipped
encoder and hybrid: what their own pages show.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sinkscope as ss
from benchmarks.sides import REAL, provenance
from sinkscope.files import write_json
from sinkscope.measurement.metrics import key_manifold

SAMPLES = ("--samples", "20")
INPUTS = ("natural", "random", "repeated")
HEADS = ("layer", "head", "alpha", "sink", "lift", "value_ratio", "key_ratio", "cos_sink", "cos_others", "output_norm")
HEADS += ("sink_output_constancy", "kind")
MANY = ("--samples", "100")  # for models of four layers, of which few heads have a sink
THRESHOLD = 0.1  # at which the encoder has a sink

Says = Callable[..., "Said"]


class Said:
    """A finished command: its line, its folder, what it printed, and what stands in its tables."""

    def __init__(self, command: str, folder: Path, printed: str) -> None:
        self.command, self.folder, self.printed = command, folder, printed

    def measurement(self) -> ss.Measurement:
        return ss.Measurement.load(self.folder / "measurement.nc")

    def rows(self, name: str, *columns: str) -> list[dict[str, Any]]:
        """The columns of a table, all of them unless some are named, to six significant digits."""
        frame = pd.read_csv(self.folder / f"{name}.csv", keep_default_na=False, na_values=[""])
        return records(frame[list(columns)] if columns else frame)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    if asked.model is None:  # as `make bench` calls it
        print(__doc__)
        return
    name = Path(asked.model).name
    parts = {"nano-encoder": encoder, "nano-hybrid": hybrid}.get(name, decoder)
    with tempfile.TemporaryDirectory() as temporary:

        def says(*options: str) -> Said:
            folder = Path(tempfile.mkdtemp(dir=temporary))
            call = [sys.executable, "-m", "sinkscope", "measure", name, *options, "--out", str(folder)]
            place = Path(asked.model).parent  # the command names the model as it is typed, here beside it
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, cwd=place)
            return Said(shlex.join(["sinkscope", "measure", name, *options]), folder, done.stdout)

        found = {"model": name, **parts(says), "provenance": provenance()}
    ending = name if parts is not decoder else name.partition("-")[0].lower()
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"measure_{ending.replace('-', '_')}.json"
    write_json(path, found)
    print(f"written: {path}")


def decoder(says: Says) -> dict[str, Any]:
    """Where its sink is, by every definition, by which mechanism, and on what it reads."""
    said = says(*SAMPLES, "--observers", "all,SpectralBands")
    m = said.measurement()
    compared = says(*(word for name in INPUTS for word in ("--input", name)), *SAMPLES)
    first = says("--input", "first-token", "--samples", "40", "--tokens", "32", "--observers", "few")
    keys, sweep = key_manifold(m.data["key_vectors"].values, position=0), m.sweep().dropna("length")
    return {
        "command": said.command,
        "input": m.record["input"],
        "answer": said.printed.splitlines()[: len(m.summary().sentences)],
        "layers": said.rows("table"),
        "definitions": said.rows("definitions", "definition", "rule", "sinks", "position_0", "agreement"),
        "heads": said.rows("heads", *HEADS),
        "depths": said.rows("depths", "depth", "hidden_norm_ratio", "largest", "median", "kurtosis"),
        "massive": said.rows("massive"),
        "key_angle": {"degrees": median_degrees(keys.angle), "chance": median_degrees(keys.chance)},
        "tokens": said.rows("tokens"),
        "kinds": said.rows("kinds"),
        "positions": rounded(m.layer_sink_rate().mean("layer").values),
        "sweep": {
            "epsilon": sweep["epsilon"].values.tolist(),
            "length": sweep["length"].values.tolist(),
            "rates": [rounded(row) for row in sweep.values],
        },
        "inputs_command": compared.command,
        "inputs": compared.rows(
            "table", "input", "first", "sink_rate", "low", "high", "hidden_norm_ratio", "value_norm_ratio"
        ),
        "first_command": first.command,
        "first_tokens": first.rows("first_tokens"),
    }


def encoder(says: Says) -> dict[str, Any]:
    """Its two special tokens by layer, and all kinds of token."""
    said = says(*MANY, "--tokens", "128")
    m = said.measurement()
    few = says(*SAMPLES, "--observers", "few")
    received = m.data["attention_received"].mean(("sample", "head"))
    last = received.sizes["position"] - 1
    by_layer = [{"cls": float(layer[0]), "sep": float(layer[last])} for layer in received.values]
    lower = few.measurement().sink_tokens(epsilon=THRESHOLD)
    return {
        "command": said.command,
        "tokens": last + 1,
        "layers": [row | rounded_row(more) for row, more in zip(said.rows("table"), by_layer, strict=True)],
        "hidden_norm_ratio": rounded(m.hidden_norm_ratio().values),
        "kinds": said.rows("kinds"),
        "few_command": few.command,
        "few_kinds": few.rows("kinds"),
        "few_tokens": few.rows("tokens"),
        "lower": records(lower[["token", "sinks", "occurrences", "heads", "alpha"]]),
    }


def hybrid(says: Says) -> dict[str, Any]:
    """Its one attention layer, on text and noise, with a BOS and without."""
    inputs = (("natural", "auto"), ("random", "add"), ("natural", "none"), ("random", "auto"), ("repeated", "auto"))
    rows = []
    for kind, bos in inputs:
        said = says("--input", kind, *(() if bos == "auto" else ("--bos", bos)), *MANY)
        m = said.measurement()
        alpha = m.data["attention_received"].sel(position=0).mean("sample").values
        rate = m.sink_rate_interval(position=0)
        rows.append(
            {
                "command": said.command,
                "input": kind,
                "first": m.record["input"]["first"],
                "sink_rate": rate.value,
                "low": rate.low,
                "high": rate.high,
                "alpha": rounded(alpha[0]),
                "value_norm_ratio": float(m.value_norm_ratio().values[0]),
                "hidden_norm_ratio": rounded(m.hidden_norm_ratio().values),
            }
        )
    return {"inputs": [rounded_row(row) for row in rows]}


def median_degrees(angles: Any) -> float:
    return round(float(np.degrees(np.median(angles))), 1)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table, without what is missing."""
    return [
        rounded_row({key: value for key, value in row.items() if pd.notna(value)}) for row in frame.to_dict("records")
    ]


def rounded_row(row: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def rounded(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=float)]


if __name__ == "__main__":
    main()
