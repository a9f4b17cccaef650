"""Which parameters of a model learn."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from sinkscope.attention import Operation
from sinkscope.errors import InputError, unknown
from sinkscope.model.attached.config import attachment_of
from sinkscope.model.attached.tokens import learned_tokens

Part = Literal["operation", "everything"]


def trainable_only(model: nn.Module, part: str = "operation") -> dict[str, nn.Parameter]:
    """Let only the attention operations of a model learn; `"everything"` lets all parameters learn again.

    For attached models, with the sink tokens that were attached, and for lab models. Returns the parameters that learn,
    by name. Raises `InputError` where the model has no operation, or one that learns nothing.
    """
    if part not in get_args(Part):
        raise unknown("part of a model", str(part), get_args(Part))
    parameters = dict(model.named_parameters())
    chosen = parameters if part == "everything" else _of_operations(model, parameters)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    return chosen


def _of_operations(model: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    config = getattr(model, "config", None)
    attached = set(learned_tokens(model)) if config is not None and attachment_of(config) is not None else set()
    paths = [path for path, module in model.named_modules() if isinstance(module, Operation) or module in attached]
    if not paths:
        raise InputError("no attention operation is attached to this model: attach one first")
    chosen = {
        name: parameter for name, parameter in parameters.items() if any(name.startswith(f"{path}.") for path in paths)
    }
    if not chosen:
        raise InputError("the attention operation of this model learns nothing, so nothing would be trained")
    return chosen
