"""What a measurement's record says about where its numbers come from."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn

from sinkscope import __version__
from sinkscope.attention import Operation
from sinkscope.hooks import sink_tokens, vision_prefix, vision_suffix
from sinkscope.measurement.batch import Batch

SHOWN = 8  # distinct first tokens that a record lists


def describe(model: nn.Module, family: str, batches: Sequence[Batch], operations: Sequence[object]) -> dict[str, Any]:
    """Model, versions, weights that the metric used, and what stood at position 0: JSON-able."""
    config = getattr(model, "config", None)
    parameter = next((weight for weight in model.parameters() if not weight.is_meta), torch.empty(0))
    return {
        "model": str(getattr(config, "name_or_path", "") or "") or type(model).__name__,
        "family": family,
        "class": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": parameter.device.type,
        "metric_weights": sorted({_metric_weights(operation) for operation in operations}),
        "input": _inputs(batches),
        **({"vision_prefix": prefix} if (prefix := vision_prefix(model)) else {}),
        **({"vision_suffix": suffix} if (suffix := vision_suffix(model)) else {}),
        **({"sink_tokens": learned} if (learned := sink_tokens(model)) else {}),
        "versions": {
            "sinkscope": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _metric_weights(operation: object) -> str:
    return operation.spec.metric_weights if isinstance(operation, Operation) else "raw"


def _inputs(batches: Sequence[Batch]) -> dict[str, Any]:
    """Token ids at position 0 (the first real token of each sample) and a hash of all ids; nothing without ids.

    Where learned tokens take the first positions, the ids are those of the first position behind them.
    """
    digest, first, learned = hashlib.sha256(), [], max((batch.prefix for batch in batches), default=0)
    for batch in batches:
        for ids in batch.ids:
            digest.update(ids.cpu().numpy().tobytes())
        if batch.ids and batch.first == 0:
            ids = batch.ids[0].cpu()
            real = batch.real.get("tokens", torch.ones(1)).cpu()
            start = (
                real[:, learned : learned + ids.shape[1]].int().argmax(-1)
                if real.ndim == 2
                else torch.zeros(len(ids), dtype=torch.int64)
            )
            first += ids.gather(1, start[:, None])[:, 0].tolist()
    if not first:
        return {"position_0": "no token ids were given"}
    distinct = sorted(set(first))
    found = {f"position_{learned}": {"token_ids": distinct[:SHOWN], "distinct": len(distinct)}}
    return {**({"position_0": "a learned sink token"} if learned else {}), **found, "sha256": digest.hexdigest()}
