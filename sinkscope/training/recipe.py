"""A training configuration as a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from pydantic import (
    BaseModel,
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

from sinkscope.attention import REGISTERED_BY, AttentionSpec, Document, VisiblePrefix, Window, named, resolve
from sinkscope.data import DataConfig, RandomTokens, vocabulary_size
from sinkscope.errors import InputError
from sinkscope.errors.invalid import ConfigPart, in_one_line, unknown_field
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.config import as_applied, as_data, per_layer
from sinkscope.training.fitting import check_fit, check_sizes
from sinkscope.training.loss import Loss
from sinkscope.training.optimizers import AnyOptimizer, Muon
from sinkscope.training.optimizers.muon import left_to_adamw
from sinkscope.training.schedule import Constant, Schedule

FIELDS_OF_MODEL = [name for name in LabConfig.__annotations__ if name != "use_cache"]
FROM_ELSEWHERE = {
    "attention": "the recipe's own field 'attention'",
    "max_position_embeddings": "the recipe's field 'context'",
    "bos_token_id": "the tokenizer",
    "eos_token_id": "the tokenizer",
    "pad_token_id": "the tokenizer",
}
DEFAULTS = 1  # to be raised when a default of a recipe, of one of its parts or of LabConfig changes
WITHOUT_INFLUENCE = {"name", "micro_batch", "compile", "save_every", "keep", "eval_every", "log_every"}
SAID_BY_FINGERPRINT = {"corpus", "mixture", "tokenizer", "max_characters", "validation_share", "split_seed"}


def without_defaults(part: BaseModel, dumped: Mapping[str, Any]) -> dict[str, Any]:
    """The dumped fields that differ from their defaults, and those that name the part."""
    defaults = _defaults(type(part))
    return {
        name: value
        for name, value in dumped.items()
        if name in ("name", "kind") or getattr(part, name) != defaults[name]
    }


@cache
def _defaults(part: type[BaseModel]) -> Mapping[str, Any]:
    """The default of every field. Shared: do not change it."""
    return {name: field.get_default(call_default_factory=True) for name, field in part.model_fields.items()}


def _name_or_dict(spec: AttentionSpec) -> str | dict[str, Any]:
    catalog_name = named(spec)
    if catalog_name is None:
        return spec.to_dict()
    return catalog_name if len(catalog_name) > 1 else str(catalog_name["name"])


Attention = AttentionSpec | tuple[AttentionSpec, ...]


def _resolved_all(attention: object) -> object:
    """One operation, or those of a list, which the layers take in turn."""
    return tuple(map(resolve, attention)) if isinstance(attention, list | tuple) else resolve(attention)


def _names_or_dicts(attention: Attention) -> Any:
    return list(map(_name_or_dict, attention)) if isinstance(attention, tuple) else _name_or_dict(attention)


def _in_file_names(attention: str | dict[str, Any] | list[Any]) -> str:
    """`softmax_scaled-alpha=0.2`; `custom` for an operation without a name; `custom+softmax` if layers differ."""
    if isinstance(attention, list):
        return "+".join(dict.fromkeys(map(_in_file_names, attention)))
    if isinstance(attention, str):
        return attention
    options = [f"{option}={value}" for option, value in attention.items() if option not in ("name", REGISTERED_BY)]
    return "-".join([attention["name"], *options]) if "name" in attention else "custom"


def _with_name(optimizer: Any) -> Any:
    """AdamW if no optimizer is named."""
    return {"name": "adamw", **optimizer} if isinstance(optimizer, dict) else optimizer


class Recipe(ConfigPart):
    """Everything that decides a training run.

    Wrong values raise `InputError` when the recipe is built, in one line with the field's dotted name and the nearest
    valid choice. `compile` and `micro_batch` change numbers by rounding only, as another machine does, and do not
    change the run's name.

    Attributes:
        steps: updates of the weights.
        batch_size: sequences of `context` tokens per step.
        micro_batch: sequences in memory at once; the whole batch by default.
        context: tokens of a sequence.
        precision: "bf16" keeps fp32 weights and runs under autocast.
        save_every: steps between checkpoints; also `eval_every` and `log_every`. `keep` checkpoints are kept.
        start_from: a lab model to start from instead of random weights: a shipped one, or the folder of a run or of a
            model, of the same sizes and tokenizer; its digest is in the run's fingerprint.
        attention: an `AttentionSpec`, its dict, its catalog name, or `{"name": ..., option: value}`; or a list of
            these, which the layers take in turn.
        model: fields of `LabConfig`, without those that the tokenizer or the recipe decides (ids, context);
            `vocab_size` may pad the vocabulary.
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
    start_from: str | None = None
    attention: Annotated[Attention, BeforeValidator(_resolved_all), PlainSerializer(_names_or_dicts)] = AttentionSpec()
    model: dict[str, Any] = Field(default_factory=dict)
    optimizer: Annotated[AnyOptimizer, BeforeValidator(_with_name)]
    schedule: Schedule = Constant()
    loss: Loss = Loss()
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
        resolved = self._resolved()
        check_fit(resolved.config, self.operations, self.loss, self.data)
        _ = resolved.fitting
        return self

    def lab_config(self, tokenizer: PreTrainedTokenizerBase) -> LabConfig:
        """The model's configuration for a vocabulary. Raises `InputError` if `model.vocab_size` is too small for it."""
        needed = vocabulary_size(tokenizer)
        vocab_size = self.model.get("vocab_size", needed)
        if vocab_size < needed:
            raise InputError(f"'model.vocab_size' = {vocab_size} is less than the tokenizer's {needed} tokens")
        return self._lab_config(
            vocab_size=vocab_size,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

    @property
    def operations(self) -> tuple[AttentionSpec, ...]:
        """The operations that `attention` names, as written: without the masks of data and loss."""
        return self.attention if isinstance(self.attention, tuple) else (self.attention,)

    @property
    def operation(self) -> Attention:
        """The attention operation, or those of a list, with the masks that data and loss ask for."""
        masked = tuple(map(self._masked, self.operations))
        return masked if isinstance(self.attention, tuple) else masked[0]

    @property
    def numbers_documents(self) -> bool:
        """Whether the windows number their documents."""
        return self.data.packing == "intra_document" or bool(self.model.get("restart_positions", False))

    def decisive(self) -> dict[str, Any]:
        """What decides the numbers, resolved and JSON-able: equal for two spellings of one recipe.

        Fields with their default values are left out, so that a new field does not rename every run; whoever changes a
        default must raise `DEFAULTS`.
        """
        values = self.model_dump(mode="json", exclude=WITHOUT_INFLUENCE | {"start_from", "attention", "model"})
        values["data"] = {name: value for name, value in values["data"].items() if name not in SAID_BY_FINGERPRINT}
        for name in type(self).model_fields:
            if isinstance(part := getattr(self, name), BaseModel):
                values[name] = without_defaults(part, values[name])
        resolved = self._resolved()
        config, model = resolved.config, dict(resolved.unusual)
        if "vocab_size" in self.model:
            model["vocab_size"] = config.vocab_size
        operations = per_layer(self.attention, config.num_hidden_layers)
        values |= {
            "defaults": DEFAULTS,
            "compile": False,  # part of every name since it distinguished runs
            "attention": as_data([as_applied(one, True) if config.is_causal else one for one in operations]),
            "model": model,
        }
        corrected = corrections(config, self.optimizer, self.loss, self.data)
        return values | {"corrections": corrected} if corrected else values

    def hash(self, fingerprint: Mapping[str, Any]) -> str:
        """12 hex digits of the sha256 over what decides a run's numbers: the recipe, and the text and tokens it reads.

        The name of the corpus and the versions in the fingerprint are left out: the digests record what they led to.
        """
        digests = {name: value for name, value in fingerprint.items() if name not in ("corpus", "versions")}
        decisive = {"recipe": self.decisive(), "data": digests}
        text = json.dumps(_plain_numbers(decisive), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder: name, attention operation with its options, hash.

        Two spellings of one operation have one name, as they have one hash.
        """
        causal = self.model.get("is_causal", True)
        applied = tuple(as_applied(one, True) if causal else one for one in self.operations)
        named = _names_or_dicts(applied if isinstance(self.attention, tuple) else applied[0])
        return f"{self.name}-{_in_file_names(named)}-{self.hash(fingerprint)}"

    def _masked(self, operation: AttentionSpec) -> AttentionSpec:
        """The operation with the masks that data and loss ask for."""
        mask, by_document = operation.mask, self.data.packing == "intra_document"
        if by_document:
            mask = mask & Document()
        if self.loss.window is not None:
            mask = mask & Window(self.loss.window)
        # Last and by union: a prefix stays visible where a window hides it, in its own document if these are apart.
        if self.loss.prefix:
            prefix = VisiblePrefix(self.loss.prefix)
            mask = mask | (prefix & Document() if by_document else prefix)
        return operation if mask is operation.mask else replace(operation, mask=mask)

    def _resolved(self) -> _Resolved:
        """The model's configuration, shared by recipes that agree on it: do not change it."""
        try:
            key = json.dumps([self.model, self.context], sort_keys=True), *map(self._masked, self.operations)
        except TypeError:  # a value that is not JSON: LabConfig names it
            return _Resolved(self._lab_config())
        if key not in _RESOLVED:
            if len(_RESOLVED) >= MOST_RESOLVED:
                _RESOLVED.clear()
            _RESOLVED[key] = _Resolved(self._lab_config())
        return _RESOLVED[key]

    def _lab_config(self, **from_tokenizer: Any) -> LabConfig:
        decided = {"attention": self.operation, "max_position_embeddings": self.context}
        fields = {**self.model, **from_tokenizer, **decided}
        try:
            return LabConfig(**fields)
        except StrictDataclassError as error:
            raise InputError("model: " + " ".join(str(error).split())) from error


MOST_RESOLVED = 256
_RESOLVED: dict[tuple[Hashable, ...], _Resolved] = {}


@dataclass(frozen=True, eq=False)
class _Resolved:
    """A model's configuration with what is computed from it once. Shared: do not change it."""

    config: LabConfig

    @cached_property
    def fitting(self) -> LabConfig:
        """The configuration, checked to fit its operations. Raises `InputError` if it does not."""
        check_sizes(self.config)
        return self.config

    @cached_property
    def unusual(self) -> Mapping[str, Any]:
        """Its fields that differ from the defaults, without those that other fields of the recipe set."""
        usual = _usual()
        sizes = [name for name in FIELDS_OF_MODEL if name not in FROM_ELSEWHERE and name != "vocab_size"]
        return {name: value for name in sizes if (value := getattr(self.config, name)) != getattr(usual, name)}


@cache
def _usual() -> LabConfig:
    """The model's defaults. Shared: do not change it."""
    return LabConfig()


def corrections(config: LabConfig, optimizer: AnyOptimizer, loss: Loss, data: DataConfig) -> list[str]:
    """Corrections of this package that changed the numbers of a recipe although no field did; none for most recipes.

    They are part of the hash: a run from before a correction is another run, with another name.
    """
    names = []
    if any(isinstance(intervention, RandomTokens) for intervention in data.interventions):
        names.append("random tokens are labels too, and others in validation")
    if loss.prefix and data.packing == "intra_document":
        names.append("a prefix is seen in its own document alone")
    if isinstance(optimizer, Muon):
        with torch.device("meta"):
            tables = left_to_adamw(LabForCausalLM(config))
        if any(parameter.ndim == 2 for parameter in tables):
            names.append("Muon takes matrices that map activations alone")
    return names


def _plain_numbers(value: Any) -> Any:
    """Whole floats as integers, so that 10000 and 10000.0 are one value."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: item if type(item) is str else _plain_numbers(item) for key, item in value.items()}
    return [_plain_numbers(item) for item in value] if isinstance(value, list | tuple) else value
