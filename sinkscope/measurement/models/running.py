"""Measuring many models: one in memory at a time, finished rows kept, failures reported as rows."""

from __future__ import annotations

import gc
import inspect
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sinkscope.data import (
    InputReading,
    as_chat,
    build_inputs,
    corpus_digest,
    corpus_of,
    reading,
    text_digest,
    vocabulary_of,
)
from sinkscope.data.media import MEDIA, media_digest, media_reading
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import check_writable, locked, sha256
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.measuring import measure, resolve_observers
from sinkscope.measurement.models.rows import Status, SurveyRow, measured_row, unmeasured
from sinkscope.measurement.models.spec import AUTO, SurveySpec
from sinkscope.measurement.models.store import Key, Store
from sinkscope.measurement.models.subjects import Identity, SurveyModel, identity, survey_models
from sinkscope.measurement.models.table import SURVEY_JSON, SURVEY_MARKDOWN, SURVEY_PAGE, SURVEY_TABLE, Survey
from sinkscope.measurement.observers.observer import Observer
from sinkscope.measurement.observers.received import AttentionReceived
from sinkscope.model import load, load_tokenizer
from sinkscope.model.hub import configuration

NEEDS_TEXT = ("natural", "first-token")


@dataclass(frozen=True)
class SurveyProgress:
    """How far a survey is: the number of the model (from 1) of `models`, the input it reads, samples done of all.

    `rows`: the finished ones. `samples` is 0 before the first batch is done; at the end `label` and `input` are empty.
    """

    model: int
    models: int
    label: str
    rows: tuple[SurveyRow, ...]
    input: str = ""
    done: int = 0
    samples: int = 0


def measure_models(
    spec: SurveySpec,
    out: str | Path,
    progress: Callable[[SurveyProgress], object] | None = None,
    *,
    others: str | Path | None = None,
    loader: Callable[..., PreTrainedModel] | None = None,
) -> Survey:
    """Measure every model of `spec` on every input, one model in memory at a time, and return the rows.

    Writes to `out`: `survey.json`, `table.csv` and `table.md`, rewritten after each row, and per model and input
    `results/NAME-INPUT-HASH/measurement.nc` with its `row.json`. The hash covers the identity of the model (its commit
    on the hub; in a folder the contents of its files), the settings, what is read, and the versions of sinkscope,
    torch, transformers and tokenizers, but no threshold. A result with the same hash is not measured again, so an
    interrupted survey continues where it stopped. A saved measurement among the models is read. A model or an input
    that fails becomes a row with its reason, and is tried again next time.

    Args:
        spec: Models, inputs and settings.
        out: The folder of results. Tables of an earlier survey in it are removed before the first row.
        progress: Called with the `SurveyProgress` before each row and after each batch.
        others: A folder of other surveys, such as the parent of `out`, whose matching results are copied.
        loader: Loads a model, instead of `model.load`: `sinkscope.load` also reads models saved with a calibration.

    Raises `InputError` for a spec without meaning (`survey_models`, an unreadable text), for a folder in which another
    survey is at work, and for one that cannot be written.
    """
    models, folder, texts = survey_models(spec), Path(out), dict[str, str]()
    if not any(isinstance(observer, AttentionReceived) for observer in resolve_observers(spec.observers)):
        raise InputError("a survey tells sinks by the attention received: name the observer AttentionReceived too")
    if spec.corpus != AUTO or spec.text is not None:
        texts[spec.corpus] = digest_of_text(spec)
    check_writable(folder)
    report = progress or (lambda progress: None)
    with locked(folder, "surveying into"):
        store = Store(folder, None if others is None else Path(others))
        store.clean()
        for name in (
            SURVEY_PAGE,
            SURVEY_MARKDOWN,
            SURVEY_TABLE,
            SURVEY_JSON,
        ):  # a kill must not leave tables of two surveys in one folder
            (folder / name).unlink(missing_ok=True)
        rows: list[SurveyRow] = []
        for number, model in enumerate(models, start=1):
            visit = _Visit(spec, model, store, texts, loader or load)
            for kind in spec.inputs if model.saved is None else ("saved",):
                at = partial(SurveyProgress, number, len(models), model.label, tuple(rows), kind)
                report(at())
                rows.append(visit.row(kind, partial(_report_batch, report, at)))
                Survey(tuple(rows), folder, spec.epsilon).save()
            visit.end()
        survey = Survey(tuple(rows), folder, spec.epsilon)
        report(SurveyProgress(len(models), len(models), "", survey.rows))
    return survey


