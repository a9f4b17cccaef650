"""Whether everything that was to be measured has numbers, and what has none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from torch import nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Layer, has_attention
from sinkscope.probes.batch import Batch
from sinkscope.probes.left_out import LeftOut, starred

FRAMEWORKS = ("torch", "sinkscope")


def forget(left_out: LeftOut, batches: Sequence[Batch], layers: Collection[Layer], family: str) -> None:
    """Take out of `batches` every layer of a kind that some pass could not read.

    Raises `UnsupportedModelError` where no layer, or nothing at all, is left.
    """
    for batch in batches:
        for place in [place for place in batch.places if isinstance(place, Layer) and left_out.holds(place)]:
            del batch.places[place]
    if left_out.refused and not any(isinstance(place, Layer) for batch in batches for place in batch.places):
        raise UnsupportedModelError(next(iter(left_out.refused.values())))
    if any(sums.sums for batch in batches for sums in batch.places.values()):
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


def of_another_package(model: nn.Module) -> dict[str, str]:
    """Why attention has no numbers that code of another package than the model's own computes, as in a tower of timm.

    By the path of its modules, with a star for each number.
    """
    known = (*FRAMEWORKS, _package(model))
    return {
        starred(path): f"is attention of {_package(module)}, of whose code nothing is read"
        for path, module in model.named_modules()
        if type(module).__name__.endswith("Attention") and _package(module) not in known and not has_attention(module)
    }


def _package(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]
