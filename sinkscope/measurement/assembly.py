"""Assemble the sums of all batches into one labeled measurement, with a record of where its numbers come from."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope import __version__
from sinkscope.attention import Operation
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    Depth,
    ExpertLayer,
    Layer,
    Place,
    has_attention,
    sink_tokens,
    vision_prefix,
    vision_suffix,
    weights_digest,
)
from sinkscope.measurement.batch import Batch, LeftOut, starred
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, divide
from sinkscope.measurement.selection import SHOWN, VISIBLE

FRAMEWORKS = ("torch", "sinkscope")
_ATTENDS = re.compile(r"(Attention|AttentionPoolingHead|AttnBlock)$")  # by class name: modules tell nothing else


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
    """Raises `UnsupportedModelError` if some layer of a used sub-model was never called."""
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
    left_out: LeftOut, batches: Sequence[Batch], layers: Collection[Layer], expected_stacks: Iterable[str]
) -> dict[str, str]:
    """Why stacks, or sub-models of a stack, have no numbers; `expected_stacks`: those that the model certainly has."""
    seen = {place for batch in batches for place in batch.places if isinstance(place, Layer)}
    stacks, towers = {place.stack for place in seen}, {place.tower for place in seen}
    absent = {
        f"{layer.stack} of {layer.tower[1]}" if layer.stack in stacks else layer.stack: "was never called"
        for layer in layers
        if layer.tower not in towers and not left_out.holds(layer)
    }
    known = stacks | {layer.stack for layer in layers}
    absent |= {stack: "has attention of its own" for stack in expected_stacks if stack not in known}
    return absent | left_out.named(layers, seen)


def by_other_code(model: nn.Module, layers: Collection[Layer]) -> dict[str, str]:
    """Modules that compute attention without AttentionInterface and so have no numbers, with the reason.

    Examples: the pooling head of SigLIP, SAM's vision tower under SDPA, linear attention, a timm tower. Keys are paths
    of the outermost such modules, with a star for each number.
    """
    known = (*FRAMEWORKS, _package(model))
    taken = {layer.name.partition("#")[0] for layer in layers}
    reasons: dict[str, str] = {}
    for path, module in model.named_modules():
        if not _ATTENDS.search(type(module).__name__) or has_attention(module):
            continue
        if any(_within(path, other) or _within(other, path) for other in taken):
            continue
        taken.add(path)
        package = _package(module)
        whose = "" if package in known else f"{package}'s "
        reasons[starred(path)] = (
            f"is {whose}{type(module).__name__}, attention by code of its own, of which nothing is read"
        )
    return reasons


def _within(path: str, other: str) -> bool:
    """Whether a module is another one, or inside it."""
    return f"{path}.".startswith(f"{other}.")


def _package(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]


def describe(model: nn.Module, family: str, batches: Sequence[Batch], operations: Sequence[object]) -> dict[str, Any]:
    """Model, versions, the weights that the metric used, and the tokens at position 0: JSON-able."""
    config = getattr(model, "config", None)
    parameter = next((weight for weight in model.parameters() if not weight.is_meta), torch.empty(0))
    return {
        "model": str(getattr(config, "name_or_path", "") or "") or type(model).__name__,
        "family": family,
        "class": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": parameter.device.type,
        "weights_sha256": weights_digest(model),
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

    If learned tokens take the first positions, the ids are those at the first position after them.
    """
    first, learned = [], max((batch.prefix for batch in batches), default=0)
    samples: list[tuple[int, bytes]] = []
    for batch in batches:
        if batch.ids:
            rows = torch.cat(list(batch.ids), 1).cpu().long().numpy()
            samples += [(number, row.tobytes()) for number, row in zip(batch.index, rows, strict=True)]
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
    # By sample: documents of one row are measured with those of other rows that are as long, whatever the batches.
    digest = hashlib.sha256(b"".join(ids for _, ids in sorted(samples)))
    first_ids = {f"position_{learned}": {"token_ids": distinct[:SHOWN], "distinct": len(distinct)}}
    return {**({"position_0": "a learned sink token"} if learned else {}), **first_ids, "sha256": digest.hexdigest()}


@dataclass(frozen=True, eq=False)
class _Result:
    """One array at one place for the samples of one batch, reduced to real tokens.

    `samples`: their numbers in the measurement, ascending. `positions`: a range if all are covered; None if no axis is
    a position.
    """

    name: str
    samples: slice | list[int]
    place: Place
    array: Array
    values: Float[np.ndarray, "batch heads *n"]
    positions: Sequence[int] | None

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes, including the place's."""
        sample = "sample" if self.array.kept is None else "kept"
        position = () if self.positions is None else ("position",)
        return (sample, *_axes(self.place, self.array.per_head), *position, *self.array.extra)