def _report_batch(report: Callable[..., object], at: Callable[..., SurveyProgress], done: int, samples: int) -> None:
    report(at(done, samples))


def result_key(spec: SurveySpec) -> Key:
    """What the result of the only model of `spec` on its only input depends on.

    Raises `InputError` for a model or text that cannot be identified.
    """
    [subject], [kind] = survey_models(spec), spec.inputs
    return _Visit(spec, subject, Store(Path()), {}, load).key(kind)


def settled(
    spec: SurveySpec, subject: SurveyModel, commit: str | None, tokenizer: Any
) -> tuple[SurveySpec, SurveyModel]:
    """Both with the defaults that depend on the model filled in: the corpus, and whether it reads its chat format."""
    if spec.corpus == AUTO and spec.text is None:
        config = configuration(subject.model, revision=commit, trust_remote_code=spec.trust_remote_code)
        spec = spec.model_copy(update={"corpus": corpus_of(config)})
    if subject.chat_template is None:
        subject = replace(subject, chat_template=spec.bos == "auto" and bool(getattr(tokenizer, "chat_template", None)))
    return spec, subject


def digest_of_text(spec: SurveySpec) -> str:
    """sha256 of what is read: the text, the whole corpus, or the images or recordings; empty where no text is read.

    The version of the software that a text comes from would not do: the corpus `python` holds sources of several
    packages, any of which may be upgraded, or edited in place. Raises `InputError` for what cannot be read.
    """
    if spec.media is not None:
        return media_digest(*spec.media, spec.samples)
    if not {*NEEDS_TEXT} & {*spec.inputs}:
        return ""
    if spec.text is not None:
        return text_digest(spec.text, spec.field)
    return "" if spec.corpus == AUTO else corpus_digest(spec.corpus, spec.field)


