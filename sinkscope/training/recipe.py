"""A training configuration as a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from huggingface_hub.errors import StrictDataclassError
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    ValidationError,
    model_validator,
)
from transformers import PreTrainedTokenizerBase

from sinkscope.attention import AttentionSpec, name_of, resolve
from sinkscope.data import DataConfig
from sinkscope.errors import InputError
from sinkscope.model import LabConfig
from sinkscope.training.invalid import in_one_line, unknown_field
from sinkscope.training.optimizer import AdamW
from sinkscope.training.parts import Part
from sinkscope.training.schedule import Constant, Schedule

FIELDS_OF_MODEL = [name for name in LabConfig.__annotations__ if name != "use_cache"]
FROM_ELSEWHERE = {
    "attention": "the recipe's own field 'attention'",
    "max_position_embeddings": "the recipe's field 'context'",
    "bos_token_id": "the tokenizer",
    "eos_token_id": "the tokenizer",
    "pad_token_id": "the tokenizer",
}
WITHOUT_INFLUENCE = {"name", "micro_batch", "save_every", "keep", "eval_every", "log_every"}
SAID_BY_FINGERPRINT = {"corpus", "tokenizer", "max_characters", "validation_share", "split_seed"}


def _name_or_dict(spec: AttentionSpec) -> str | dict[str, Any]:
    name = name_of(spec)
    return spec.to_dict() if name == "custom" else name


class Recipe(Part):
    """Everything that decides a training run, and how often it saves (`save_every`), evaluates and logs, in steps.

    `batch_size` counts sequences of `context` tokens per step; `micro_batch` of them, if given, are in memory at once.
    `attention` is an `AttentionSpec`, its dict or its catalogue name. `model` holds fields of `LabConfig`; what the
    tokenizer or the recipe decides (ids, context) is not repeated there, but `vocab_size` may pad the vocabulary.
    `precision` "bf16" keeps fp32 weights and runs under autocast. Wrong values raise `InputError` when the recipe
    is built, in one line with the field's dotted name and the nearest valid choice.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    steps: PositiveInt
    batch_size: PositiveInt
    micro_batch: PositiveInt | None = None
    context: int = Field(ge=2)
    seed: NonNegativeInt = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    save_every: PositiveInt = 200
    keep: int = Field(default=2, ge=2)  # checkpoints; more of them make a curve that a survey can draw
    eval_every: PositiveInt = 50
    log_every: PositiveInt = 10
    validation_windows: PositiveInt = 64
    attention: Annotated[AttentionSpec, BeforeValidator(resolve), PlainSerializer(_name_or_dict)] = AttentionSpec()
    model: dict[str, Any] = Field(default_factory=dict)
    optimizer: AdamW
    schedule: Schedule = Constant()
    data: DataConfig = DataConfig()

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise in_one_line(error, Recipe) from error

    @model_validator(mode="after")
    def _check_model(self) -> Recipe:
        for field in self.model:
            if field in FROM_ELSEWHERE:
                raise InputError(f"recipe field 'model.{field}' is set by {FROM_ELSEWHERE[field]}: leave it out")
            if field not in FIELDS_OF_MODEL:
                raise unknown_field(f"model.{field}", FIELDS_OF_MODEL)
        if self.micro_batch is not None and self.batch_size % self.micro_batch:
            raise InputError(
                f"recipe field 'micro_batch' = {self.micro_batch} does not divide batch_size = {self.batch_size}"
            )
        self._lab_config()
        return self

    def lab_config(self, tokenizer: PreTrainedTokenizerBase) -> LabConfig:
        """The model's configuration for a vocabulary. Raises `InputError` if `model.vocab_size` is too small for it."""
        vocab_size = self.model.get("vocab_size", len(tokenizer))
        if vocab_size < len(tokenizer):
            raise InputError(f"'model.vocab_size' = {vocab_size} is less than the tokenizer's {len(tokenizer)} tokens")
        return self._lab_config(
            vocab_size=vocab_size,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

    def decisive(self) -> dict[str, Any]:
        """What decides the numbers, resolved and JSON-able: equal for two spellings of one meaning."""
        values = self.model_dump(mode="json", exclude=WITHOUT_INFLUENCE)
        values["data"] = {name: value for name, value in values["data"].items() if name not in SAID_BY_FINGERPRINT}
        config = self._lab_config()
        sizes = [name for name in FIELDS_OF_MODEL if name not in FROM_ELSEWHERE]
        model = {name: getattr(config, name) for name in sizes if name != "vocab_size" or "vocab_size" in self.model}
        return values | {"attention": self.attention.to_dict(), "model": model}

    def hash(self, fingerprint: Mapping[str, Any]) -> str:
        """12 hex digits of the sha256 over what decides a run's numbers: the recipe, and the text and tokens it reads.

        Of the fingerprint the name of the corpus and the versions are left out: the digests say what they led to.
        """
        digests = {name: value for name, value in fingerprint.items() if name not in ("corpus", "versions")}
        decisive = {"recipe": self.decisive(), "data": digests}
        text = json.dumps(_plain_numbers(decisive), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder: name, attention operation, hash."""
        return f"{self.name}-{name_of(self.attention)}-{self.hash(fingerprint)}"

    def _lab_config(self, **given: Any) -> LabConfig:
        fields = {**self.model, **given, "attention": self.attention, "max_position_embeddings": self.context}
        try:
            return LabConfig(**fields)
        except StrictDataclassError as error:
            raise InputError("model: " + " ".join(str(error).split())) from error


def _plain_numbers(value: Any) -> Any:
    """Whole floats as integers, so that 10000 and 10000.0 are one value."""
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
