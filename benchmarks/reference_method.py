"""Against the usual way: eager attention maps saved to disk, then reduced. 100 texts of 64 tokens, GPT-2 size.

Each side runs in processes of its own, in turns. Run: python -m benchmarks.reference_method [--save]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sides import Figure, at_least, report

SAMPLES, LENGTH, EPSILON, ROUNDS = 100, 64, 0.3, 3


def child(what: str, folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    attention = "eager" if what == "maps" else "sdpa"
    model = GPT2LMHeadModel(GPT2Config(n_positions=LENGTH, attn_implementation=attention)).eval()
    with torch.no_grad():  # far from uniform attention, so that rates are neither 0 nor 100 %
        for block in model.transformer.h:
            block.attn.c_attn.weight.mul_(9)
    ids = torch.randint(0, model.config.vocab_size, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    rates = (_maps if what == "maps" else _measured)(model, ids, folder)
    seconds = time.perf_counter() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    disk = sum(path.stat().st_size for path in folder.iterdir()) / 1024**2
    print(json.dumps({"seconds": seconds, "memory": memory, "disk": disk, "rates": rates}))


def _maps(model: Any, ids: Any, folder: Path) -> list[float]:
    """Every map of every text in memory and on disk, then catalogue C1's reduction over the whole stack."""
    import numpy as np
    import torch

    with torch.no_grad():
        batches = [model(rows, output_attentions=True, use_cache=False).attentions for rows in ids.split(10)]
    np.save(folder / "maps.npy", np.concatenate([torch.stack(maps, 1).numpy() for maps in batches]))
    del batches
    maps = np.load(folder / "maps.npy")  # (N, L, H, T, T)
    received = maps.sum(-2) / np.arange(LENGTH, 0, -1)
    return (100 * (received > EPSILON).mean((0, 1, 2))).tolist()


def _measured(model: Any, ids: Any, folder: Path) -> list[float]:
    import sinkscope as ss

    measured = ss.measure(model, ids, observers=[ss.AttentionReceived("all")], batch_size=10)
    measured.save(folder / "measurement.nc")
    return measured.sink_rate(EPSILON).values.tolist()


def run(what: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, "child", what, folder]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    rounds = [{what: run(what) for what in ("maps", "measure")} for _ in range(ROUNDS)]
    sides = {what: min((each[what] for each in rounds), key=lambda side: side["seconds"]) for what in rounds[0]}
    maps, ours = sides["maps"], sides["measure"]
    difference = max(abs(a - b) for a, b in zip(maps["rates"], ours["rates"], strict=True))
    report(
        "reference_method",
        [
            Figure("largest difference of sink rates", difference, 1e-6, "%", "<= 1", difference <= 1e-6),
            at_least("time of maps / measure", maps["seconds"], ours["seconds"], 5.0),
            at_least("memory above the loaded model: maps / measure", maps["memory"], ours["memory"], 50.0, "MB"),
            at_least("disk: maps / measure", maps["disk"], ours["disk"], 50.0, "MB"),
        ],
    )


if __name__ == "__main__":
    child(sys.argv[2], Path(sys.argv[3])) if sys.argv[1:2] == ["child"] else main()
