"""The folder of a survey: finished results, each under a hash of everything that determines its numbers."""

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
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.models.rows import SurveyRow, measured_row
from sinkscope.measurement.models.subjects import MEASUREMENT, Identity, SurveyModel

COMPUTING = ("torch", "transformers", "tokenizers")
RESULTS, ROW, SURVEY = "results", "row.json", "survey.json"
FORMAT = 2  # raised when what is stored, or how it is measured, changes


@dataclass(frozen=True)
class Key:
    """What a result depends on: the identity of the model, and the settings that determine its numbers."""

    identity: Identity
    settings: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """12 hex digits, equal for equal numbers, whatever the name and the folder of the model.

        The releases of the packages that compute them count too: a model's code comes from transformers.
        """
        content = {"model": self.identity.digest, "settings": dict(self.settings), "format": FORMAT}
        text = json.dumps({**content, "versions": versions()}, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Releases of the packages that compute a measurement, without the build (`+cpu`)."""
    return {"sinkscope": __version__} | {name: version(name).partition("+")[0] for name in COMPUTING}


@dataclass(frozen=True)
class Store:
    """The results in a survey's folder, each in a folder of its own that is whole or absent.

    `others`: a folder of other surveys, whose matching results are copied.
    """

    folder: Path
    others: Path | None = None

    def clean(self) -> None:
        """Remove what a killed survey left half-written. The caller holds the folder's lock."""
        sweep(self.folder / RESULTS)

    def find(self, key: Key, subject: SurveyModel, kind: str, epsilon: float) -> SurveyRow | None:
        """The row of a finished result at this threshold; None where there is no readable one."""
        self._copy_from_others(key)
        for place in sorted((self.folder / RESULTS).glob(f"*-{key.hash}")):
            try:
                stored = SurveyRow.from_dict(json.loads((place / ROW).read_text(encoding="utf-8"))["row"])
                if stored.epsilon == epsilon:
                    return stored.named_after(subject)
                measurement = Measurement.load(place / MEASUREMENT)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            again = measured_row(subject, kind, measurement, epsilon, stored.seconds or 0.0, self._relative(place))
            return replace(again, reason=stored.reason)
        return None

    def keep(
        self, key: Key, subject: SurveyModel, kind: str, measurement: Measurement, epsilon: float, seconds: float
    ) -> SurveyRow:
        """Store a measurement and its row, both or neither, and return the row.

        Args:
            key: Identity of weights, input and settings, by which it is found again.
            subject, kind, measurement, epsilon, seconds: As in `measured_row`.
        """
        place = self.folder / RESULTS / f"{_slug(subject.model)}-{kind}-{key.hash}"
        row = measured_row(subject, kind, measurement, epsilon, seconds, self._relative(place))
        about = {"identity": key.identity.digest, "commit": key.identity.commit, "settings": dict(key.settings)}
        with writing(place) as draft:
            draft.mkdir()
            measurement.save(draft / MEASUREMENT)
            write_json(draft / ROW, {"row": row.to_dict(), **about, "record": measurement.record})
        return row

    def _copy_from_others(self, key: Key) -> None:
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
    """The last part of a model's name, as a file name; the hash makes it unique."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name).strip("-.")[:60] or "model"


def read_result_record(place: Path) -> dict[str, Any]:
    """The record of a stored result or saved measurement: model, input, versions.

    Raises `InputError` where there is none.
    """
    if place.is_file():
        return Measurement.load(place).record
    try:
        record = json.loads((place / ROW).read_text(encoding="utf-8"))["record"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{place} does not hold the result of a survey, or is damaged") from error
    return dict(record)


def read_survey(path: Path) -> tuple[float, tuple[SurveyRow, ...]]:
    """Threshold and rows of a `survey.json`. Raises `InputError` for a file that is missing or not one."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return float(stored["epsilon"]), tuple(SurveyRow.from_dict(row) for row in stored["rows"])
    except FileNotFoundError as error:
        raise InputError(f"no survey at {path}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a survey, or is damaged") from error
