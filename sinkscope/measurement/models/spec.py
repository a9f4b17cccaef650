"""What to measure: models, inputs and settings, validated before anything heavy is imported."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator

from sinkscope.errors import InputError
from sinkscope.errors.invalid import ConfigPart, in_one_line
from sinkscope.files import read_fields
from sinkscope.names import Media, media_folder

InputKind = Literal["natural", "random", "repeated", "first-token", "images", "audio"]
AUTO = "auto"  # a corpus that follows from the model, `data.corpus_of`
READ_BY = dict.fromkeys(("text", "field", "corpus", "split"), ("natural", "first-token")) | {"windows": ("natural",)}
DeviceMap = str | dict[str, str | int]


class SurveyEntry(ConfigPart):
    """One model, or every checkpoint of a training run.

    `model`: a hub id, folder or shipped name, at `revision`, or a saved measurement. `checkpoints`: a run's folder; its
    rows are points of one curve. `curve` and `step` make any other model a point of a curve, such as a hub revision
    `step1000`. Models with the same `pair` are compared on the page. `chat_template` puts natural text into a user's
    turn; None does so if the model has a template. `label`: the name in tables and figures; default: the model's name.
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
    def _names_one_thing(self) -> SurveyEntry:
        if (self.model is None) == (self.checkpoints is None):
            raise InputError("an entry of 'models' names either a model or checkpoints (a run's folder)")
        if self.checkpoints is not None and (self.revision or self.pair or self.curve or self.step is not None):
            raise InputError(f"only label and chat_template go with 'checkpoints: {self.checkpoints}'")
        if (self.curve is None) != (self.step is None):
            raise InputError(f"model '{self.model}': 'curve' and 'step' go together")
        return self


class SurveySpec(ConfigPart):
    """Every model on every input, with the options of `sinkscope measure`.

    A bare name in `models` is `{model: name}`. `images` and `audio`, folders of files, take the place of `inputs`.
    `observers` are those of `measure`, by name. Wrong values raise `InputError` in one line when the spec is built,
    with the field's dotted name and the nearest valid choice.
    """

    models: tuple[SurveyEntry, ...] = Field(min_length=1)
    inputs: tuple[InputKind, ...] = Field(default=("natural",), min_length=1)
    tokens: PositiveInt = 64
    samples: PositiveInt = 100
    epsilon: float = Field(default=0.3, gt=0, lt=1)
    seed: NonNegativeInt = 0
    text: Path | None = None
    field: str | None = Field(default=None, min_length=1)
    corpus: str = AUTO
    split: Literal["validation", "all"] = "validation"
    windows: Literal["within", "starts", "packed"] = "within"
    images: Path | None = None
    audio: Path | None = None
    prompt: str | None = None
    bos: Literal["auto", "add", "double", "none"] = "auto"
    observers: tuple[str, ...] = Field(default=("few",), min_length=1)
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
    def _entries_of_names(cls, models: Any) -> Any:
        if not isinstance(models, list | tuple):
            return models
        return [{"model": entry} if isinstance(entry, str) else entry for entry in models]

    @field_validator("inputs", "observers", mode="before")
    @classmethod
    def _list_of_one(cls, names: Any) -> Any:
        return [names] if isinstance(names, str) else names

    @model_validator(mode="before")
    @classmethod
    def _media_replace_inputs(cls, fields: Any) -> Any:
        """Images or recordings are the only input of their survey."""
        media = [kind for kind in ("images", "audio") if isinstance(fields, dict) and fields.get(kind) is not None]
        if len(media) == 2:
            raise InputError("survey fields 'images' and 'audio' exclude each other: measure one after the other")
        if media and fields.setdefault("inputs", tuple(media)) not in (tuple(media), list(media), media[0]):
            raise InputError(f"survey field '{media[0]}' takes the place of 'inputs': leave 'inputs' out")
        return fields

    @property
    def media(self) -> tuple[Media, Path] | None:
        """What is read instead of tokens, and its folder."""
        return media_folder(self.images, self.audio)

    @model_validator(mode="after")
    def _fields_agree(self) -> SurveySpec:
        if self.media is None and {"images", "audio"} & {*self.inputs}:
            raise InputError("survey field 'inputs': images and audio are given as folders, 'images: DIR'")
        if self.prompt is not None and self.images is None and self.audio is None:
            raise InputError("survey field 'prompt' goes with 'images' or 'audio': it accompanies each file")
        given = {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default}
        for name, kinds in READ_BY.items():
            if name in given and not {*kinds} & {*self.inputs}:
                raise InputError(f"{name} goes with {' and '.join(kinds)} input, which this survey does not have")
        if self.media is not None and "bos" in given:
            raise InputError(f"survey field 'bos' goes with text, and '{self.media[0]}' takes its place")
        if self.text is not None and self.split != "validation":
            raise InputError(f"survey field 'split' = {self.split} goes with a corpus: a text is read as a whole")
        repeated = [kind for kind, count in Counter(self.inputs).items() if count > 1]
        if repeated:
            raise InputError(f"survey field 'inputs' holds {repeated[0]} twice")
        if "natural" not in self.inputs and any(entry.chat_template for entry in self.models):
            raise InputError("chat_template goes with natural input, which this survey does not have")
        if self.device is not None and self.device_map is not None:
            raise InputError("survey fields 'device' and 'device_map' exclude each other")
        if self.corpus != AUTO:
            from sinkscope.data import parse_corpus  # imports torch: last, when every field is known to be right

            parse_corpus(self.corpus)
        return self


def load_survey(path: str | Path, **changes: Any) -> SurveySpec:
    """The survey in a YAML (or JSON) file, with fields replaced by `changes`. Raises `InputError` in one line."""
    return SurveySpec(**{**read_fields(Path(path), "survey"), **changes})
