"""Running a survey: one model in memory at a time, finished rows kept, failures reported as rows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import check_writable
from sinkscope.measurement import AttentionReceived, HiddenNorms, QueryKeyValueNorms, SlotReceived, measure
from sinkscope.model import load
from sinkscope.survey.inputs import (
    NEEDS_TEXT,
    inputs_of,
    needs_tokenizer,
    reading_settings,
    settled,
    text_read,
    tokenizer_of,
)
from sinkscope.survey.progress import Progress
from sinkscope.survey.result import CSV, JSON, MARKDOWN, PAGE, Survey
from sinkscope.survey.rows import Row, Status, unmeasured
from sinkscope.survey.spec import AUTO, SurveySpec
from sinkscope.survey.store import Key, Store
from sinkscope.survey.subjects import Identity, Subject, identity, subjects
from sinkscope.training import locked

OBSERVERS = (AttentionReceived(), SlotReceived(), HiddenNorms(), QueryKeyValueNorms())


def survey(
    spec: SurveySpec,
    out: str | Path,
    progress: Callable[[Progress], object] | None = None,
    *,
    others: str | Path | None = None,
) -> Survey:
    """Measure every model of `spec` on every input, one model in memory at a time, and return the rows.

    In `out`: `survey.json`, `table.csv` and `table.md`, rewritten after each row, and per model × input
    `results/NAME-INPUT-HASH/measurement.nc` with its `row.json`. A result is found again by the hash of the model's
    identity (commit on the hub; in a folder the contents of its files), of the settings, of what is read, and of the
    versions of sinkscope, torch, transformers and tokenizers, and then not measured: an interrupted survey goes on
    where it was. Thresholds are not part of it. `others` is a folder of other surveys, such as the one that `out` lies
    in, whose results are taken over likewise. Tables of an earlier survey are removed before the first row. A model or
    an input that fails is a row with its reason, and is tried again next time. Raises `InputError` for a spec without
    meaning (`subjects`, an unreadable text), for a folder in which another survey is at work, or which cannot be
    written.
    """
    chosen, folder, texts = subjects(spec), Path(out), dict[str, str]()
    if spec.corpus != AUTO or spec.text is not None:
        texts[spec.corpus] = text_read(spec)
    check_writable(folder)
    tell = progress or _unheard
    with locked(folder, "surveying into"):
        store = Store(folder, None if others is None else Path(others))
        store.clean()
        for name in (PAGE, MARKDOWN, CSV, JSON):  # a kill must not leave tables of two surveys side by side
            (folder / name).unlink(missing_ok=True)
        rows: list[Row] = []
        for number, subject in enumerate(chosen, start=1):
            visit = _Visit(spec, subject, store, texts)
            for kind in spec.inputs:
                at = partial(Progress, number, len(chosen), subject.label, tuple(rows), kind)
                tell(at())
                rows.append(visit.row(kind, partial(_batch_done, tell, at)))
                Survey(tuple(rows), folder, spec.epsilon).save()
            visit.end()
        finished = Survey(tuple(rows), folder, spec.epsilon)
        tell(Progress(len(chosen), len(chosen), "", finished.rows))
    return finished


def _batch_done(tell: Callable[[Progress], object], at: Callable[..., Progress], done: int, samples: int) -> None:
    tell(at(done, samples))


def _unheard(progress: Progress) -> None:
    """The default: no progress is shown."""


@dataclass
class _Visit:
    """One model: identified and loaded when first needed, freed at the end.

    `texts`: digests of what is read, by corpus. `trouble`: why the model cannot be had.
    """

    spec: SurveySpec
    subject: Subject
    store: Store
    texts: dict[str, str]
    model: PreTrainedModel | None = None
    trouble: str | None = None
    known: Identity | None = None

    def row(self, kind: str, progress: Callable[[int, int], object]) -> Row:
        """The row of one input, found, measured, or with its reason. Whatever a model does wrong stays in its row."""
        try:
            commit = self._identity().commit
            if kind in NEEDS_TEXT:
                self.spec, self.subject = settled(self.spec, self.subject, commit, self.tokenizer)
            key = Key(self._identity(), self._settings(kind))
            found = self.store.find(key, self.subject, kind, self.spec.epsilon)
            return found or self._measured(kind, key, progress)
        except Exception as error:
            status: Status = "skipped" if isinstance(error, _DoesNotApply) else "failed"
            return unmeasured(self.subject, kind, status, _reason(error))

    def end(self) -> None:
        """Let the model go; a GPU's memory with it."""
        self.model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _measured(self, kind: str, key: Key, progress: Callable[[int, int], object]) -> Row:
        if self.tokenizer is None and needs_tokenizer(self.spec, self.subject, kind):
            raise _DoesNotApply(f"no tokenizer, which {kind} input needs")
        model = self._model()
        try:
            inputs = inputs_of(self.spec, self.subject, kind, model, self.tokenizer, self._identity().commit)
        except UnsupportedModelError as error:
            raise _DoesNotApply(str(error)) from error
        began = time.perf_counter()
        measurement = measure(
            model,
            inputs.parts,
            OBSERVERS,
            batch_size=self.spec.batch_size,
            progress=progress,
            about={"kind": kind, "description": inputs.description, "first": inputs.first, "seed": self.spec.seed},
        )
        seconds = time.perf_counter() - began
        return self.store.keep(key, self.subject, kind, measurement, self.spec.epsilon, seconds)

    def _identity(self) -> Identity:
        if self.known is None:
            self.known = self._or_trouble(lambda: identity(self.subject))
        return self.known

    def _model(self) -> PreTrainedModel:
        if self.model is None:
            self.model = self._or_trouble(self._load)
        return self.model

    def _load(self) -> PreTrainedModel:
        spec, commit = self.spec, self._identity().commit
        return load(
            self.subject.model,
            dtype=spec.dtype,
            device=spec.device,
            device_map=spec.device_map,
            revision=commit,
            attn=spec.attn,
            trust_remote_code=spec.trust_remote_code,
        )

    @cached_property
    def tokenizer(self) -> Any:
        """None where the model has none."""
        try:
            return tokenizer_of(self.subject, self._identity().commit, self.spec.trust_remote_code)
        except InputError:
            return None

    def _settings(self, kind: str) -> dict[str, Any]:
        """Devices and batch sizes decide no number, and are left out."""
        observers = [type(observer).__name__ for observer in OBSERVERS]
        if self.spec.corpus not in self.texts:
            self.texts[self.spec.corpus] = text_read(self.spec)
        read = reading_settings(self.spec, self.subject, kind, self.texts[self.spec.corpus])
        return {**read, "dtype": self.spec.dtype, "attn": self.spec.attn, "observers": observers}

    def _or_trouble(self, step: Callable[[], Any]) -> Any:
        """A step that is not tried a second time for the same model."""
        if self.trouble is not None:
            raise InputError(self.trouble)
        try:
            return step()
        except Exception as error:
            self.trouble = _reason(error)
            raise


class _DoesNotApply(InputError):
    """An input that does not exist for a model."""


def _reason(error: Exception) -> str:
    """One line; what is not bad input also says what kind of error it was."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
