"""One model type: measured under every host and padding, and compared with what its eager attention computed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.measurement import AttentionReceived, Measurement, measure, observe
from tests.families.sweep import zoo
from tests.families.sweep.build import build, first
from tests.families.sweep.build import inputs as inputs_of
from tests.families.sweep.maps import Map, Maps, recorded, returned
from tests.families.sweep.parts import ROWS, Given, Padding
from tests.families.sweep.unbuilt import UNBUILT

TOLERANCE, SAME = 1e-5, 1e-4


NEEDS = "needs "  # of what is not built because a package is not installed here
OUTCOMES = ("equal", "refused", "not built", "crash", "DIFFERENT")
HOSTS = ("eager", "sdpa")
PADDINGS: tuple[Padding, ...] = ("none", "right", "left")


@dataclass(frozen=True)
class Result:
    """What came of a model type, one of `OUTCOMES`.

    `model`: its class; `inputs`: what it was given; `detail`: why, or with what beside.
    """

    kind: str
    model: str
    outcome: str
    inputs: str
    detail: str


class Different(AssertionError):
    """A number that is not the reference's."""


class Crash(AssertionError):
    """An error where there should be numbers."""


def outcome(
    kind: str,
    hosts: Sequence[str] = HOSTS,
    paddings: Sequence[Padding] = PADDINGS,
    inputs: str | None = None,
    observers: Sequence[Literal["all"] | None] = (None, "all"),
) -> Result:
    """Build a model type, measure it and compare; `inputs`: by their name, else the richest that it takes; `observers`:
    what `measure` is asked for, without a padding and with one."""
    given, built, name = None, False, str(zoo.class_name(kind))
    try:
        model = build(kind)
        built = True
        given = inputs_of(model, inputs)
    except Exception as error:
        return Result(kind, name, "not built", "", _why(kind, error, built))
    notes = _beside(model)
    maps: dict[Any, Any] = {}
    read = recorded
    try:
        maps, plain = recorded(model, given.whole())
        if not maps:
            read = returned
            maps, plain = returned(model, given.whole())
    except Exception:
        plain = None  # it takes no `output_attentions`: what it has is no attention, or refused
    try:
        for host in hosts if read is recorded else ("eager",):
            if host != "eager" and (obstacle := _obstacle(model, given, host, plain)):
                notes.append(obstacle)
                model.set_attn_implementation("eager")
                continue
            for padding in given.paddings:
                if padding in paddings:
                    notes += _compared(model, given, padding, host, read)
            if not any("takes no" in note for note in notes):
                _run_all(model, given, host, paddings, observers)
    except Crash as error:
        return Result(kind, name, "crash", given.name, str(error))
    except Different as error:
        return Result(kind, name, "DIFFERENT", given.name, str(error))
    except (UnsupportedModelError, InputError) as error:
        return Result(kind, name, "refused", given.name, "; ".join([_reason(error), *_beside(model)]))
    except Exception as error:
        if refused := _refusal(model, given):
            return Result(kind, name, "refused", given.name, "; ".join([refused, *_beside(model)]))
        return Result(kind, name, "crash", given.name, f"{type(error).__name__}: {_line(error)[:150]}")
    return Result(kind, name, "equal", given.name, "; ".join(dict.fromkeys(notes)))


def _beside(model: PreTrainedModel) -> list[str]:
    """The package that parts of a model are made of, beside transformers: what is found holds for its version."""
    uses = any(type(module).__module__.partition(".")[0] == "timm" for module in model.modules())
    return [f"with timm {version('timm')}"] if uses else []


def _refusal(model: PreTrainedModel, given: Given) -> str | None:
    """Why `measure` does not measure a model whose own code ends in an error; None where it says nothing."""
    try:
        measure(model, given.whole(), [AttentionReceived()])
    except UnsupportedModelError as error:
        return _reason(error)
    except Exception:
        return None
    return None


def _obstacle(model: PreTrainedModel, given: Given, host: str, plain: Any) -> str | None:
    """Why a host says nothing of a model: it has none, or its own outputs are other ones than those of eager."""
    try:
        model.set_attn_implementation(host)
        torch.manual_seed(0)
        with torch.no_grad():
            plain, other = first(plain), first(model(**given.whole()))
    except Exception:
        return f"no {host}"
    error = float((plain - other).abs().max() / plain.abs().max())
    return None if error < 1e-3 or error != error else f"its own {host} differs from eager by {error:.0e}"


