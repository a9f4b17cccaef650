"""What a model of a survey reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from sinkscope.model import load_tokenizer
from sinkscope.model.hub import configuration
from sinkscope.survey.spec import AUTO, SurveySpec
from sinkscope.survey.subjects import Subject

NEEDS_TEXT = ("natural", "first-token")


def settled(spec: SurveySpec, subject: Subject, commit: str | None, tokenizer: Any) -> tuple[SurveySpec, Subject]:
    """The two with what was left open for a model decided: its corpus, and whether it reads its chat format."""
    if spec.corpus == AUTO and spec.text is None:
        config = configuration(subject.model, revision=commit, trust_remote_code=spec.trust_remote_code)
        spec = spec.model_copy(update={"corpus": corpus_of(config)})
    if subject.chat_template is None:
        subject = replace(subject, chat_template=spec.bos == "auto" and bool(getattr(tokenizer, "chat_template", None)))
    return spec, subject


def text_read(spec: SurveySpec) -> str:
    """What is read, by its contents: sha256 of the text, of the whole corpus, or of the images or recordings.

    A version of the software that a text comes from would not do: the corpus `python` holds sources of several
    packages, any of which may be upgraded, or edited in place. Empty where nothing of the kind is read. Raises
    `InputError` for what cannot be read.
    """
    if spec.media is not None:
        return media_digest(*spec.media, spec.samples)
    if not {*NEEDS_TEXT} & {*spec.inputs}:
        return ""
    if spec.text is None and spec.corpus == AUTO:
        return ""
    if spec.text is None:
        return corpus_digest(spec.corpus, spec.field)
    return text_digest(spec.text, spec.field)


def reading_settings(spec: SurveySpec, subject: Subject, kind: str, text: str) -> dict[str, Any]:
    """What decides what a model reads, JSON-able, and nothing else: `text` counts only where text is read."""
    settings: dict[str, Any] = {"kind": kind, "tokens": spec.tokens, "samples": spec.samples, "seed": spec.seed}
    if kind in MEDIA:
        return settings | {"files": text, "prompt": spec.prompt}
    if kind in NEEDS_TEXT:
        settings |= {"text": text, "split": None if spec.text is not None else spec.split}
    if kind == "natural":
        settings["chat_template"] = subject.chat_template
    return settings | {"bos": _bos(spec, subject, kind)}


def needs_tokenizer(spec: SurveySpec, subject: Subject, kind: str) -> bool:
    """Whether the input cannot be made without a tokenizer."""
    return kind in NEEDS_TEXT or _bos(spec, subject, kind) in ("add", "double")


def tokenizer_of(subject: Subject, commit: str | None, trust_remote_code: bool = False) -> Any:
    """The tokenizer that reads for a model. Raises `InputError` where there is none."""
    if subject.tokenizer is not None:
        return load_tokenizer(subject.tokenizer, trust_remote_code=trust_remote_code)
    return load_tokenizer(subject.model, revision=commit, trust_remote_code=trust_remote_code)


def inputs_of(
    spec: SurveySpec, subject: Subject, kind: str, model: PreTrainedModel, tokenizer: Any, commit: str | None
) -> InputReading:
    """What a model is given of one kind of input.

    Raises `UnsupportedModelError` for a model that reads nothing of the kind, `InputError` as `build_inputs`, `as_chat`
    and `media_reading` do.
    """
    if spec.media is not None:
        return media_reading(
            *spec.media,
            model,
            subject.model,
            samples=spec.samples,
            tokens=spec.tokens,
            revision=commit,
            prompt=spec.prompt,
        )
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=vocabulary_of(model),
        tokens=spec.tokens,
        samples=spec.samples,
        seed=spec.seed,
        text=spec.text if kind in NEEDS_TEXT else None,
        bos=_bos(spec, subject, kind),
        corpus=spec.corpus,
        split=spec.split,
        field=spec.field,
    )
    return reading(model, as_chat(inputs, tokenizer) if kind == "natural" and subject.chat_template else inputs)


def _bos(spec: SurveySpec, subject: Subject, kind: str) -> str:
    """Nothing stands before what has a first token of its own: a chat template, first-token input, images."""
    if kind in MEDIA:
        return "none"
    own = kind == "first-token" or (kind == "natural" and subject.chat_template)
    return "none" if own else spec.bos
