"""How large each token's entries are where linear maps are given them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.hooks import (
    Projection,
    Stream,
    checked_inputs,
    device_of,
    evaluating,
    part,
    projections,
    unwrapped,
)
from sinkscope.quantization.spared.columns import columns_of

BATCH = 8  # rows that go through the model at once


@dataclass(frozen=True, eq=False)
class Site:
    """What goes into a linear map: `path` of its module, `kinds` of what it makes, running number of its `block`."""

    path: str
    kinds: tuple[str, ...]
    block: int
    projection: Projection

    @property
    def name(self) -> str:
        return "+".join(self.kinds)


def sites(model: nn.Module) -> list[Site]:
    """The inputs of the linear maps in the blocks of the changed stack, in the order of its modules.

    Maps of one attention layer that are given the same tensor (query, key, value) are sites of their own, since what
    they are given is only known once it is. Raises `UnsupportedModelError` for a model without such blocks.
    """
    model = unwrapped(model)
    stream = Stream.of(model)
    stream.check_blocks()
    block_of = {module: n for n, block in enumerate(stream.blocks) for module in block.modules()}
    found: dict[nn.Module, list[Projection]] = {}
    for one in projections(model):
        if one.module in block_of:
            found.setdefault(one.module, []).append(one)
    return [
        Site(parts[0].path, tuple(dict.fromkeys(part.kind for part in parts)), block_of[module], parts[0])
        for module, parts in found.items()
    ]


@dataclass(frozen=True, eq=False)
class Peaks:
    """max_j |x_tj| of every token t, (row, position), by the site's path; `unread`: sites that are given other tokens.

    Those are the maps of single experts, which are given the tokens that were routed to them.
    """

    values: Mapping[str, Float[Tensor, "row position"]]
    unread: tuple[str, ...]


def peaks(model: nn.Module, inputs: Any, places: Sequence[Site]) -> Peaks:
    """The peaks at these sites: one pass in full precision, without a cache. Padding has some value as well.

    Raises `InputError` for inputs that continue a cache.
    """
    model = unwrapped(model)
    given, samples = checked_inputs(model, inputs, BATCH)
    check_whole(given)
    columns = columns_of(model, given).index.shape[1]
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    found: dict[str, list[Tensor]] = {place.path: [] for place in places}
    unread: dict[str, None] = {}
    seen: dict[str, Tensor] = {}

    def read(path: str, x: Tensor) -> None:
        size = x.detach().abs().amax(-1).float().flatten()
        if len(size) != rows * columns:
            unread[path] = None
            return
        size = size.view(rows, columns).cpu()
        seen[path] = torch.maximum(seen[path], size) if path in seen else size  # of a map that is used several times

    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for place in places:
            place.projection.read_input(partial(read, place.path), stack)
        for start in range(0, samples, BATCH):
            rows = min(BATCH, samples - start)
            seen.clear()
            model(**part(given, slice(start, start + rows), samples, device_of(model)), **options)
            for path, parts in found.items():
                parts.append(seen.get(path, torch.full((rows, columns), torch.nan)))
    return Peaks({path: torch.cat(parts) for path, parts in found.items() if path not in unread}, tuple(unread))


def check_whole(given: Mapping[str, Any]) -> None:
    """Raises `InputError` for inputs that continue a cache: another pass over them would write into it."""
    cache = given.get("past_key_values")
    if isinstance(cache, Cache) and cache.get_seq_length():
        raise InputError(
            "these inputs continue a cache, which another look at them would change: give whole rows, from their first "
            "token on, or choose tokens by their positions or ids"
        )
