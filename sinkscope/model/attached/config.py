"""The configuration of an attached model, and its form in files.

While an operation is attached, the model's configuration is of a class of its own, derived from the host's: it behaves
as the host's in everything, but what it writes is an `AttachedConfig`. So every way of saving writes a folder whose
configuration, without sinkscope, no class of transformers reads: the Auto classes do not know its `model_type`, and the
host's own classes expect a number where a sentence says what the model needs. (An `attn_implementation` of a name that
does not exist would not be enough: one that is given with the call takes its place.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, PreTrainedConfig

from sinkscope.attention import AttentionSpec
from sinkscope.errors import InputError
from sinkscope.hooks import IMPLEMENTATION
from sinkscope.model.attached.shift import Shift
from sinkscope.model.attached.tokens import IMAGES

NAME = IMPLEMENTATION  # model type in files, and attention implementation
WARNING = "needs_sinkscope"  # attention implementation in files, which never exists
VERSION = 4  # of the file format; version 1 has no layers or tokens
MARKED = (3, 4)  # the versions from which on the weights have their first and their second mark (`mark`)
SIZE = "hidden_size"  # a whole number of every host's configuration, under a name of its own in some
NEEDS = "unknown to transformers: this model has an attention operation attached, load it with sinkscope"


@dataclass(frozen=True)
class Attachment:
    """What is attached to a model.

    `spec`: the operation as it started, and `name` the catalog name it was asked for by; `layers`: the attention layers
    that have it, counted from 0, None for all; `sink_tokens`: learned tokens in front of every sequence;
    `implementation`: how layers attended before; `changes`: what changes the model from the start (nothing: it starts
    closed, open or at zero); `shift`: how far the outputs moved when it was attached, None for a model that was loaded
    with it.
    """

    name: str
    spec: AttentionSpec
    implementation: str
    changes: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    sink_tokens: int = 0
    shift: Shift | None = None

    def __str__(self) -> str:
        where = "" if self.layers is None else f" in layers {', '.join(map(str, self.layers))}"
        effect = f"from the start changed by {', '.join(self.changes)}" if self.changes else "unchanged at the start"
        return f"{self.name} attention{where}, {effect}" + ("" if self.shift is None else f" ({self.shift})")


class AttachedTo:
    """What a host's configuration class gains while an operation is attached."""

    attachment: ClassVar[Attachment]

    def to_dict(self) -> dict[str, Any]:
        """The form of an `AttachedConfig`, also where this configuration is part of another one.

        The host's fields lack their `model_type`, since transformers uses any that it finds inside.
        """
        fields = super().to_dict()  # type: ignore[misc]
        layers, tokens = self.attachment.layers, self.attachment.sink_tokens
        return {
            "model_type": NAME,
            "attn_implementation": WARNING,
            **dict.fromkeys((SIZE, self.attribute_map.get(SIZE, SIZE)), NEEDS),  # type: ignore[attr-defined]
            "version": VERSION,
            "name": self.attachment.name,
            "attention": self.attachment.spec.to_dict(),
            **({} if layers is None else {"layers": list(layers)}),
            **({"tokens": tokens} if tokens else {}),
            "host": {"family": fields.pop("model_type"), "fields": fields},
        }


@no_type_check  # checkers of annotations wrap a dataclass by its fields, but transformers passes further ones
@strict
class AttachedConfig(PreTrainedConfig):
    """A saved model with an attached operation: the operation's dict, and the host's family and fields.

    Raises `InputError` for a file of a newer version and for one that says less.
    """

    model_type = NAME

    version: int = VERSION
    name: str = "custom"
    attention: dict[str, Any] | None = None
    layers: list[int] | None = None
    tokens: int = 0
    host: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_implementation(kwargs.pop("attn_implementation", None))
        kwargs = {name: value for name, value in kwargs.items() if value != NEEDS}
        if self.version > VERSION:
            raise InputError(
                f"this model was saved in version {self.version} of attached models, newer than {VERSION}: "
                "update sinkscope to load it"
            )
        super().__post_init__(**kwargs)

    @property
    def marks(self) -> int:
        """How many marks the weights in the same folder have."""
        return sum(self.version >= first for first in MARKED)

    @property
    def spec(self) -> AttentionSpec:
        """The attached operation."""
        return AttentionSpec.from_dict(_present(self.attention, "attention"))

    @property
    def chosen(self) -> tuple[int, ...] | None:
        """The numbers of the layers that have it; None for all."""
        return None if self.layers is None else tuple(self.layers)

    def host_config(self) -> PreTrainedConfig:
        """A new configuration of the host."""
        host = _present(self.host, "host")
        family = host.get("family")
        if family not in CONFIG_MAPPING:
            raise InputError(f"an attached model's host is of family '{family}', which this transformers does not have")
        return CONFIG_MAPPING[family].from_dict(dict(_present(host.get("fields"), "fields")))


def attachment_of(config: PreTrainedConfig) -> Attachment | None:
    """What is attached to the model of this configuration."""
    return config.attachment if isinstance(config, AttachedTo) else None


def become_attached(config: PreTrainedConfig, attachment: Attachment) -> None:
    """Give a configuration its class for as long as this is attached; in place, since all modules share the object."""
    host = type(config)
    names: dict[str, Any] = {"attachment": attachment, "__module__": host.__module__}
    if attachment.sink_tokens and config.model_type not in IMAGES:
        names["sink_tokens"] = attachment.sink_tokens  # where measurements look, as for lab models
    object.__setattr__(config, "__class__", type(f"Attached{host.__name__}", (AttachedTo, host), names))


def note(config: PreTrainedConfig, attachment: Attachment) -> Attachment:
    """Update the description of what is attached, and return it."""
    type(config).attachment = attachment
    return attachment


def become_host(config: PreTrainedConfig) -> None:
    """Give a configuration its host's class back."""
    object.__setattr__(config, "__class__", type(config).__bases__[1])


def check_implementation(name: str | None) -> None:
    """Raises `InputError` if an attached model is asked for another attention implementation."""
    if name not in (None, NAME, WARNING):
        raise InputError(f"an attached model attends by its operation: leave the attention implementation '{name}' out")


def _present(value: dict[str, Any] | None, name: str) -> dict[str, Any]:
    if value is None:
        raise InputError(f"the configuration of an attached model lacks '{name}'")
    return value
