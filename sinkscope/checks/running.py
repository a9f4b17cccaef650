"""Runs the sections of a report card, and keeps each one when it is finished."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.checks.card import Card, Part, check_comparable
from sinkscope.checks.engines import lines
from sinkscope.checks.registry import chosen
from sinkscope.checks.row import Answered
from sinkscope.checks.section import CheckSection
from sinkscope.checks.subject import TEXTS, TOKENS, CheckedModel, TextSet, checked_model, checked_on
from sinkscope.errors import InputError
from sinkscope.files import write_json
from sinkscope.hooks import device_of, model_digest, unwrapped
from sinkscope.interventions import load
from sinkscope.model import load_tokenizer
from sinkscope.model.hub import commit_of
from sinkscope.names import SHIPPED, is_gguf
from sinkscope.quantization.as_read import weights_as_read
from sinkscope.trials import explained

PACKAGES = ("sinkscope", "torch", "transformers")
LAYOUT = 8  # goes up when sections measure or say something else, so that nothing kept before is reused
Watch = Callable[[str, int, int, str], object]
"""Called with a section's title, the number of its finished readings, their total, and the result so far."""


def check(
    model: nn.Module | str | Path,
    tokenizer: Any = None,
    texts: Sequence[str] | str | Path | None = None,
    *,
    inputs: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]] | None = None,
    full: bool = False,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    count: int = TEXTS,
    tokens: int = TOKENS,
    batch_size: int = 8,
    controls: int = 1,
    seed: int = 0,
    field: str | None = None,
    name: str = "",
    revision: str | None = None,
    out: str | Path | None = None,
    against: Card | None = None,
    progress: Watch | None = None,
) -> Card:
    """The report card of a model: is there a sink, is BOS sent right, how many bits may the cache have, and more.

    Args:
        model: A transformers model, or a name that `load` finds.
        tokenizer: Its tokenizer; by default the one that belongs to the model's name. Without one, texts are random
            tokens.
        texts: Strings, or a file or folder of them; by default texts that come with the package.
        inputs: Images or recordings in place of texts, as the arguments of forward passes: of all samples, or a list
            with those of each size. Attention alone is read then, and `full`, `count`, `tokens` and `field` are not.
        full: All sections, on two kinds of texts.
        only: Names of the sections to run, whatever their tier.
        skip: Names of sections to leave out.
        count: Scored texts per kind.
        tokens: Tokens per text.
        batch_size: Texts per pass.
        controls: Random controls per arm, drawn anew for each text.
        seed: Seed of the texts and of random draws.
        field: The field that holds the text, in files of rows.
        name: The model's name on the card; by default its own name.
        revision: The branch, tag or commit of the hub that it was loaded from; the card holds the commit.
        out: A folder that keeps finished sections; a later call with the same model and texts reuses them.
        against: A card that this one is to be compared with (`Card.against`): other texts are refused beforehand.
        progress: Called while sections run.

    Raises `InputError` for unknown sections, for texts that are too short, and for texts beside `inputs`. If a section
    does not apply to the model, or raises `ValueError`, the card gives the reason and the other sections run.
    """
    sections = chosen(full=full, only=only, skip=skip)
    loaded, tokenizer, name, place = _loaded(model, tokenizer, name)
    start = time.perf_counter()
    common: dict[str, Any] = {"batch_size": batch_size, "controls": controls, "seed": seed}
    if inputs is None:
        of_texts: dict[str, Any] = {"full": full, "count": count, "tokens": tokens, "field": field}
        subject = checked_model(name, loaded, tokenizer, texts, **of_texts, **common)
    elif texts is not None:
        raise InputError("texts and inputs exclude each other: a card reads either")
    else:
        subject = checked_on(name, loaded, tokenizer, inputs, **common)
    read = [texts.to_json() for texts in _texts_read(sections, subject)]
    if against is not None:
        check_comparable({"texts": read, "vocabulary_sha256": subject.vocabulary_sha256}, against.record)
    identity = _identity(subject)
    store = None if out is None else Path(out) / "sections"
    parts = [_part(section, subject, store, identity, progress) for section in sections]
    record = {
        "model": name,
        "model_sha256": identity["model"],
        "revision": _revision(place, revision),
        "gguf": {key: value for key, value in getattr(loaded, "gguf", {}).items() if key != "types"},
        "weights": weights_as_read(loaded).says,
        "class": type(loaded).__name__,
        "dtype": str(next(loaded.parameters()).dtype).removeprefix("torch."),
        "parameters": sum(parameter.numel() for parameter in loaded.parameters()),
        "device": device_of(loaded).type,
        "threads": torch.get_num_threads(),
        "seconds": round(sum(part.seconds for part in parts), 2),
        "seconds_here": round(time.perf_counter() - start, 2),
        "texts": read,
        "vocabulary_sha256": subject.vocabulary_sha256,
        "controls": controls,
        "seed": seed,
        "versions": {"python": platform.python_version(), **_versions()},
    }
    return Card(record, tuple(parts), lines(parts, gguf=is_gguf(name)))


