"""Which models a survey's entries stand for, and what identifies each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from transformers.utils import cached_file, extract_commit_hash

from sinkscope.errors import InputError
from sinkscope.files import sha256
from sinkscope.model.hub import cannot_load, resolve
from sinkscope.names import shortened
from sinkscope.survey.spec import Entry, SurveySpec
from sinkscope.training import CHECKPOINTS, MODEL, checkpoint_step, list_checkpoints, read_record

# Files of a model's folder that decide no measurement; every other one is taken to. A list of those that do would be
# wrong for each tokenizer, adapter or processor that names its files in a way of its own.
INDIFFERENT = (
    *("*.md", "LICENSE*", "NOTICE*", ".git*", "*.log", "*.lock", "generation_config.json", "*.png", "*.jpg"),
    *("optimizer*", "scheduler*", "scaler*", "rng_state*", "trainer_state.json", "training_args.bin", "manifest.json"),
    *("record.json", "log.jsonl"),
)
BESIDE = "additional_chat_templates"  # the one folder in which transformers looks too


@dataclass(frozen=True)
class Subject:
    """One model of a survey. `tokenizer`: whose tokenizer reads text for it, where that is not its own."""

    model: str
    label: str
    revision: str | None = None
    pair: str | None = None
    chat_template: bool | None = None
    curve: str | None = None
    step: int | None = None
    tokenizer: str | None = None


def subjects(spec: SurveySpec) -> list[Subject]:
    """All models in order. Raises `InputError` for a run without checkpoints, and for two models of one label."""
    labels = shortened([_name(entry) for entry in spec.models])
    found = [each for entry, label in zip(spec.models, labels, strict=True) for each in _expanded(entry, label)]
    twice = [label for label, count in Counter(subject.label for subject in found).items() if count > 1]
    if twice:
        raise InputError(f"two models of the survey are called '{twice[0]}': give each a label of its own")
    return found


@dataclass(frozen=True)
class Identity:
    """What a model is: `digest` of the commit or of the deciding files; `commit` on the hub, None for a folder."""

    digest: str
    commit: str | None = None


def identity(subject: Subject) -> Identity:
    """Of a hub model its commit, resolved now; of a folder or a shipped model the contents that decide its numbers.

    Raises `InputError` where there is no such model. Hashing reads every weight of a folder once.
    """
    place = Path(resolve(subject.model))
    if place.is_dir():
        folders = [place, *([Path(subject.tokenizer)] if subject.tokenizer else [])]
        files = {str(path): sha256(path) for folder in folders for path in _decisive(folder)}
        contents = sorted((Path(name).name, digest) for name, digest in files.items())
        return Identity(hashlib.sha256(json.dumps(contents).encode()).hexdigest())
    commit = _commit(subject)
    return Identity(hashlib.sha256(f"{subject.model}@{commit}".encode()).hexdigest(), commit)


def _commit(subject: Subject) -> str:
    try:
        config = cached_file(subject.model, "config.json", revision=subject.revision)
    except (OSError, ValueError) as error:
        raise cannot_load(subject.model, error) from error
    commit = extract_commit_hash(config, None)
    if commit is None:
        raise InputError(f"the commit of model '{subject.model}' is unknown")
    return str(commit)


def _decisive(folder: Path) -> list[Path]:
    found = [path for path in [*folder.iterdir(), *folder.glob(f"{BESIDE}/*")] if path.is_file()]
    return sorted(path for path in found if not any(fnmatchcase(path.name, pattern) for pattern in INDIFFERENT))


def _name(entry: Entry) -> str:
    """What an entry without a label is called."""
    name = str(entry.model or entry.checkpoints)
    return name if entry.revision is None else f"{name}@{entry.revision}"


def _expanded(entry: Entry, name: str) -> list[Subject]:
    if entry.checkpoints is not None:
        return _checkpoints(entry, Path(entry.checkpoints))
    assert entry.model is not None
    label = entry.label or (f"{name}, chat" if entry.chat_template else name)
    return [Subject(entry.model, label, entry.revision, entry.pair, entry.chat_template, entry.curve, entry.step)]


def _checkpoints(entry: Entry, run: Path) -> list[Subject]:
    """The checkpoints of a run of ours or of any `Trainer`, and its final model where no checkpoint is of that step."""
    places = {checkpoint_step(path): path for path in [*list_checkpoints(run), *list_checkpoints(run / CHECKPOINTS)]}
    final = run / MODEL
    if (final / "config.json").is_file():
        places.setdefault(int((read_record(run) or {"step": 0})["step"]), final)
    if not places:
        raise InputError(f"no checkpoints in '{entry.checkpoints}': expected folders checkpoint-N in it")
    name = entry.label or run.name
    tokenizer = str(final) if (final / "tokenizer_config.json").is_file() else None
    return [
        Subject(
            str(path),
            f"{name}, step {step}",
            chat_template=entry.chat_template,
            curve=name,
            step=step,
            tokenizer=None if (path / "tokenizer_config.json").is_file() else tokenizer,
        )
        for step, path in sorted(places.items())
    ]