@dataclass
class _Visit:
    """One model: identified and loaded when first needed, freed at the end.

    `texts`: digests of what is read, by corpus. `trouble`: why the model is not available.
    """

    spec: SurveySpec
    subject: SurveyModel
    store: Store
    texts: dict[str, str]
    loader: Callable[..., PreTrainedModel]
    model: PreTrainedModel | None = None
    trouble: str | None = None
    known: Identity | None = None

    def row(self, kind: str, progress: Callable[[int, int], object]) -> SurveyRow:
        """The row of one input: read, measured, or with the reason for neither. No fault of a model leaves it."""
        try:
            if self.subject.saved is not None:
                return self._saved(self.subject.saved)
            key = self.key(kind)
            stored = self.store.find(key, self.subject, kind, self.spec.epsilon)
            return stored or self._measured(kind, key, progress)
        except Exception as error:
            status: Status = "skipped" if isinstance(error, _NoSuchInput) else "failed"
            return unmeasured(self.subject, kind, status, _reason(error))

    def key(self, kind: str) -> Key:
        """What the result of one input depends on."""
        if kind in NEEDS_TEXT:
            self.spec, self.subject = settled(self.spec, self.subject, self._identity().commit, self.tokenizer)
        return Key(self._identity(), self._settings(kind))

    def end(self) -> None:
        """Free the model, and a GPU's memory with it."""
        self.model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _saved(self, path: Path) -> SurveyRow:
        measurement = Measurement.load(path)
        kind = str(measurement.record["input"].get("kind", "saved"))
        return measured_row(self.subject, kind, measurement, self.spec.epsilon, None, str(path.absolute()))

    def _measured(self, kind: str, key: Key, progress: Callable[[int, int], object]) -> SurveyRow:
        if self.tokenizer is None and (kind in NEEDS_TEXT or self._bos(kind) in ("add", "double")):
            raise _NoSuchInput(f"no tokenizer, which {kind} input needs")
        model = self._model()
        try:
            inputs = self._inputs(kind, model)
        except UnsupportedModelError as error:
            raise _NoSuchInput(str(error)) from error
        began = time.perf_counter()
        measurement = measure(
            model,
            inputs.parts,
            self.spec.observers,
            batch_size=self.spec.batch_size,
            progress=progress,
            about={"kind": kind, "description": inputs.description, "first": inputs.first, "seed": self.spec.seed},
        )
        seconds = time.perf_counter() - began
        return self.store.keep(key, self.subject, kind, measurement, self.spec.epsilon, seconds)

    def _inputs(self, kind: str, model: PreTrainedModel) -> InputReading:
        """What the model reads. Raises as `build_inputs`, `as_chat` and `media_reading` do."""
        spec = self.spec
        if spec.media is not None:
            return media_reading(
                *spec.media,
                model,
                self.subject.model,
                samples=spec.samples,
                tokens=spec.tokens,
                revision=self._identity().commit,
                prompt=spec.prompt,
            )
        inputs = build_inputs(
            kind,
            tokenizer=self.tokenizer,
            vocab_size=vocabulary_of(model),
            tokens=spec.tokens,
            samples=spec.samples,
            seed=spec.seed,
            text=spec.text if kind in NEEDS_TEXT else None,
            bos=self._bos(kind),
            corpus=spec.corpus,
            split=spec.split,
            field=spec.field,
            windows=spec.windows,
        )
        chat = kind == "natural" and self.subject.chat_template
        return reading(model, as_chat(inputs, self.tokenizer) if chat else inputs)

    def _bos(self, kind: str) -> str:
        """Nothing precedes an input that defines its own first token: a chat template, first-token input, images."""
        defines_first = kind in MEDIA or kind == "first-token" or (kind == "natural" and self.subject.chat_template)
        return "none" if defines_first else self.spec.bos

    def _settings(self, kind: str) -> dict[str, Any]:
        """The settings that determine numbers, JSON-able: no device, no batch size, no text where none is read."""
        spec = self.spec
        if spec.corpus not in self.texts:
            self.texts[spec.corpus] = digest_of_text(spec)
        text = self.texts[spec.corpus]
        settings: dict[str, Any] = {"kind": kind, "tokens": spec.tokens, "samples": spec.samples, "seed": spec.seed}
        if kind in MEDIA:
            settings |= {"files": text, "prompt": spec.prompt}
        else:
            if kind in NEEDS_TEXT:
                settings |= {"text": text, "split": None if spec.text is not None else spec.split}
            if kind == "natural":
                settings["chat_template"] = self.subject.chat_template
                settings |= {} if spec.windows == "within" else {"windows": spec.windows}
            settings["bos"] = self._bos(kind)
        observers = [_described(observer) for observer in resolve_observers(spec.observers)]
        return {**settings, "dtype": spec.dtype, "attn": spec.attn, "observers": observers}

    def _identity(self) -> Identity:
        if self.known is None:
            self.known = self._once(lambda: identity(self.subject))
        return self.known

    def _model(self) -> PreTrainedModel:
        if self.model is None:
            self.model = self._once(self._load)
        return self.model

    def _load(self) -> PreTrainedModel:
        spec = self.spec
        return self.loader(
            self.subject.model,
            dtype=spec.dtype,
            device=spec.device,
            device_map=spec.device_map,
            revision=self._identity().commit,
            attn=spec.attn,
            trust_remote_code=spec.trust_remote_code,
        )

    @cached_property
    def tokenizer(self) -> Any:
        """None where the model has none."""
        trust = self.spec.trust_remote_code
        try:
            if self.subject.tokenizer is not None:
                return load_tokenizer(self.subject.tokenizer, trust_remote_code=trust)
            return load_tokenizer(self.subject.model, revision=self._identity().commit, trust_remote_code=trust)
        except InputError:
            return None

    def _once(self, step: Callable[[], Any]) -> Any:
        """Take a step; one that failed is not tried again for the same model."""
        if self.trouble is not None:
            raise InputError(self.trouble)
        try:
            return step()
        except Exception as error:
            self.trouble = _reason(error)
            raise


def _described(observer: Observer) -> dict[str, Any]:
    """An observer and its parameters; one from elsewhere with the contents of its file, which no version names."""
    kind = type(observer)
    if kind.__module__.partition(".")[0] == "sinkscope":
        return observer.describe()
    try:
        return {**observer.describe(), "code": sha256(inspect.getfile(kind))}
    except (OSError, TypeError):  # defined in a notebook: nothing shows that it is still the same
        return {**observer.describe(), "code": uuid.uuid4().hex}


class _NoSuchInput(InputError):
    """The model cannot read this kind of input."""


def _reason(error: Exception) -> str:
    """One line; an error that is not bad input is preceded by its type."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
