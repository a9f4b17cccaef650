"""Against the usual way, a text at a time: eager attention maps saved to disk, then loaded and reduced.

100 rows of 64 random tokens through the shipped nano, fp32; each side in processes of its own, in turns. The maps are
made a text at a time, as published scripts do; we measure 20 at once. Memory is the peak above that of the process
after its first batch. Run: python -m benchmarks.reference_method [--save]
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

from benchmarks.memory import keep
from benchmarks.sides import Figure, at_least, report

SAMPLES, LENGTH, EPSILON, ROUNDS, BATCH = 100, 64, 0.3, 5, 20


def child(what: str, folder: Path) -> None:
    import torch

    import sinkscope as ss

    model = ss.load("nano").to_llama().eval()
    model.set_attn_implementation("eager" if what == "maps" else "sdpa")
    ids = torch.randint(0, model.config.vocab_size, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    side = _maps if what == "maps" else _measured
    with tempfile.TemporaryDirectory() as warm:
        side(model, ids[:BATCH], Path(warm))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    received, rates = side(model, ids, folder)
    seconds = time.perf_counter() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    disk = sum(path.stat().st_size for path in folder.iterdir()) / 1024**2
    print(json.dumps({"seconds": seconds, "memory": memory, "disk": disk, "received": received, "rates": rates}))


def _maps(model: Any, ids: Any, folder: Path) -> tuple[list[float], list[float]]:
    """Every map of every text in memory and on disk, then the paper's reduction over the whole stack."""
    import numpy as np
    import torch

    with torch.no_grad():
        texts = [model(row, output_attentions=True, use_cache=False).attentions for row in ids.split(1)]
    np.save(folder / "maps.npy", np.concatenate([torch.stack(maps, 1).numpy() for maps in texts]))
    del texts
    maps = np.load(folder / "maps.npy")  # (N, L, H, T, T)
    received = maps.sum(-2) / np.arange(LENGTH, 0, -1)
    return received[:, :, :, 0].ravel().tolist(), (100 * (received > EPSILON).mean((0, 1, 2))).tolist()


def _measured(model: Any, ids: Any, folder: Path) -> tuple[list[float], list[float]]:
    import sinkscope as ss

    measured = ss.measure(model, ids, observers=[ss.AttentionReceived("all")], batch_size=BATCH)
    measured.save(folder / "measurement.nc")
    received = measured.data["attention_received"].values[..., 0]
    return received.ravel().tolist(), measured.sink_rate(EPSILON).values.tolist()


def run(what: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, "child", what, folder]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _largest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main() -> None:
    keep()
    rounds = [{what: run(what) for what in ("maps", "measure")} for _ in range(ROUNDS)]
    sides = {what: min((each[what] for each in rounds), key=lambda side: side["seconds"]) for what in rounds[0]}
    maps, ours = sides["maps"], sides["measure"]
    rates, received = (_largest(maps[name], ours[name]) for name in ("rates", "received"))
    report(
        "reference_method",
        [
            Figure("largest difference of sink rates / the limit", rates, 1e-6, "%", "<= 1", rates <= 1e-6),
            Figure(
                "largest difference of attention received / the limit", received, 1e-6, "", "<= 1", received <= 1e-6
            ),
            at_least("time of maps / measure", maps["seconds"], ours["seconds"], 5.0),
            at_least("memory above the loaded model: maps / measure", maps["memory"], ours["memory"], 50.0, "MB"),
            at_least("disk: maps / measure", maps["disk"], ours["disk"], 50.0, "MB"),
        ],
    )


if __name__ == "__main__":
    child(sys.argv[2], Path(sys.argv[3])) if sys.argv[1:2] == ["child"] else main()
