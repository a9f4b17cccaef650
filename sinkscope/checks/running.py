"""Running the sections of a report card, each kept when it is finished."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.checks.card import Card, Part
from sinkscope.checks.engines import lines
from sinkscope.checks.grid import weights_as_read
from sinkscope.checks.registry import chosen
from sinkscope.checks.row import Answered
from sinkscope.checks.section import CheckSection
from sinkscope.checks.subject import TEXTS, TOKENS, CheckedModel, subject
from sinkscope.errors import InputError
from sinkscope.files import write_json
from sinkscope.hooks import device_of, model_digest, unwrapped
from sinkscope.interventions import load
from sinkscope.model import load_tokenizer
from sinkscope.trials import explained

PACKAGES = ("sinkscope", "torch", "transformers")
Watch = Callable[[str, int, int, str], object]
"""Told the section's title, how many of its readings are done, of how many, and what was found so far."""


def check(
    model: nn.Module | str | Path,
    tokenizer: Any = None,
    texts: Sequence[str] | str | Path | None = None,
    *,
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
    out: str | Path | None = None,
    progress: Watch | None = None,
) -> Card:
    """The report card of a model: is there a sink, is BOS sent right, how many bits may the cache have, and more.

    Args:
        model: A model of transformers, or the name of one that `load` finds.
        tokenizer: Its tokenizer; found with the model where that has a name. Without one, random tokens are read.
        texts: Strings, or a file or folder of them; by default shipped texts.
        full: All sections, on two kinds of texts.
        only: Names of sections to run, whatever the tier.
        skip: Names of sections to leave out.
        count: Texts that are scored.
        tokens: Tokens per text.
        batch_size: Texts that go through the model at once.
        controls: Random controls per arm, drawn anew for each text.
        seed: Of texts and draws.
        field: The field that is the text, in files of rows.
        name: What the model is called on the card; by default its own name.
        out: A folder in which finished sections are kept, and found again by a later call.
        progress: Called while sections run.

    Raises `InputError` for unknown sections, and texts that are too short. A section that does not apply to the model,
    or is refused for it, says why, and the others run.
    """
    sections = chosen(full=full, only=only, skip=skip)
    loaded, found, called = _loaded(model, tokenizer, name)
    start = time.perf_counter()
    made = subject(
        called,
        loaded,
        found,
        texts,
        full=full,
        count=count,
        tokens=tokens,
        field=field,
        batch_size=batch_size,
        controls=controls,
        seed=seed,
    )
    identity = _identity(made)
    store = None if out is None else Path(out) / "sections"
    parts = [_part(section, made, store, identity, progress) for section in sections]
    record = {
        "model": called,
        "model_sha256": identity["model"],
        "weights": weights_as_read(loaded),
        "class": type(loaded).__name__,
        "dtype": str(next(loaded.parameters()).dtype).removeprefix("torch."),
        "parameters": sum(each.numel() for each in loaded.parameters()),
        "device": device_of(loaded).type,
        "threads": torch.get_num_threads(),
        "seconds": round(sum(part.seconds for part in parts), 2),
        "seconds_here": round(time.perf_counter() - start, 2),
        "texts": [
            {
                "name": each.name,
                "says": each.says,
                "n": len(each.ids),
                "sha256": each.sha256,
                "bytes_per_token": each.bytes_per_token and [round(size, 3) for size in each.bytes_per_token],
            }
            for each in made.sets
        ],
        "vocabulary_sha256": made.vocabulary_sha256,
        "controls": controls,
        "seed": seed,
        "versions": {"python": platform.python_version(), **{each: version(each) for each in PACKAGES}},
    }
    return Card(record, tuple(parts), lines(parts, gguf=called.endswith(".gguf")))


def _loaded(model: Any, tokenizer: Any, name: str) -> tuple[PreTrainedModel, Any, str]:
    """The model, its tokenizer or None, and its name."""
    if isinstance(model, str | Path):
        name = name or (Path(model).name if Path(model).is_file() else str(model))
        place, loaded = str(model), load(model)
    else:
        loaded = unwrapped(model)
        place = str(getattr(getattr(loaded, "config", None), "name_or_path", "") or "")
        name = name or (Path(place).name if place.endswith(".gguf") else place) or type(loaded).__name__
    if not isinstance(loaded, PreTrainedModel):
        raise InputError(f"model: expected a model of transformers, or its name; got a {type(loaded).__name__}")
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer)
    elif tokenizer is None and place:
        try:
            tokenizer = load_tokenizer(place)
        except InputError:
            tokenizer = None
    return loaded, tokenizer, name


def _identity(made: CheckedModel) -> dict[str, Any]:
    """What decides a section's numbers, whatever the section."""
    return {
        "model": model_digest(made.model),
        "dtype": str(next(made.model.parameters()).dtype),
        "controls": made.controls,
        "seed": made.seed,
        "words": explained(),
        "versions": {each: version(each) for each in PACKAGES},
    }


def _part(
    section: CheckSection, made: CheckedModel, store: Path | None, identity: dict[str, Any], progress: Watch | None
) -> Part:
    """A section on each set of texts, from the folder where it was finished before."""
    found: dict[str, Answered] = {}
    seconds = 0.0
    why = section.applies(made)

    def watch(done: int, total: int, said: str) -> None:
        if progress is not None:
            progress(section.title, done, total, said)

    for texts in made.sets[: None if section.every else 1]:
        own = {**identity, "texts": texts.sha256, "choosing": texts.choosing_sha256}
        path = None if store is None else store / f"{section.name}-{texts.sha256[:8]}.json"
        kept = None if path is None else _kept(path, own)
        if kept is None:
            watch(0, 1, "")
            start = time.perf_counter()
            try:
                one = Answered(missing=why) if why else section.run(made, texts, watch)
            except ValueError as error:  # ours, or transformers' own, as of families with caches of their own
                one = Answered(missing=" ".join(str(error).split()))
            kept = one, time.perf_counter() - start
            if path is not None:
                write_json(path, {"identity": own, "seconds": kept[1], "found": one.to_json()})
        found[texts.name] = kept[0]
        seconds += kept[1]
    return Part(section.name, section.title, found, seconds)


def _kept(path: Path, identity: dict[str, Any]) -> tuple[Answered, float] | None:
    """What was finished before, of the same model and texts, and its seconds; None where there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return (Answered.of_json(data["found"]), float(data["seconds"])) if data["identity"] == identity else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