@dataclass(frozen=True, eq=False)
class _Places:
    """All places of a measurement, in order, by kind."""

    layers: Sequence[Layer]
    depths: Sequence[Depth]
    experts: Sequence[ExpertLayer]

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> _Places:
        places = list(dict.fromkeys(place for batch in batches for place in batch.places))
        return cls(
            _by_stack([place for place in places if isinstance(place, Layer)]),
            _by_stack([place for place in places if isinstance(place, Depth)]),
            [place for place in places if isinstance(place, ExpertLayer)],
        )

    @property
    def ranks(self) -> dict[Place, int]:
        """The index of each place among those of its kind."""
        kinds: tuple[Sequence[Place], ...] = (self.layers, self.depths, self.experts)
        return {place: index for kind in kinds for index, place in enumerate(kind)}


def assemble(batches: Sequence[Batch], observers: Sequence[Observer], facts: Mapping[str, Any]) -> Measurement:
    """The measurement. NaN and infinities become NaN; `record["non_finite"]` lists the places, in order of first
    use.
    """
    results, broken = list(_results(batches, observers)), _non_finite(batches)
    places = _Places.of(batches)
    samples = sum(batch.size for batch in batches)
    coordinates: dict[str, Any] = _coordinates(results, places) | _extra(results, observers)
    for name in ("row", "start"):
        numbers = {at: each for batch in batches for at, each in zip(batch.index, getattr(batch, name), strict=True)}
        coordinates[name] = ("sample", [numbers[at] for at in range(samples)])
    coordinates["causal"] = ("layer", [not _looks_ahead(batches, layer) for layer in places.layers])
    if (ids := _token_ids(batches)) is not None and "position" in coordinates:
        coordinates["token_id"] = (("sample", "position"), _at_positions(ids, np.array(coordinates["position"][1])))
    tokens = _tokens(batches, places.layers)
    record = {**facts, "samples": samples, "tokens": int(tokens.max()), "denominator": VISIBLE}
    record |= {"non_finite": broken} if broken else {}
    variables = _variables(results, places, samples) | {"tokens": (("sample", "layer"), tokens)}
    variables["queries"] = (("sample", "layer"), _per_layer(batches, places.layers, Batch.query_count))
    variables["most_queries"] = (("sample", "layer"), _per_layer(batches, places.layers, Batch.most_queries))
    if "position" in coordinates:
        variables |= _from_masks(batches, places, np.array(coordinates["position"][1]))
    return Measurement(xr.Dataset(variables, coordinates, {"record": json.dumps(record)}))


def compact(
    values: Float[Tensor, "batch heads n *extra"], real: Bool[Tensor, "batch position"]
) -> Float[Tensor, "batch heads position *extra"]:
    """Move the entries of real tokens to the front of the third axis, and fill the rest with NaN."""
    extra = values.shape[3:]
    missing = real.shape[1] - values.shape[2]
    # Sums end at the last position to which something was added.
    if missing > 0:
        values = torch.cat([values, values.new_full((*values.shape[:2], missing, *extra), torch.nan)], 2)
    if bool(real.all()):
        return values[:, :, : real.shape[1]]
    # A stable sort by padding keeps the order of real tokens.
    order = torch.argsort((~real).int(), dim=-1, stable=True)
    tail = torch.arange(real.shape[1]) >= real.sum(-1, keepdim=True)
    shape = (len(real), 1, real.shape[1], *(1 for _ in extra))
    front = values.gather(2, order.view(shape).expand_as(values))
    return front.masked_fill(tail.view(shape), torch.nan)


def _results(batches: Sequence[Batch], observers: Sequence[Observer]) -> Iterator[_Result]:
    whose: dict[str, str] = {}
    for batch in batches:
        for place in batch.places:
            known = dict(batch.sums_by_observer(place))
            for observer in observers:
                mine = type(observer).__name__
                if (sums := known.get(mine)) is None:
                    continue
                for name, array in observer.arrays(sums).items():
                    if (other := whose.setdefault(name, mine)) != mine:
                        raise InputError(f"{other} and {mine} both yield '{name}': ask for one of them")
                    values, positions = _reduced(array, sums)
                    count = len(values)
                    if array.kept is not None:
                        count = min(count, sum(index < array.kept for index in batch.index))
                    if count:
                        yield _Result(name, _run(batch.index[:count]), place, array, values[:count], positions)


def _run(index: Sequence[int]) -> slice | list[int]:
    """Consecutive numbers as a slice, for which numpy returns views."""
    follow = index[-1] - index[0] + 1 == len(index)
    return slice(index[0], index[-1] + 1) if follow else list(index)


