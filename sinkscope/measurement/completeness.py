"""Whether everything that was to be measured has numbers, and what has none."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from torch import nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Layer, has_attention
from sinkscope.measurement.batch import Batch
from sinkscope.measurement.left_out import LeftOut, starred

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
