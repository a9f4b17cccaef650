"""Which models the entries of a survey name, and what identifies each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.files import sha256
from sinkscope.measurement.models.spec import SurveyEntry, SurveySpec
from sinkscope.model.checkpoints import MODEL, trained_models
from sinkscope.model.hub import UNCALIBRATED, commit_of, resolve
from sinkscope.names import shortened

MEASUREMENT = "measurement.nc"
# Files of a model's folder that change no measurement; every other file is assumed to. The opposite list would miss
# tokenizers, adapters and processors that choose their own file names.
WITHOUT_EFFECT = (
    *("*.md", "LICENSE*", "NOTICE*", ".git*", "*.log", "*.lock", "generation_config.json", "*.png", "*.jpg"),
    *("optimizer*", "scheduler*", "scaler*", "rng_state*", "trainer_state.json", "training_args.bin", "manifest.json"),
    *("record.json", "log.jsonl"),
)
TEMPLATES = "additional_chat_templates"  # the one subfolder that transformers reads too


@dataclass(frozen=True)
class SurveyModel:
    """One model to measure. `tokenizer`: where its tokenizer is, if not with the model. `saved`: its finished
    measurement, which is read instead.
    """

    model: str
    label: str
    revision: str | None = None
    pair: str | None = None
    chat_template: bool | None = None
    curve: str | None = None
    step: int | None = None
    tokenizer: str | None = None
    saved: Path | None = None


def survey_models(spec: SurveySpec) -> list[SurveyModel]:
    """All models, in order. Raises `InputError` for a run without checkpoints, and for two models of one label."""
    labels = shortened([_name(entry) for entry in spec.models])
    models = [each for entry, label in zip(spec.models, labels, strict=True) for each in _expanded(entry, label)]
    repeated = [label for label, count in Counter(model.label for model in models).items() if count > 1]
    if repeated:
        raise InputError(f"two models of the survey are called '{repeated[0]}': give each a label of its own")
    return models


@dataclass(frozen=True)
class Identity:
    """What a model is: `digest` of the commit or of the files that matter; `commit` on the hub, None for a folder."""

    digest: str
    commit: str | None = None


def identity(subject: SurveyModel) -> Identity:
    """For a hub model, its current commit; for a folder or a shipped model, the contents of the files that matter.

    Raises `InputError` where there is no such model. Hashing reads every weight of a folder once.
    """
    place = Path(resolve(subject.model))
    if place.is_dir():
        # The weights of a model that is saved with a calibration are one level down.
        folders = [place, place / UNCALIBRATED, *([Path(subject.tokenizer)] if subject.tokenizer else [])]
        files = {
            str(path): sha256(path) for folder in folders if folder.is_dir() for path in _files_that_matter(folder)
        }
        contents = sorted((Path(name).name, digest) for name, digest in files.items())
        return Identity(hashlib.sha256(json.dumps(contents).encode()).hexdigest())
    commit = commit_of(subject.model, subject.revision)
    return Identity(hashlib.sha256(f"{subject.model}@{commit}".encode()).hexdigest(), commit)


def saved_measurement(name: str | Path) -> Path | None:
    """The file of a finished measurement: `name` itself, or in the folder `name`; None for what is to be measured."""
    path = Path(name).expanduser()
    if path.suffix == ".nc":
        return path
    return path / MEASUREMENT if (path / MEASUREMENT).is_file() else None


def _files_that_matter(folder: Path) -> list[Path]:
    files = [path for path in [*folder.iterdir(), *folder.glob(f"{TEMPLATES}/*")] if path.is_file()]
    return sorted(path for path in files if not any(fnmatchcase(path.name, pattern) for pattern in WITHOUT_EFFECT))


def _name(entry: SurveyEntry) -> str:
    """The name of an entry without a label; that of a measurement is its folder's."""
    name = str(entry.model or entry.checkpoints)
    if Path(name).name == MEASUREMENT and Path(name).parent != Path():
        name = str(Path(name).parent)
    return name if entry.revision is None else f"{name}@{entry.revision}"


def _expanded(entry: SurveyEntry, name: str) -> list[SurveyModel]:
    if entry.checkpoints is not None:
        return _of_run(entry, Path(entry.checkpoints))
    assert entry.model is not None
    label = entry.label or (f"{name}, chat" if entry.chat_template else name)
    saved = saved_measurement(entry.model)
    return [
        SurveyModel(
            entry.model, label, entry.revision, entry.pair, entry.chat_template, entry.curve, entry.step, saved=saved
        )
    ]


def _of_run(entry: SurveyEntry, run: Path) -> list[SurveyModel]:
    """The models of a training run, each with the final model's tokenizer where it has none."""
    models = trained_models(run)
    if not models:
        raise InputError(f"no checkpoints in '{entry.checkpoints}': expected folders checkpoint-N in it")
    name = entry.label or run.name
    final = run / MODEL
    tokenizer = str(final) if (final / "tokenizer_config.json").is_file() else None
    return [
        SurveyModel(
            str(path),
            f"{name}, step {step}",
            chat_template=entry.chat_template,
            curve=name,
            step=step,
            tokenizer=None if (path / "tokenizer_config.json").is_file() else tokenizer,
        )
        for step, path in models.items()
    ]
