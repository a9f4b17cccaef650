"""Against the usual way, both at the same batch sizes: eager attention maps saved to disk, then loaded and reduced.

96 rows of 64 random tokens through nano, or 16 rows through `--model NAME`, fp32; each side in processes of its own,
in turns, one text at a time (as published scripts do) and `BATCH` at once. Memory is the peak above that of the process
after its first batch. With the 30 layers of SmolLM2-135M both sides differ by more than 1e-6, by rounding: of 4 texts
maps are 4.8e-6 from those in fp64, measure 1.9e-6.

Run: python -m benchmarks.reference_method [--model NAME] [--save]
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
from benchmarks.sides import at_least, at_most, beside, report

LENGTH, EPSILON, BATCH = 64, 0.3, 8
NAME = sys.argv[sys.argv.index("--model") + 1] if "--model" in sys.argv else "nano"
SAMPLES, ROUNDS = (96, 5) if NAME == "nano" else (16, 3)


def child(what: str, batch: int, folder: Path) -> None:
    import torch

    import sinkscope as ss

    model = ss.load(NAME)
    model = (model.to_llama() if NAME == "nano" else model).eval()
    model.set_attn_implementation("eager" if what == "maps" else "sdpa")
    ids = torch.randint(0, model.config.vocab_size, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    side = _maps if what == "maps" else _measured
    with tempfile.TemporaryDirectory() as warm:
        side(model, ids[:BATCH], batch, Path(warm))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    received, rates = side(model, ids, batch, folder)
    seconds = time.perf_counter() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    disk = sum(path.stat().st_size for path in folder.iterdir()) / 1024**2
    print(json.dumps({"seconds": seconds, "memory": memory, "disk": disk, "received": received, "rates": rates}))


def _maps(model: Any, ids: Any, batch: int, folder: Path) -> tuple[list[float], list[float]]:
    """Every map of every text in memory and on disk, then the paper's reduction over the whole stack."""
    import numpy as np
    import torch

    with torch.no_grad():
        texts = [model(row, output_attentions=True, use_cache=False).attentions for row in ids.split(batch)]
    np.save(folder / "maps.npy", np.concatenate([torch.stack(maps, 1).numpy() for maps in texts]))
    del texts
    maps = np.load(folder / "maps.npy")  # (N, L, H, T, T)
    received = maps.sum(-2) / np.arange(LENGTH, 0, -1)
    return received[:, :, :, 0].ravel().tolist(), (100 * (received > EPSILON).mean((0, 1, 2))).tolist()


def _measured(model: Any, ids: Any, batch: int, folder: Path) -> tuple[list[float], list[float]]:
    import sinkscope as ss

    measured = ss.measure(model, ids, observers=[ss.AttentionReceived("all")], batch_size=batch)
    measured.save(folder / "measurement.nc")
    received = measured.data["attention_received"].values[..., 0]
    return received.ravel().tolist(), measured.sink_rate(EPSILON).values.tolist()


def run(what: str, batch: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, "child", what, str(batch), folder, "--model", NAME]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _largest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main() -> None:
    keep()
    title = Path(NAME).name  # a path is of this machine
    figures = []
    for batch in (1, BATCH):
        rounds = [{what: run(what, batch) for what in ("maps", "measure")} for _ in range(ROUNDS)]
        sides = {what: min((each[what] for each in rounds), key=lambda side: side["seconds"]) for what in rounds[0]}
        maps, ours = sides["maps"], sides["measure"]
        rates, received = (_largest(maps[name], ours[name]) for name in ("rates", "received"))
        where = f"{title}, batch {batch}"
        figures += [
            at_most(f"{where}: largest difference of sink rates / the limit", rates, 1e-4, 1.0, "%"),
            at_most(f"{where}: largest difference of attention received / the limit", received, 1e-6, 1.0, ""),
            beside(f"{where}: time of maps / measure", maps["seconds"], ours["seconds"]),
            beside(f"{where}: memory above the loaded model, maps / measure", maps["memory"], ours["memory"], "MB"),
            at_least(f"{where}: disk, maps / measure", maps["disk"], ours["disk"], 50.0, "MB"),
        ]
    report("reference_method" if NAME == "nano" else f"reference_method_{title}", figures)


if __name__ == "__main__":
    child(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])) if sys.argv[1:2] == ["child"] else main()
