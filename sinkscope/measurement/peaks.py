"""The largest entry of each token at the inputs of linear maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import (
    Projection,
    Stream,
    checked_inputs,
    device_of,
    evaluating,
    given_cache,
    part,
    projections,
    unwrapped,
    without_logits,
)
from sinkscope.model.columns import columns_of
from sinkscope.sinks import DOWN

MIXTURE = "experts"  # the role of a mixture of experts in one module
BATCH = 8  # rows that go through the model at once


Read = Callable[[Float[Tensor, "row position width"], int], object]
"""A reader of the tokens at a site; it also gets the number of the first row."""


@dataclass(frozen=True, eq=False)
class Site:
    """The input or output of a linear map: its module's `path`, its kinds, and the number of its block."""

    path: str
    kinds: tuple[str, ...]
    block: int
    projection: Projection
    side: Literal["input", "output"] = "input"

    @property
    def name(self) -> str:
        """A unique name among the sites of a model."""
        return self.path if self.side == "input" else f"{self.path}:{self.kinds[0]}"

    def read(self, read: Callable[[Tensor], object], stack: ExitStack) -> None:
        """Call `read` with the tensor at every use."""
        (self.projection.read_input if self.side == "input" else self.projection.read_output)(read, stack)


def sites(model: nn.Module) -> list[Site]:
    """The inputs of the linear maps in the blocks of the changed stack, in the order of its modules.

    Maps that share an input (query, key, value) are separate sites, because the sharing shows only at run time. Raises
    `UnsupportedModelError` for a model without such blocks.
    """
    by_module: dict[nn.Module, list[tuple[Projection, int]]] = {}
    for one, block in _projections(model):
        by_module.setdefault(one.module, []).append((one, block))
    return [
        Site(parts[0][0].path, tuple(dict.fromkeys(part.kind for part, _ in parts)), parts[0][1], parts[0][0])
        for parts in by_module.values()
    ]


def sites_of(model: nn.Module, kind: str) -> tuple[str, list[Site]]:
    """The sites whose maps are of a kind, and that kind.

    Where all feed-forwards are mixtures of experts in one module each, no map is of the kind "down": what the mixtures
    are given stands for it, "experts". Raises `InputError` for a kind that the model has no map of.
    """
    by_kind: dict[str, list[Site]] = {}
    for site in sites(model):
        for name in site.kinds:
            by_kind.setdefault(name, []).append(site)
    if kind == DOWN and kind not in by_kind and MIXTURE in by_kind:
        kind = MIXTURE
    if kind not in by_kind:
        raise unknown("site", kind, sorted(by_kind))
    return kind, by_kind[kind]


def cached_sites(model: nn.Module) -> list[Site]:
    """The keys and values that attention layers make, keys before any rotation; of MLA the latent that is cached."""
    kinds = {one.kind for one, _ in _projections(model)}
    wanted = ("latent", "rotary_key") if "latent" in kinds else ("key", "value")
    return [
        Site(one.path, (one.kind,), block, one, "output")
        for one, block in _projections(model)
        if one.owner and one.kind in wanted
    ]


def _projections(model: nn.Module) -> list[tuple[Projection, int]]:
    """Linear maps of the changed stack, with the number of their block."""
    model = unwrapped(model)
    stream = Stream.of(model)
    stream.check_blocks()
    block_of = {module: n for n, block in enumerate(stream.blocks) for module in block.modules()}
    return [(one, block_of[one.module]) for one in projections(model) if one.module in block_of]


@dataclass(frozen=True, eq=False)
class Peaks:
    """max_j |x_tj| of every token t, (row, position), by the site's name; `unread`: sites that see other tokens, namely
    maps of single experts, which see only routed tokens.
    """

    values: Mapping[str, Float[Tensor, "row position"]]
    unread: tuple[str, ...]


def peaks(model: nn.Module, inputs: Any, places: Sequence[Site]) -> Peaks:
    """The peaks at these sites: one pass in full precision, without a cache. Padding gets some value as well.

    Raises `InputError` for inputs that continue a cache.
    """
    model_inputs, samples = checked_inputs(unwrapped(model), inputs, BATCH)
    columns = columns_of(model, model_inputs).index.shape[1]
    maxima = {place.name: torch.full((samples, columns), torch.nan) for place in places}

    def largest(name: str) -> Read:
        def read(x: Tensor, start: int) -> None:
            rows = maxima[name][start : start + len(x)]
            # fmax ignores the NaN that maxima begin with; a map that is used several times keeps its largest.
            rows.copy_(torch.fmax(rows, x.abs().amax(-1).float().cpu()))

        return read

    unread = read_sites(model, model_inputs, {place: largest(place.name) for place in places})
    return Peaks({name: size for name, size in maxima.items() if name not in unread}, unread)


def read_sites(model: nn.Module, inputs: Any, reads: Mapping[Site, Read]) -> tuple[str, ...]:
    """Show every site's tokens to its reader, in one pass over the inputs; returns the sites that see other tokens."""
    model = unwrapped(model)
    model_inputs, samples = checked_inputs(model, inputs, BATCH)
    check_whole(model_inputs)
    columns = columns_of(model, model_inputs).index.shape[1]
    unread: dict[str, None] = {}
    # `shown` reads these as the loop below leaves them for each batch.
    start = rows = 0

    def shown(place: Site, read: Read, x: Tensor) -> None:
        # Some maps get flattened tokens, which reshape undoes; experts get only those that were routed to them.
        if x.shape[:-1].numel() != rows * columns:
            unread[place.name] = None
        else:
            read(x.detach().reshape(rows, columns, -1), start)

    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for place, read in reads.items():
            place.read(partial(shown, place, read), stack)
        for start in range(0, samples, BATCH):
            rows = min(BATCH, samples - start)
            batch = part(model_inputs, slice(start, start + rows), samples, device_of(model))
            model(**batch | without_logits(model, batch))
    return tuple(unread)


def check_whole(inputs: Mapping[str, Any]) -> None:
    """Raises `InputError` for inputs that continue a cache: another pass over them would write into it."""
    cache = given_cache(inputs)
    if cache is not None and cache.get_seq_length():
        raise InputError(
            "these inputs continue a cache, which another look at them would change: give whole rows, from their first "
            "token on, or choose tokens by their positions or ids"
        )
