"""What a model of a survey reads."""

from __future__ import annotations

import platform
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.data import Inputs, as_chat, build_inputs
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.files import sha256
from sinkscope.model import load_tokenizer
from sinkscope.survey.spec import SurveySpec
from sinkscope.survey.subjects import Subject

NEEDS_TEXT = ("natural", "first-token")


def text_read(spec: SurveySpec) -> str:
    """What the text is, by its contents: a file's hash, or the version of the sources that the corpus `python` is.

    Raises `InputError` for a file that cannot be read.
    """
    if spec.text is None:
        return f"python {platform.python_version()}"
    try:
        return sha256(spec.text)
    except OSError as error:
        raise InputError(f"cannot read the text {spec.text}: {error.strerror or error}") from error


def reading_settings(spec: SurveySpec, subject: Subject, kind: str, text: str) -> dict[str, Any]:
    """What decides which tokens a model reads, JSON-able, and nothing else: `text` counts only where text is read."""
    settings: dict[str, Any] = {"kind": kind, "tokens": spec.tokens, "samples": spec.samples, "seed": spec.seed}
    if kind in NEEDS_TEXT:
        settings["text"] = text
    if kind == "natural":
        settings["chat_template"] = subject.chat_template
    return settings | {"bos": _bos(spec, subject, kind)}


def needs_tokenizer(spec: SurveySpec, subject: Subject, kind: str) -> bool:
    """Whether the input cannot be made without a tokenizer."""
    return kind in NEEDS_TEXT or _bos(spec, subject, kind) == "add"


def tokenizer_of(subject: Subject, commit: str | None) -> Any:
    """The tokenizer that reads for a model. Raises `InputError` where there is none."""
    if subject.tokenizer is not None:
        return load_tokenizer(subject.tokenizer)
    return load_tokenizer(subject.model, revision=commit)


def inputs_of(spec: SurveySpec, subject: Subject, kind: str, model: PreTrainedModel, tokenizer: Any) -> Inputs:
    """The tokens of one kind of input.

    Raises `UnsupportedModelError` for a model that reads no tokens, `InputError` as `build_inputs` and `as_chat` do.
    """
    if model.main_input_name != "input_ids":
        raise UnsupportedModelError(
            f"the model reads {model.main_input_name}, not tokens: give `sinkscope.measure` its inputs"
        )
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=model.config.get_text_config().vocab_size,
        tokens=spec.tokens,
        samples=spec.samples,
        seed=spec.seed,
        text=spec.text if kind in NEEDS_TEXT else None,
        bos=_bos(spec, subject, kind),
    )
    return as_chat(inputs, tokenizer) if kind == "natural" and subject.chat_template else inputs


def fed(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    """The arguments of a forward pass. An encoder-decoder reads the same tokens on both sides.

    `labels` make the model itself put its start token before the decoder's tokens, as in its training.
    """
    return {"input_ids": ids, "labels": ids} if model.config.is_encoder_decoder else {"input_ids": ids}


def _bos(spec: SurveySpec, subject: Subject, kind: str) -> str:
    """A chat template has its own first token, and so has first-token input; nothing is put before those."""
    own = kind == "first-token" or (kind == "natural" and subject.chat_template)
    return "none" if own else spec.bos