def _compared(model: PreTrainedModel, given: Given, padding: Padding, host: str, read: Any) -> list[str]:
    batch = given.padded(padding)
    if read is recorded:
        model.set_attn_implementation("eager")
    try:
        maps, _ = read(model, batch)
    except Exception:
        maps = {}
    alone = [_alone(model, given, row, read) for row in range(ROWS)] if padding != "none" else []
    if read is recorded:
        model.set_attn_implementation(host)
    with torch.no_grad():
        torch.manual_seed(0)
        try:
            plain = first(model(**batch))
        except Exception:
            return [f"takes no {padding} padding"]
        torch.manual_seed(0)
        with observe(model, AttentionReceived()) as seen:
            shown = first(model(**batch))
    measurement = seen.measurement()
    where = f"{host}, {padding}"
    if not torch.equal(plain.nan_to_num(7e7), shown.nan_to_num(7e7)):
        raise Different(f"{where}: logits change by {float((plain - shown).abs().max()):.1e}")
    if "attention_received" not in measurement.data:
        raise Different(f"{where}: nothing was measured, without a word: {measurement.record.get('non_finite')}")
    notes = list(_missing(measurement, maps))
    unmasked = measurement.record.get("unmasked", {})
    if unmasked and padding != "none":
        notes.append(f"its mask reaches no layer of {', '.join(unmasked)}, as the record says")
    peak = 1e9
    for name, index in _layers(measurement, maps):
        if name is None:
            raise Different(f"{where}: layer {measurement.data['layer_name'].values[index]} has no reference")
        found = maps[name]
        if found.weights is None:
            notes.append("some layers return no eager weights")
            continue
        if found.weights.shape[0] != ROWS:
            raise Different(f"{where}: {name} measured although its batch is {found.weights.shape[0]}")
        peak = min(peak, found.sharpness) if padding == "none" else peak
        for row in range(ROWS):
            other = alone[row].get(name) if alone and not unmasked else None
            words = {count: real[row] for count, real in given.real(padding).items()}
            if set(unmasked) - set(measurement.data["stack"].values.tolist()):
                words = {}  # a mask that no layer uses, of whatever stack
            elif measurement.data["stack"].values[index] in unmasked:
                words.pop(found.weights.shape[-1], None)
            notes += _row(measurement, index, row, found, other, words, f"{where}, {name}, row {row}")
    if peak < 1.3:
        notes.append(f"peak {peak:.2f}")
    return notes


def _alone(model: PreTrainedModel, given: Given, row: int, read: Any) -> Maps:
    """The maps of a row without padding; none where the model takes no such inputs."""
    try:
        return read(model, given.alone(row))[0]
    except Exception:
        return {}


def _row(
    measurement: Measurement, index: int, row: int, found: Map, alone: Map | None, words: dict[int, Tensor], where: str
) -> list[str]:
    data, notes = measurement.data, []
    values = torch.from_numpy(data["attention_received"].values[row, index]).float()
    tokens = int(data["tokens"].values[row, index])
    seen, queries, keys = found.of(row)
    if not found.crosses and len(queries) < len(keys) and len(queries) in words:
        notes.append(f"tokens are the first of its keys; {len(keys) - len(queries)} others beside them")
        leading = torch.arange(len(keys)) < len(queries)
        seen, keys = seen.only(torch.ones_like(queries), leading), keys[: len(queries)]
    queries, keys = words.get(len(queries), queries), words.get(len(keys), keys)
    note, allowed = "", TOLERANCE
    if alone is not None and alone.weights is not None:
        own, own_queries, own_keys = alone.of(0)
        lengths = {int(real.sum()) for real in words.values()}
        own = own.only(*(torch.ones_like(real) if len(real) in lengths else real for real in (own_queries, own_keys)))
        allowed = SAME
        if _holds(seen.weights, own.weights, (queries, keys)):
            seen = own
        else:
            notes.append("not invariant to padding")
            note = f" (alone {own.weights.shape[2]}, the model is not invariant to padding)"
            seen = seen.only(queries, keys)
    else:
        seen = seen.only(queries, keys)
    wanted = seen.received
    if tokens != wanted.shape[1]:
        raise Different(f"{where}: T = {tokens}, not {wanted.shape[1]}{note}")
    mine = values[: wanted.shape[0], : wanted.shape[1]]
    if mine.shape != wanted.shape:
        raise Different(f"{where}: shape {tuple(values.shape)}, not {tuple(wanted.shape)}")
    unseen = wanted.isnan()
    if not torch.equal(mine.isnan(), unseen):
        raise Different(f"{where}: {int(mine.isnan().sum())} keys without a number, not {int(unseen.sum())}{note}")
    error = float((mine - wanted).abs().nan_to_num(0.0).max())
    if error > allowed:
        raise Different(f"{where}: off by {error:.1e} (says causal: {found.said}){note}")
    return notes


