"""Loading attached models through transformers' Auto classes, to the host's own class with its operation."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from sinkscope.errors import InputError
from sinkscope.model.attached import layer
from sinkscope.model.attached.attaching import install
from sinkscope.model.attached.config import NAME, AttachedConfig, check_implementation
from sinkscope.model.attached.mark import await_mark, mark

AUTOS: tuple[Any, ...] = (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
    AutoModelForImageClassification,
)


class _AttachedModel(PreTrainedModel):
    """The class that the Auto classes find for an `AttachedConfig`. It builds models of the host's class."""

    config_class = AttachedConfig
    auto: ClassVar[Any]

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, config: Any = None, **kwargs: Any) -> PreTrainedModel:
        """The host's model with its operation, from a folder or hub id."""
        if not isinstance(config, AttachedConfig):
            config = AttachedConfig.from_pretrained(name)
        check_implementation(kwargs.pop("attn_implementation", None))
        host = cls._host(config)
        attaching = _attaching(host, config, marks=config.marks)
        model = attaching.from_pretrained(name, *args, config=config.host_config(), **kwargs)
        if isinstance(model, tuple):  # with output_loading_info=True
            return (_as_host(model[0]), *model[1:])
        return _as_host(model)

    @classmethod
    def _from_config(cls, config: AttachedConfig, **kwargs: Any) -> PreTrainedModel:
        """A new model with random weights."""
        return _as_host(_attaching(cls._host(config), config)._from_config(config.host_config(), **kwargs))

    @classmethod
    def _host(cls, config: AttachedConfig) -> type[PreTrainedModel]:
        inner = config.host_config()
        host = cls.auto._model_mapping.get(type(inner), None)
        if host is None:
            raise InputError(f"family '{inner.model_type}' has no {cls.auto.__name__}")
        return host[0] if isinstance(host, tuple) else host


def register() -> None:
    """Make attached models known to the Auto classes, and their attention function to the attention interface."""
    layer.register()
    AutoConfig.register(NAME, AttachedConfig, exist_ok=True)
    for auto in AUTOS:
        name = auto.__name__.replace("Auto", "Attached", 1)
        auto.register(AttachedConfig, type(name, (_AttachedModel,), {"auto": auto}), exist_ok=True)


def host_of(config: Any) -> Any:
    """The configuration by which a model's class is chosen: the host's, for an attached model."""
    return config.host_config() if isinstance(config, AttachedConfig) else config


def _attaching(host: type[PreTrainedModel], attached: AttachedConfig, marks: int = 0) -> type[PreTrainedModel]:
    """The host's class with the operation attached before weights with this number of marks are loaded.

    It has the host's full name, by which transformers stores facts about a class.
    """

    def build(self: PreTrainedModel, config: Any, *args: Any, **kwargs: Any) -> None:
        host.__init__(self, config, *args, **kwargs)
        install(self, attached.spec, attached.name, chosen=attached.chosen, sink_tokens=attached.tokens)
        await_mark(self, marks)

    names = {"__init__": build, "__module__": host.__module__, "__qualname__": host.__qualname__}
    return type(host.__name__, (host,), names)


def _as_host(model: PreTrainedModel) -> PreTrainedModel:
    model.__class__ = type(model).__bases__[0]
    mark(model)
    return model
