"""The provenance of a run: `record.json`."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from sinkscope.errors import InputError
from sinkscope.files import write_json
from sinkscope.model.checkpoints import RECORD
from sinkscope.training.recipe import Recipe

PACKAGES = ("sinkscope", "torch", "transformers", "accelerate", "tokenizers", "numpy")

Status = Literal["running", "finished", "failed", "diverged"]


@dataclass
class Record:
    """The provenance of a run. `reason` is why it failed or diverged; `notes` are the announcements on the way."""

    recipe: dict[str, Any]
    hash: str
    seed: int
    data: dict[str, Any]
    parameters: dict[str, int]
    host: dict[str, Any]
    status: Status = "running"
    reason: str | None = None
    step: int = 0
    seconds: float = 0.0
    results: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: dict[str, str] = field(default_factory=lambda: versions())  # a lambda: the field hides the name here

    @classmethod
    def begin(
        cls, recipe: Recipe, fingerprint: Mapping[str, Any], model: PreTrainedModel, device: torch.device
    ) -> Record:
        """The record of a run that begins."""
        return cls(
            recipe=recipe.model_dump(mode="json"),
            hash=recipe.hash(fingerprint),
            seed=recipe.seed,
            data=dict(fingerprint),
            parameters=parameters(model),
            host=host(device),
        )

    def write(self, folder: Path) -> None:
        """Replace the record of the run in `folder`, atomically."""
        write_json(folder / RECORD, asdict(self))


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a run folder, None if it has none. Raises `InputError` for one that cannot be read."""
    path = folder / RECORD
    return read_object(path, "record", "status") if path.is_file() else None


def read_object(path: Path, kind: str, *fields: str) -> dict[str, Any]:
    """A JSON object in a run's folder: its `kind` of file. Raises `InputError` if it is not one or lacks a field."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; remove the folder to train this run again") from error
    if not isinstance(value, dict) or not value.keys() >= set(fields):
        raise InputError(f"{path} is not a run's {kind}; remove the folder to train this run again")
    return value


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide numbers, as far as they are installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def host(device: torch.device) -> dict[str, Any]:
    """The properties of the machine that may decide the last bits of a number."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "machine": platform.machine(),
    }


def parameters(model: PreTrainedModel) -> dict[str, int]:
    """Parameter counts: in total, and without the embedding and the output matrix."""
    matrices = (model.get_input_embeddings(), model.get_output_embeddings())
    embeddings = {id(part.weight): part.weight.numel() for part in matrices}  # tied ones count once
    total = sum(parameter.numel() for parameter in model.parameters())
    return {"total": total, "without_embeddings": total - sum(embeddings.values())}