def _holds(weights: Tensor, own: Tensor, real: tuple[Tensor, Tensor]) -> bool:
    """Whether a padded map has the map of the row alone as its part of real tokens."""
    queries, keys = weights.shape[1:]
    if own.shape[1] > queries or own.shape[2] > keys:
        return False
    sides: tuple[Padding, ...] = ("right", "left")
    rows = [real[0], *(_side(queries, own.shape[1], side) for side in sides)]
    columns = [real[1], *(_side(keys, own.shape[2], side) for side in sides)]
    for one in rows:
        for other in columns:
            fits = int(one.sum()) == own.shape[1] and int(other.sum()) == own.shape[2]
            if fits and float((weights[:, one][:, :, other] - own).abs().max()) < SAME / 10:
                return True
    return False


def _side(count: int, real: int, padding: Padding) -> Tensor:
    found = torch.zeros(count, dtype=torch.bool)
    found[count - real :] = padding == "left"
    found[:real] |= padding != "left"
    return found


def _layers(measurement: Measurement, maps: Maps) -> Iterator[tuple[str | None, int]]:
    names = measurement.data["layer_name"].values.tolist()
    if any(
        "." in name and name.split(".")[0] in ("", "encoder", "decoder", "cross") and name.split(".")[-1].isdigit()
        for name in maps
    ):
        counts: dict[str, int] = {}
        stacks = measurement.data["stack"].values.tolist()
        for index, stack in enumerate(stacks):
            number = counts[stack] = counts.get(stack, -1) + 1
            name = f"{stack}.{number}"
            yield (name if name in maps else f".{number}" if f".{number}" in maps else None), index
        return
    for index, name in enumerate(names):
        yield (name if name in maps else None), index


def _missing(measurement: Measurement, maps: Maps) -> Iterator[str]:
    count, said_of = measurement.data.sizes["layer"], measurement.record["not_measured"]
    own = [path for path, reason in said_of.items() if reason.endswith("of which nothing is read")]
    if own:
        yield f"attention by code of its own is not read ({', '.join(own)})"
    if count != len(maps):
        said = ", ".join(path for path in said_of if path not in own)
        yield f"{len(maps) - count} of {len(maps)} layers left out ({said})"
        if not said:
            raise Different(f"{count} layers of {len(maps)} measured, and the record does not say so")


def _run_all(
    model: PreTrainedModel,
    given: Given,
    host: str,
    paddings: Sequence[Padding],
    asked: Sequence[Literal["all"] | None],
) -> None:
    """Run what `measure` runs when nothing is said, and all observers there are: none may end in an error."""
    for padding in given.paddings[:2]:
        for observers in asked if padding in paddings else ():
            try:
                measure(model, given.padded(padding), observers)
            except (UnsupportedModelError, InputError):
                raise
            except Exception as error:
                what = "what `measure` runs by itself" if observers is None else "all observers"
                raise Crash(f"{what}, {host}, padding {padding}: {type(error).__name__}: {_line(error)}") from error


def _why(kind: str, error: Exception, built: bool) -> str:
    """Why there is no tiny model, or none that runs, in few words."""
    if needs := re.search(r"requires the (\w+) library|No module named '(\w+)'", str(error)):
        return f"{NEEDS}{needs.group(1) or needs.group(2)}"
    reason = UNBUILT.get(kind, "needs inputs of its own" if built else "no small configuration")
    return f"{reason} ({_line(error)[:90]})"


def _reason(error: Exception) -> str:
    return re.sub(r"^family '[^']*', ", "", _line(error)).partition("; what works")[0][:200]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


__all__ = ["OUTCOMES", "Different", "Result", "outcome", "zoo"]