def _reduced(array: Array, sums: LayerSums) -> tuple[np.ndarray, Sequence[int] | None]:
    if array.along is None or isinstance(array.along, tuple):
        return array.values.numpy(), array.along
    values = array.values
    if array.along == "query" and sums.first:  # queries that a cache was filled with before were not observed
        values = torch.cat([torch.full_like(values[:, :, : sums.first], torch.nan), values[:, :, sums.first :]], 2)
    values = compact(values, sums.keys if array.along == "key" else sums.queries)
    return values.numpy(), range(values.shape[2])


def _non_finite(batches: Sequence[Batch]) -> dict[str, Any]:
    """Where activations were NaN or infinite, in the order in which the places ran; empty where nowhere."""
    rows = {batch: {place: sums.broken_rows(batch.size) for place, sums in batch.places.items()} for batch in batches}
    broken = [_called(place) for places in rows.values() for place, bad in places.items() if bad.any()]
    if not broken:
        return {}
    samples = sum(int(torch.stack(list(places.values())).any(0).sum()) for places in rows.values())
    return {"first": broken[0], "places": list(dict.fromkeys(broken)), "samples": samples}


def _called(place: Place) -> str:
    return f"depth {place.index} of the {place.stack}" if isinstance(place, Depth) else f"layer '{place.name}'"


def _positions(results: Sequence[_Result]) -> list[int]:
    """All positions, if some array covers them all; else those that were requested."""
    covered = [len(item.positions) for item in results if isinstance(item.positions, range)]
    if covered:
        return list(range(max(covered)))
    return sorted({position for item in results for position in item.positions or ()})