def _texts_read(sections: Sequence[CheckSection], subject: CheckedModel) -> list[TextSet]:
    """The sets of texts that these sections read: those of all others first, then plain ones."""
    sets = [] if all(section.plain for section in sections) else list(subject.sets)
    plain = [texts.plain for texts in subject.sets if texts.plain is not None]
    return [*sets, *(plain if any(section.plain for section in sections) else [])] or list(subject.sets)


def _revision(place: str, revision: str | None) -> str | None:
    """The commit of a model of the hub; None for others, and where it cannot be found out."""
    if not place or place in SHIPPED or Path(place).expanduser().exists():
        return None
    try:
        return commit_of(place, revision)
    except InputError:
        return revision


def _loaded(model: Any, tokenizer: Any, name: str) -> tuple[PreTrainedModel, Any, str, str]:
    """The model, its tokenizer or None, its name, and where it is: a hub id, a path, or empty."""
    if isinstance(model, str | Path):
        name = name or (Path(model).name if Path(model).is_file() else str(model))
        place, loaded = str(model), load(model)
    else:
        loaded = unwrapped(model)
        place = str(getattr(getattr(loaded, "config", None), "name_or_path", "") or "")
        name = name or (Path(place).name if is_gguf(place) else place) or type(loaded).__name__
    if not isinstance(loaded, PreTrainedModel):
        raise InputError(f"model: expected a model of transformers, or its name; got a {type(loaded).__name__}")
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer)
    elif tokenizer is None and place:
        try:
            tokenizer = load_tokenizer(place)
        except InputError:
            tokenizer = None
    return loaded, tokenizer, name, place


def _versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


def _identity(subject: CheckedModel) -> dict[str, Any]:
    """Everything except a set of texts that the numbers of sections depend on."""
    return {
        "layout": LAYOUT,
        "model": model_digest(subject.model),
        "tokenizer": subject.tokenizer_sha256,
        "source": subject.source_sha256,
        "dtype": str(next(subject.model.parameters()).dtype),
        "controls": subject.controls,
        "seed": subject.seed,
        "words": explained(),
        "versions": _versions(),
    }


def _part(
    section: CheckSection, subject: CheckedModel, store: Path | None, identity: dict[str, Any], progress: Watch | None
) -> Part:
    """A section on each set of texts, read from `store` where an earlier call finished it."""
    by_texts: dict[str, Answered] = {}
    seconds = 0.0
    first = subject.sets[0]
    if first.inputs and not section.media:
        obstacle = f"it reads {first.samples} here, and this section reads texts"
    else:
        obstacle = section.obstacle(subject)

    def watch(done: int, total: int, news: str) -> None:
        if progress is not None:
            progress(section.title, done, total, news)

    for text_set in subject.sets:
        texts = text_set.plain if section.plain and text_set.plain is not None else text_set
        with_texts = {**identity, "texts": texts.sha256, "choosing": texts.calibration_sha256}
        path = None if store is None else store / f"{section.name}-{texts.sha256[:8]}.json"
        stored = None if path is None else _stored(path, with_texts)
        if stored is None:
            watch(0, 1, "")
            start = time.perf_counter()
            try:
                answered = Answered(missing=obstacle) if obstacle else section.run(subject, texts, watch)
            except ValueError as error:  # an InputError, or transformers' own error for families with special caches
                answered = Answered(missing=" ".join(str(error).split()))
            stored = answered, time.perf_counter() - start
            if path is not None:
                write_json(path, {"identity": with_texts, "seconds": stored[1], "found": answered.to_json()})
        by_texts[texts.name] = stored[0]
        seconds += stored[1]
    return Part(section.name, section.title, by_texts, seconds)


def _stored(path: Path, identity: dict[str, Any]) -> tuple[Answered, float] | None:
    """An earlier answer for the same model and texts, and the seconds that it took; None if there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return (Answered.from_json(data["found"]), float(data["seconds"])) if data["identity"] == identity else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
