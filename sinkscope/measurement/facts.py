"""What a measurement's record says about where its numbers come from."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
import transformers
from torch import nn

from sinkscope import __version__
from sinkscope.attention import Operation
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Layer, has_attention, sink_tokens, vision_prefix, vision_suffix
from sinkscope.measurement.batch import Batch, LeftOut, starred

FRAMEWORKS = ("torch", "sinkscope")
_ATTENDS = re.compile(r"(Attention|AttentionPoolingHead|AttnBlock)$")  # by the names of classes, all that there is


def forget(left_out: LeftOut, batches: Sequence[Batch], layers: Collection[Layer], family: str) -> None:
    """Take out of `batches` every layer of a kind that some pass could not read.

    Raises `UnsupportedModelError` where no layer, or nothing at all, is left.
    """
    for batch in batches:
        for place in [place for place in batch.places if isinstance(place, Layer) and left_out.holds(place)]:
            del batch.places[place]
    if left_out.refused and not any(isinstance(place, Layer) for batch in batches for place in batch.places):
        raise UnsupportedModelError(next(iter(left_out.refused.values())))
    if any(sums.observed for batch in batches for sums in batch.places.values()):
        return
    for where, reason in left_out.named(layers, ()).items():
        raise UnsupportedModelError(f"family '{family}', {where}: {reason}; nothing else was to be measured")


def check_complete(left_out: LeftOut, batches: Sequence[Batch], layers: Collection[Layer], family: str) -> None:
    """Raises `UnsupportedModelError` where a layer was never called beside others of its sub-model."""
    for batch in batches:
        called = {place.name.partition("#")[0] for place in batch.places if isinstance(place, Layer)}
        used = {place.tower for place in batch.places if isinstance(place, Layer)}
        expected = [layer.name for layer in layers if layer.tower in used and not left_out.holds(layer)]
        missing = [name for name in expected if name not in called]
        if missing or not called:
            raise UnsupportedModelError(
                f"family '{family}': attention of {', '.join(missing) or 'every layer'} was never called through "
                "AttentionInterface, so it would be missing from the measurement; another implementation may be "
                "observable (attn_implementation='eager' or 'sdpa')"
            )


def not_measured(
    left_out: LeftOut, batches: Sequence[Batch], layers: Collection[Layer], own: Iterable[str]
) -> dict[str, str]:
    """Why stacks, or sub-models of a stack, have no numbers; `own`: stacks that the model has in any case."""
    seen = {place for batch in batches for place in batch.places if isinstance(place, Layer)}
    stacks, towers = {place.stack for place in seen}, {place.tower for place in seen}
    absent = {
        f"{layer.stack} of {layer.tower[1]}" if layer.stack in stacks else layer.stack: "was never called"
        for layer in layers
        if layer.tower not in towers and not left_out.holds(layer)
    }
    known = stacks | {layer.stack for layer in layers}
    absent |= {stack: "has attention of its own" for stack in own if stack not in known}
    return absent | left_out.named(layers, seen)


def by_other_code(model: nn.Module, layers: Collection[Layer]) -> dict[str, str]:
    """Why attention has no numbers that stands in no layer: its module computes it without AttentionInterface.

    As a pooling head of SigLIP, SAM's vision tower under SDPA, linear attention, a tower of timm. By the path of the
    outermost such module, with a star for each number.
    """
    known = (*FRAMEWORKS, _package(model))
    taken = {layer.name.partition("#")[0] for layer in layers}
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        if not _ATTENDS.search(type(module).__name__) or has_attention(module):
            continue
        if any(_within(path, other) or _within(other, path) for other in taken):
            continue
        taken.add(path)
        package = _package(module)
        whose = "" if package in known else f"{package}'s "
        found[starred(path)] = (
            f"is {whose}{type(module).__name__}, attention by code of its own, of which nothing is read"
        )
    return found


def _within(path: str, other: str) -> bool:
    """Whether a module is another one, or stands in it."""
    return f"{path}.".startswith(f"{other}.")


def _package(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]


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
