"""The memory, disk and time that a measurement would take, before its model is loaded."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import InputError
from sinkscope.model import SHIPPED, blueprint

CHUNK = 128  # queries whose weights are read at once
VARIABLES = 12  # arrays of (layer, head, position) kept by all observers, approximately
PASSES = (1.0, 4.0)  # cost of reading everything, in forward passes; more for long rows
GIB = 2**30


@dataclass(frozen=True)
class MeasuringPlan:
    """Parameters are counted; memory, disk and seconds are estimates (bytes; seconds shortest and longest).

    `weights`: in memory at the requested precision. `beside`: activations of a batch. `download`: weights as stored, 0
    if they are on this machine. `results`: the file of the measurement. `rate`: FLOP/s of matrix products, just
    measured on this machine's device; `seconds` follow from it.
    """

    model: str
    parameters: int
    dtype: str
    device: str
    batch_size: int
    weights: int
    beside: int
    download: int
    results: int
    rate: float
    seconds: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def plan(
    name: str,
    *,
    tokens: int,
    samples: int,
    batch_size: int,
    dtype: str = "auto",
    device: str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> MeasuringPlan:
    """Memory, disk and time of measuring a model with all observers, from its configuration alone.

    A forward pass takes 2 P FLOP per token, P the parameters without the embedding, and 4 L d T for attention (Kaplan
    et al. 2020). Reading every position of every head costs up to as much as three further passes. Raises `InputError`
    as `load` does.

    Args:
        name: A model, as `load` takes it.
        tokens: Length of a sample, T.
        samples: Number of samples.
        batch_size: Samples that are run at once.
        dtype: Precision of the weights; "auto" is the stored one.
        device: The device to measure on, whose speed is tried.
        revision, trust_remote_code: As in `load`.
    """
    model = blueprint(name, revision=revision, trust_remote_code=trust_remote_code)
    config = model.config.get_text_config()
    stored = getattr(model.config, "dtype", None) or torch.float32
    usual = torch.float32 if name in SHIPPED else stored
    kept = usual if dtype == "auto" else getattr(torch, dtype, None)
    if not isinstance(kept, torch.dtype):
        raise InputError(f"dtype '{dtype}': no precision of torch")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    width, layers = (int(getattr(config, key, 0) or 0) for key in ("hidden_size", "num_hidden_layers"))
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    inner = int(getattr(config, "intermediate_size", 0) or 4 * width)
    batch = min(batch_size, samples)
    stream = batch * tokens * (8 * width + 2 * inner) * kept.itemsize
    chunk = 3 * 4 * batch * heads * min(CHUNK, tokens) * tokens
    embedding = model.get_input_embeddings()
    looked_up = embedding.weight.numel() if embedding is not None else 0
    forward = samples * tokens * (2 * (parameters - looked_up) + 4 * layers * width * tokens)
    rate = measured_rate(device, kept)
    local = name in SHIPPED or Path(name).expanduser().exists()
    return MeasuringPlan(
        model=name,
        parameters=parameters,
        dtype=str(kept).removeprefix("torch."),
        device=device,
        batch_size=batch,
        weights=parameters * kept.itemsize,
        beside=stream + chunk,
        download=0 if local else parameters * stored.itemsize,
        results=VARIABLES * 4 * samples * layers * max(heads, 1) * tokens,
        rate=rate,
        seconds=(PASSES[0] * forward / rate, PASSES[1] * forward / rate),
    )


def measured_rate(device: str, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of matrix products of 512 × 512, measured for about this many seconds.

    From the median product, since pauses in which other programs run say nothing of the machine.
    """
    factor = torch.ones(512, 512, device=device, dtype=dtype)
    synchronize = torch.cuda.synchronize if torch.device(device).type == "cuda" else (lambda: None)
    factor @ factor
    synchronize()
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        factor @ factor
        synchronize()
        times.append(time.perf_counter() - start)
    return 2 * 512**3 / statistics.median(times)
