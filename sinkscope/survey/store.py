"""A survey's folder: finished results under a hash of what decides them, and the table of all rows."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sinkscope import __version__
from sinkscope.errors import InputError
from sinkscope.files import sweep, write_json, writing
from sinkscope.measurement import Measurement
from sinkscope.survey.rows import Row, measured_row
from sinkscope.survey.subjects import Identity, Subject

COMPUTING = ("torch", "transformers", "tokenizers")
RESULTS, MEASUREMENT, ROW, SURVEY = "results", "measurement.nc", "row.json", "survey.json"
FORMAT = 2  # raised when what is stored, or how it is measured, changes


@dataclass(frozen=True)
class Key:
    """What one result depends on: the model's identity, and the settings that decide its numbers."""

    identity: Identity
    settings: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """12 hex digits; equal for equal numbers, whatever the model is called and wherever it lies.

        The packages that compute them count too, as released: a model's code comes from transformers.
        """
        decisive = {"model": self.identity.digest, "settings": dict(self.settings), "format": FORMAT}
        text = json.dumps({**decisive, "versions": versions()}, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """What computes a measurement; builds for other devices (`+cpu`) are the same release."""
    return {"sinkscope": __version__} | {name: version(name).partition("+")[0] for name in COMPUTING}


@dataclass(frozen=True)
class Store:
    """The results in a survey's folder; each lies whole in a folder of its own, or not at all.

    `others`: a folder of other surveys, whose results are taken over where they are what is wanted.
    """

    folder: Path
    others: Path | None = None

    def clean(self) -> None:
        """Clear away what a killed survey left half-written; for the holder of the folder's lock."""
        sweep(self.folder / RESULTS)

    def find(self, key: Key, subject: Subject, kind: str, epsilon: float) -> Row | None:
        """The row of a finished result, for the threshold asked for; None where there is none that can be read."""
        self._take_over(key)
        for place in sorted((self.folder / RESULTS).glob(f"*-{key.hash}")):
            try:
                stored = Row.from_dict(json.loads((place / ROW).read_text(encoding="utf-8"))["row"])
                if stored.epsilon == epsilon:
                    return stored.of(subject)
                measurement = Measurement.load(place / MEASUREMENT)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            again = measured_row(subject, kind, measurement, epsilon, stored.seconds or 0.0, self._relative(place))
            return replace(again, reason=stored.reason)
        return None

    def keep(
        self, key: Key, subject: Subject, kind: str, measurement: Measurement, epsilon: float, seconds: float
    ) -> Row:
        """Store a measurement with its row, both or neither, and return the row."""
        place = self.folder / RESULTS / f"{_slug(subject.model)}-{kind}-{key.hash}"
        row = measured_row(subject, kind, measurement, epsilon, seconds, self._relative(place))
        about = {"identity": key.identity.digest, "commit": key.identity.commit, "settings": dict(key.settings)}
        with writing(place) as draft:
            draft.mkdir()
            measurement.save(draft / MEASUREMENT)
            write_json(draft / ROW, {"row": row.to_dict(), **about, "record": measurement.record})
        return row

    def _take_over(self, key: Key) -> None:
        """Copy a result from another survey, unless it is here."""
        pattern = f"{RESULTS}/*-{key.hash}"
        if self.others is None or any(self.folder.glob(pattern)):
            return
        for place in sorted(self.others.glob(f"*/{pattern}")):
            if (place.parents[1] / SURVEY).exists():
                with writing(self.folder / RESULTS / place.name) as draft:
                    shutil.copytree(place, draft)
                return

    def _relative(self, place: Path) -> str:
        return place.relative_to(self.folder).as_posix()


def _slug(model: str) -> str:
    """The last part of a model's name, as a file name; what tells models apart is the hash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name).strip("-.")[:60] or "model"


def read_record(place: Path) -> dict[str, Any]:
    """The record of a stored result: model, input, versions. Raises `InputError` where there is none."""
    try:
        record = json.loads((place / ROW).read_text(encoding="utf-8"))["record"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{place} does not hold the result of a survey, or is damaged") from error
    return dict(record)


def read_survey(path: Path) -> tuple[float, tuple[Row, ...]]:
    """Threshold and rows of a `survey.json`. Raises `InputError` for a file that is missing or something else."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return float(stored["epsilon"]), tuple(Row.from_dict(row) for row in stored["rows"])
    except FileNotFoundError as error:
        raise InputError(f"no survey at {path}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a survey, or is damaged") from error
