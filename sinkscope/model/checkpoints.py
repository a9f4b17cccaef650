"""The models of a training run: checkpoints of any `Trainer`, and the folders of sinkscope's runs."""

from __future__ import annotations

import json
from pathlib import Path

from sinkscope.errors import InputError

CHECKPOINTS = "checkpoints"  # in a run's folder
MODEL = "model"  # in a run's folder, once it has finished
RECORD = "record.json"
PREFIX = "checkpoint-"


def list_checkpoints(folder: Path) -> list[Path]:
    """The folders `checkpoint-N` in `folder`, by step."""
    folders = (path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal())
    return sorted(folders, key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(checkpoint.name.removeprefix(PREFIX))


def trained_models(run: Path) -> dict[int, Path]:
    """The models of a training run by step: its checkpoints, and its final model where no checkpoint has that step.

    `run` is a folder of `sinkscope train` or of any `Trainer`. Raises `InputError` where the record of a run is damaged
    that has a final model.
    """
    models = {checkpoint_step(path): path for path in [*list_checkpoints(run), *list_checkpoints(run / CHECKPOINTS)]}
    if (run / MODEL / "config.json").is_file():
        models.setdefault(_final_step(run / RECORD), run / MODEL)
    return dict(sorted(models.items()))


def _final_step(record: Path) -> int:
    if not record.is_file():
        return 0
    try:
        return int(json.loads(record.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{record} is damaged: {error}") from error