def _variables(
    results: Sequence[_Result], places: _Places, samples: int
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """One block per name with all arrays in it; NaN where a sample, layer or head has no finite value."""
    column = {position: index for index, position in enumerate(_positions(results))}
    sizes = {"sample": samples, "layer": len(places.layers), "depth": len(places.depths)}
    sizes |= {"moe_layer": len(places.experts), "position": len(column)}
    rank = places.ranks
    for item in results:
        sizes |= _sizes(item, sizes)
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for item in results:
        if item.name not in variables:
            variables[item.name] = item.dims, np.full([sizes[dim] for dim in item.dims], np.nan, np.float32)
        _, block = variables[item.name]
        part = block[item.samples, rank[item.place]]
        _fill(part, item, column)
        if isinstance(item.samples, list):  # indexing by a list gave a copy
            block[item.samples, rank[item.place]] = part
    return variables


def _sizes(item: _Result, known: Mapping[str, int]) -> dict[str, int]:
    """Lengths of the axes that are as long as their longest array."""
    sizes = dict(zip(item.array.extra[::-1], item.values.shape[::-1], strict=False))
    if item.array.per_head and not isinstance(item.place, Depth):
        sizes[_axes(item.place, True)[-1]] = item.values.shape[1]
    if item.array.kept is not None:
        sizes["kept"] = item.samples.stop if isinstance(item.samples, slice) else item.samples[-1] + 1
    return {dim: max(length, known.get(dim, 0)) for dim, length in sizes.items()}


def _fill(view: np.ndarray, item: _Result, column: Mapping[int, int]) -> None:
    """Write an array into its part of the block: `view` is the block at the item's samples and place."""
    values, finite = item.values, np.isfinite(item.values)
    if not finite.all():
        values = np.where(finite, values, np.nan)
    if isinstance(item.place, Depth) or not item.array.per_head:
        values, lead = values[:, 0], 1
    else:
        lead = 2
        view = view[:, : values.shape[1]]
    if isinstance(item.positions, range):  # the columns are all positions, and these are the first ones
        _put(view, lead, slice(0, len(item.positions)), values, item.array.extra)
    elif item.positions is not None:
        known = [index for index, position in enumerate(item.positions) if position in column]
        values = values.take(known, axis=lead)
        target = [column[item.positions[index]] for index in known]
        _put(view, lead, target, values, item.array.extra)
    else:
        _put(view, lead, None, values, item.array.extra)


def _put(
    view: np.ndarray, lead: int, target: list[int] | slice | None, values: np.ndarray, extra: tuple[str, ...]
) -> None:
    ends = tuple(slice(0, length) for length in values.shape[values.ndim - len(extra) :])
    place = (slice(None),) * lead + (() if target is None else (target,)) + ends
    view[place] = values


def _axes(place: Place, per_head: bool) -> tuple[str, ...]:
    if isinstance(place, Depth):
        return ("depth",)
    if isinstance(place, ExpertLayer):
        return ("moe_layer", "expert") if per_head else ("moe_layer",)
    return ("layer", "head") if per_head else ("layer",)


def _coordinates(results: Sequence[_Result], places: _Places) -> dict[str, tuple[str, list[Any]]]:
    layers, depths = places.layers, places.depths
    coordinates: dict[str, tuple[str, list[Any]]] = {
        "layer_index": ("layer", _indices(layers)),
        "stack": ("layer", [layer.stack for layer in layers]),
        "layer_name": ("layer", [layer.name for layer in layers]),
    }
    if depths:
        coordinates["depth"] = ("depth", list(range(len(depths))))
        coordinates["depth_index"] = ("depth", [depth.index for depth in depths])
        coordinates["depth_stack"] = ("depth", [depth.stack for depth in depths])
    if places.experts:
        coordinates["moe_layer"] = ("moe_layer", [expert.name for expert in places.experts])
    if positions := _positions(results):
        coordinates["position"] = ("position", positions)
    return coordinates


def _extra(results: Sequence[_Result], observers: Sequence[Observer]) -> dict[str, tuple[str, list[Any]]]:
    """Coordinates of the observers' own axes, if these are used."""
    used = {dim for item in results for dim in item.array.extra}
    named = {name: values for observer in observers for name, values in observer.coordinates.items()}
    return {name: (name, list(values)) for name, values in named.items() if name in used}


def _indices(layers: Sequence[Layer]) -> list[int]:
    """The model's layer numbers; running numbers in a stack whose layers have none or share them."""
    numbers: list[int] = []
    for layer in layers:
        members = [other for other in layers if other.stack == layer.stack]
        indices = [other.index for other in members]
        numbers.append(layer.index if -1 not in indices and len(set(indices)) == len(indices) else members.index(layer))
    return numbers


def _from_masks(
    batches: Sequence[Batch], places: _Places, positions: Int[np.ndarray, "position"]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """`visible_queries` and `uniform_received` at the measured positions; means over heads where masks differ between
    them.
    """
    shape = sum(batch.size for batch in batches), len(places.layers), len(positions)
    seen, uniform = (np.full(shape, np.nan, np.float32) for _ in range(2))
    for batch in batches:
        rows = list(batch.index)
        for index, layer in enumerate(places.layers):
            if (sums := batch.visible(layer)) is None:
                continue
            counts, shares = sums
            real = batch.keys(layer)
            for block, values in ((seen, counts), (uniform, divide(shares, counts))):
                front = compact(values.nanmean(1, keepdim=True), real)[:, 0].numpy()
                there = positions < front.shape[1]
                # Indexing by a list gives a copy, hence written back.
                part = block[rows, index]
                part[:, there] = front[:, positions[there]]
                block[rows, index] = part
    dims = ("sample", "layer", "position")
    return {"visible_queries": (dims, seen), "uniform_received": (dims, uniform)}


def _looks_ahead(batches: Sequence[Batch], layer: Layer) -> bool:
    """Whether some query of this layer saw a later key, in any sample."""
    return any(batch.places[layer].ahead for batch in batches if layer in batch.places)


def _per_layer(
    batches: Sequence[Batch], layers: Sequence[Layer], count: Callable[[Batch, Layer], np.ndarray]
) -> np.ndarray:
    """A number for each sample and layer; 0 where the layer did not run."""
    counts = np.zeros((sum(batch.size for batch in batches), len(layers)), np.int64)
    for batch in batches:
        for column, layer in enumerate(layers):
            counts[list(batch.index), column] = count(batch, layer)
    return counts


def _tokens(batches: Sequence[Batch], layers: Sequence[Layer]) -> np.ndarray:
    """Real tokens among the keys of each sample, per layer; 0 where the layer did not run."""

    def real(batch: Batch, layer: Layer) -> np.ndarray:
        return batch.keys(layer).sum(-1).numpy() if layer in batch.places else np.zeros(batch.size, np.int64)

    return _per_layer(batches, layers, real)


def _by_stack(places: list[Any]) -> list[Any]:
    """Places grouped by stack, in the order in which they ran."""
    stacks = list(dict.fromkeys(place.stack for place in places))
    return sorted(places, key=lambda place: stacks.index(place.stack))


def _token_ids(batches: Sequence[Batch]) -> np.ndarray | None:
    """Ids of each sample's real tokens (sample, position), −1 after them; None unless all inputs were ids."""
    rows = [batch.token_ids() for batch in batches]
    if any(ids is None for ids in rows):
        return None
    known = [ids for ids in rows if ids is not None]
    table = np.full((sum(map(len, known)), max(ids.shape[1] for ids in known)), -1, known[0].dtype)
    for batch, ids in zip(batches, known, strict=True):
        table[list(batch.index), : ids.shape[1]] = ids
    return table


def _at_positions(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Columns of `ids` at these positions, −1 beyond the last."""
    padded = np.pad(ids, ((0, 0), (0, max(0, int(positions.max()) + 1 - ids.shape[1]))), constant_values=-1)
    return padded[:, positions]
