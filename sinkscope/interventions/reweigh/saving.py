"""A calibration kept on a model, saved with it, and loaded again.

A saved folder holds the unchanged model in `uncalibrated/`, and a `config.json` of a type that transformers does not
know: opening the folder without sinkscope fails with that message, instead of silently giving a model without its
calibration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.files import writing
from sinkscope.hooks import family, unwrapped
from sinkscope.interventions.intervention import All, Intervention
from sinkscope.interventions.reweigh.act import ACT
from sinkscope.interventions.reweigh.reweigh import Reweigh
from sinkscope.interventions.reweigh.temperature import Temperature
from sinkscope.interventions.reweigh.visual_redistribution import VisualRedistribution
from sinkscope.model import load as load_model
from sinkscope.model.hub import CALIBRATED, UNCALIBRATED, resolve

TYPE = "sinkscope_calibrated"
NEEDS = "unknown to transformers: this model has a calibration, load it with sinkscope"
VERSION = 1
PLACE = "kept_calibration"  # the attribute of a model that holds its calibration
KINDS: dict[str, Callable[..., Intervention]] = {
    kind.__name__: kind for kind in (Reweigh, ACT, Temperature, VisualRedistribution)
}


@dataclass(frozen=True, eq=False)
class KeptCalibration:
    """A calibration on a model, and the stack that removes it."""

    calibration: Intervention
    stack: ExitStack


def keep(model: nn.Module, calibration: Intervention) -> None:
    """Put a calibration on a model until `release`; its `save_pretrained` then writes a folder that `load` reads.

    The model runs eagerly meanwhile. Raises `InputError` if it has one already, for interventions of other kinds, and
    as `applied` does.
    """
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"a calibration is kept on a transformers model, not on a {type(model).__name__}")
    if kept(model) is not None:
        raise InputError("this model already has a calibration: release it first, or keep both as one All(...)")
    described = to_json(calibration)

    def save_pretrained(folder: str | Path, **options: Any) -> None:
        _write(model, described, Path(folder), options)

    with ExitStack() as stack:
        stack.enter_context(calibration.applied(model))
        model.save_pretrained = save_pretrained
        stack.callback(delattr, model, "save_pretrained")
        # `pop_all`: what is undone here after an error is otherwise undone by `release`.
        setattr(model, PLACE, KeptCalibration(calibration, stack.pop_all()))


def kept(model: nn.Module) -> Intervention | None:
    """The calibration of a model, or None."""
    held = getattr(unwrapped(model), PLACE, None)
    return held.calibration if isinstance(held, KeptCalibration) else None


def release(model: nn.Module) -> None:
    """Remove a kept calibration: the model is what it was. Raises `InputError` if there is none."""
    held = getattr(unwrapped(model), PLACE, None)
    if not isinstance(held, KeptCalibration):
        raise InputError("no calibration is kept on this model")
    delattr(unwrapped(model), PLACE)
    held.stack.close()


def save_calibrated(model: nn.Module, calibration: Intervention, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a model with a calibration, whole or not at all; `load(folder)` gives it back with it.

    `tokenizer`: saved with it; for a model that reads images, its processor.
    """
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"only transformers models are saved, not a {type(model).__name__}")
    if kept(model) is not None:
        raise InputError("this model already has a calibration: save it with its save_pretrained, or release it first")
    _write(model, to_json(calibration), Path(folder), {}, tokenizer)


def load(name: str | Path, **options: Any) -> PreTrainedModel:
    """A model, in eval mode, by hub id, folder, GGUF file or shipped name (`nano`), with its attached operation or its
    calibration, if any.

    Args:
        name: What to load. A GGUF file is dequantized once, into a folder of the cache.
        dtype: "auto" (default) keeps the stored precision; shipped models are stored in bfloat16 and loaded in float32.
        device: Where to put the model.
        revision: The revision of a model on the hub.
        attn: The attention implementation of transformers.
        device_map: In place of `device`: spreads a large model over devices, as accelerate does ("auto", or module name
            to device).
        trust_remote_code: Whether code of the hub's repository may run.

    Raises `InputError` where the model cannot be found or read.
    """
    place = resolve(name)
    return load_calibrated(place, **options) if (Path(place) / CALIBRATED).exists() else load_model(name, **options)


def load_calibrated(folder: str | Path, **options: Any) -> PreTrainedModel:
    """The model of a saved folder with its calibration; `options` as of `load`."""
    described = read_described(folder)
    model = load_model(Path(folder) / UNCALIBRATED, **options)
    keep(model, from_json(described["calibration"]))
    model.config.name_or_path = str(folder)
    return model


def read_described(folder: str | Path) -> dict[str, Any]:
    """The description in a saved folder. Raises `InputError` for other folders, and for newer ones."""
    try:
        described = json.loads((Path(folder) / CALIBRATED).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"no calibrated model in {folder}: {str(error).splitlines()[0]}") from error
    if not isinstance(described, dict) or "calibration" not in described:
        raise InputError(f"no calibrated model in {folder}: {CALIBRATED} lacks 'calibration'")
    if described.get("version") != VERSION:
        raise InputError(
            f"{folder} is of version {described.get('version')} of calibrated models, this reads {VERSION}"
        )
    return described


def to_json(calibration: Intervention) -> dict[str, Any]:
    """A calibration as data. Raises `InputError` for interventions of other kinds."""
    if isinstance(calibration, All):
        return {"name": "All", "parts": [to_json(part) for part in calibration.parts]}
    if type(calibration).__name__ not in KINDS:
        raise InputError(f"{type(calibration).__name__} cannot be kept: expected {', '.join(KINDS)}, or All of them")
    return json.loads(json.dumps(calibration.describe()))


def from_json(described: Mapping[str, Any]) -> Intervention:
    """Back from data. Raises `InputError` for unknown names and fields."""
    if described.get("name") == "All":
        return All(tuple(from_json(part) for part in described["parts"]))
    fields = dict(described)
    name = str(fields.pop("name", None))
    if name not in KINDS:
        raise unknown("calibration", name, KINDS)
    try:
        return KINDS[name](**fields)
    except TypeError as error:
        raise InputError(f"calibration {name}: {error}") from error


def _write(
    model: PreTrainedModel, described: dict[str, Any], folder: Path, options: dict[str, Any], tokenizer: Any = None
) -> None:
    config = {"model_type": TYPE, "architectures": [NEEDS], "hidden_size": NEEDS, "host": family(model)}
    with writing(folder) as draft, torch.no_grad():
        draft.mkdir()
        # The class's method: the model's own attribute of this name may be what called this.
        type(model).save_pretrained(model, draft / UNCALIBRATED, **options)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft / UNCALIBRATED)
        for name, value in (("config.json", config), (CALIBRATED, {"version": VERSION, "calibration": described})):
            (draft / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
