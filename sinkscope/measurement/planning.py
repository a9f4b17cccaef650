"""The memory, disk and time that a measurement would take, before its model is loaded."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

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
    width, layers, heads = (
        _largest(config, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    inner = _largest(config, "intermediate_size") or 4 * width
    batch, tokens = min(batch_size, samples), _tokens_read(model, tokens)
    stream = batch * tokens * (8 * width + 2 * inner) * kept.itemsize
    chunk = 3 * 4 * batch * heads * min(CHUNK, tokens) * tokens
    forward = samples * tokens * (2 * (parameters - _looked_up(model)) + 4 * layers * width * tokens)
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


def _largest(config: Any, key: str) -> int:
    """A size in a configuration, the largest where each layer has its own; 0 where there is none."""
    size = getattr(config, key, None) or 0
    return max(map(int, size)) if isinstance(size, list | tuple) else int(size)


def _looked_up(model: PreTrainedModel) -> int:
    """The parameters of the embedding, of which a token reads one row; 0 for patches, which multiply all of theirs."""
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:  # of models of several towers
        return 0
    return embedding.weight.numel() if isinstance(embedding, nn.Embedding) else 0


def _tokens_read(model: PreTrainedModel, tokens: int) -> int:
    """The patches of an image and one token more, for models that read images alone; `tokens` for others."""
    if model.main_input_name != "pixel_values":
        return tokens
    image, patch = (_sides(getattr(model.config, key, None)) for key in ("image_size", "patch_size"))
    if not image or not patch:
        return tokens
    return 1 + (image[0] // patch[0]) * (image[1] // patch[1])


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width, which a configuration may give as one number."""
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None


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
