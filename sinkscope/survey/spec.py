"""What a survey measures: models, inputs and settings, as a validated value."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator

from sinkscope.data import parse_corpus
from sinkscope.errors import InputError
from sinkscope.files import read_fields
from sinkscope.invalid import Part, in_one_line

InputKind = Literal["natural", "random", "repeated", "first-token", "images", "audio"]
MediaKind = Literal["images", "audio"]
AUTO = "auto"  # a corpus that follows from the model, `data.corpus_of`
DeviceMap = str | dict[str, str | int]


class Entry(Part):
    """A line of a survey: one model, or every checkpoint of a training run.

    `model`: hub id, folder or shipped name, at `revision`. `checkpoints`: a run's folder; its rows are points of one
    curve. `curve` and `step` make a point of a curve of a model too, such as a hub revision `step1000`. Models with
    the same `pair` are set side by side. `chat_template` puts natural text into a user's turn; None: if the model has a
    template. `label`: how tables and figures call it; the model's name unless given.
    """

    model: str | None = Field(default=None, min_length=1)
    checkpoints: str | None = Field(default=None, min_length=1)
    label: str | None = Field(default=None, min_length=1)
    revision: str | None = Field(default=None, min_length=1)
    pair: str | None = Field(default=None, min_length=1)
    chat_template: bool | None = None
    curve: str | None = Field(default=None, min_length=1)
    step: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> Entry:
        if (self.model is None) == (self.checkpoints is None):
            raise InputError("an entry of 'models' names either a model or checkpoints (a run's folder)")
        if self.checkpoints is not None and (self.revision or self.pair or self.curve or self.step is not None):
            raise InputError(f"only label and chat_template go with 'checkpoints: {self.checkpoints}'")
        if (self.curve is None) != (self.step is None):
            raise InputError(f"model '{self.model}': 'curve' and 'step' go together")
        return self


class SurveySpec(Part):
    """A survey: every model on every input, with the options of `sinkscope measure`.

    A model may be given by just its name. `images` and `audio`, folders of files, take the place of `inputs`. Wrong
    values raise `InputError` in one line when the spec is built, with the field's dotted name and the nearest valid
    choice.
    """

    models: tuple[Entry, ...] = Field(min_length=1)
    inputs: tuple[InputKind, ...] = Field(default=("natural",), min_length=1)
    tokens: PositiveInt = 64
    samples: PositiveInt = 100
    epsilon: float = Field(default=0.3, gt=0, lt=1)
    seed: NonNegativeInt = 0
    text: Path | None = None
    field: str | None = Field(default=None, min_length=1)
    corpus: str = AUTO
    split: Literal["validation", "all"] = "validation"
    images: Path | None = None
    audio: Path | None = None
    prompt: str | None = None
    bos: Literal["auto", "add", "double", "none"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    device: str | None = None
    device_map: DeviceMap | None = None
    trust_remote_code: bool = False
    attn: Literal["sdpa", "eager", "flash_attention_2"] | None = None
    batch_size: PositiveInt = 8

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise in_one_line(error, SurveySpec, "survey") from error

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, models: Any) -> Any:
        """A bare name stands for `{model: name}`."""
        if not isinstance(models, list | tuple):
            return models
        return [{"model": entry} if isinstance(entry, str) else entry for entry in models]

    @field_validator("inputs", mode="before")
    @classmethod
    def _one_input(cls, inputs: Any) -> Any:
        return [inputs] if isinstance(inputs, str) else inputs

    @model_validator(mode="before")
    @classmethod
    def _media_alone(cls, fields: Any) -> Any:
        """Images or recordings are the one input of their survey."""
        given = [kind for kind in ("images", "audio") if isinstance(fields, dict) and fields.get(kind) is not None]
        if len(given) == 2:
            raise InputError("survey fields 'images' and 'audio' exclude each other: measure one after the other")
        if given and fields.setdefault("inputs", tuple(given)) not in (tuple(given), list(given), given[0]):
            raise InputError(f"survey field '{given[0]}' takes the place of 'inputs', which goes without it")
        return fields

    @property
    def media(self) -> tuple[MediaKind, Path] | None:
        """What is read in the place of tokens, and the folder it lies in."""
        if self.images is not None:
            return "images", self.images
        return None if self.audio is None else ("audio", self.audio)

    @model_validator(mode="after")
    def _meaningful(self) -> SurveySpec:
        if self.corpus != AUTO:
            parse_corpus(self.corpus)
        if self.media is None and {"images", "audio"} & {*self.inputs}:
            raise InputError("survey field 'inputs': images and audio are given as folders, 'images: DIR'")
        if self.prompt is not None and self.images is None and self.audio is None:
            raise InputError("survey field 'prompt' goes with 'images' or 'audio': it is what stands beside each file")
        reads_text = bool({"natural", "first-token"} & {*self.inputs})
        for name in ("text", "field"):
            if getattr(self, name) is not None and not reads_text:
                raise InputError(f"{name} goes with natural and first-token input, which this survey does not have")
        if self.text is not None and self.split != "validation":
            raise InputError(f"survey field 'split' = {self.split} goes with a corpus: a text is read as a whole")
        twice = [kind for kind, count in Counter(self.inputs).items() if count > 1]
        if twice:
            raise InputError(f"survey field 'inputs' holds {twice[0]} twice")
        if "natural" not in self.inputs and any(entry.chat_template for entry in self.models):
            raise InputError("chat_template goes with natural input, which this survey does not have")
        if self.device is not None and self.device_map is not None:
            raise InputError("survey fields 'device' and 'device_map' exclude each other")
        return self


def load_spec(path: str | Path, **changes: Any) -> SurveySpec:
    """A survey from a YAML (or JSON) file, with fields replaced by `changes`. Raises `InputError` in one line."""
    return SurveySpec(**{**read_fields(Path(path), "survey"), **changes})
