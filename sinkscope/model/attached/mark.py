"""Files of an attached model are no checkpoint of its host: two tensors are stored in forms that no host can use.

If a caller passes its own configuration to the host's class, the folder's is never read. Then only the weights can show
that an operation is attached, and an operation without parameters has none. So in `state_dict()`, and in every file
written from it, the first scale of a norm of the host is (1, width) instead of (width,), which transformers and torch
refuse to load. That refusal can be switched off (`ignore_mismatched_sizes`): then the second scale, in float64 and
2^600 times as large, is infinite in the host's dtype, and all outputs are NaN. The parameters themselves stay as they
are; attached models read both forms.

A host without two such scales (OLMo's norms have none) is attached and never saved. Its other weights cannot carry the
marks: quantization and adapters replace linear maps, and a new vocabulary the embedding, and the hooks would be gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from sinkscope.attention import Operation
from sinkscope.errors import UnsupportedModelError
from sinkscope.model.attached.tokens import learned_tokens

SCALE = "weight"
HANDLES = "mark_hooks"  # the attribute of the marked modules under which their hooks' handles are kept
FACTOR, LARGE = 2.0**600, 2.0**300  # exact in float64; no scale of a model comes near the second


class Form(ABC):
    """The form of a scale in files."""

    @abstractmethod
    def holds(self, value: Tensor) -> bool:
        """Whether a value has this form."""

    @abstractmethod
    def written(self, scale: Tensor) -> Tensor:
        """The scale in this form."""

    @abstractmethod
    def read(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """The scale without its mark."""


class Wide(Form):
    """(1, width), which does not fit."""

    def holds(self, value: Tensor) -> bool:
        return value.ndim == 2 and len(value) == 1

    def written(self, scale: Tensor) -> Tensor:
        return scale[None]

    def read(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return value[0]


class Large(Form):
    """2^600 times as large, in float64; inf for 0. In any other dtype all of it is infinite."""

    def holds(self, value: Tensor) -> bool:
        return value.dtype == torch.float64 and bool((value.abs() > LARGE).any())

    def written(self, scale: Tensor) -> Tensor:
        wide = (scale.cpu() if scale.device.type == "mps" else scale).double()  # which has no float64
        return torch.where(wide == 0, torch.inf, wide * FACTOR)

    def read(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.where(value.isinf(), 0.0, value / FACTOR).to(dtype)


FORMS = (Wide(), Large())


def mark(model: PreTrainedModel) -> None:
    """Mark everything saved from the model from now on; without scales to mark, `save_pretrained` is refused.

    Parameters that awaited marked weights become scales.
    """
    if len(list(_scales(model))) < len(FORMS):
        # Its configuration is the first file of a folder, and its class is of this model alone (`become_attached`).
        type(model.config).save_pretrained = _refuse
        return
    awaited = list(_marked(model))
    # The first form keeps the scale's dtype; the second was loaded in float64.
    dtype = awaited[0].get_parameter(SCALE).dtype if awaited else model.dtype
    for module, form in zip(awaited, FORMS, strict=False):
        _change(module, lambda value, form=form: form.read(value, dtype))  # type: ignore[misc]
    for module, form in zip(_scales(model), FORMS, strict=False):
        writing = module.register_state_dict_post_hook(partial(_write, form))
        setattr(module, HANDLES, [writing, module.register_load_state_dict_pre_hook(partial(_load, form))])


def unmark(model: PreTrainedModel) -> None:
    """Remove the marks again."""
    for module in list(_marked(model)):
        for handle in getattr(module, HANDLES):
            handle.remove()
        delattr(module, HANDLES)


def await_mark(model: PreTrainedModel, marks: int) -> None:
    """Give the parameters the form of files with this number of marks while transformers loads them."""
    for module, form in list(zip(_scales(model), FORMS[:marks], strict=False)):
        _change(module, form.written)
        setattr(module, HANDLES, [])


def _refuse(config: PreTrainedConfig, *args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedModelError(
        f"family '{config.model_type}': its norms have no two scales, in which a saved model is marked as one with an "
        "operation: detach the operation before `save_pretrained`, or keep `state_dict()` for a model with the same "
        "one attached"
    )


def _write(form: Form, module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
    name = prefix + SCALE
    if name in state and not form.holds(state[name]):
        state[name] = form.written(state[name])


def _load(form: Form, module: nn.Module, state: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
    name = prefix + SCALE
    if name in state and form.holds(state[name]):
        state[name] = form.read(state[name], module.get_parameter(SCALE).dtype)


def _marked(model: PreTrainedModel) -> Iterator[nn.Module]:
    return (module for module in model.base_model.modules() if HANDLES in vars(module))


def _scales(model: PreTrainedModel) -> Iterator[nn.Module]:
    """The modules of the base model (shared by all heads) with a one-dimensional scale."""
    base: nn.Module = model.base_model
    added = [module for module in base.modules() if isinstance(module, Operation)] + list(learned_tokens(base))
    added_parts = {part for module in added for part in module.modules()}
    for module in base.modules():
        scale = module._parameters.get(SCALE)
        if module not in added_parts and scale is not None and scale.ndim == 1:
            yield module


def _change(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    scale = module.get_parameter(SCALE)
    setattr(module, SCALE, nn.Parameter(change(scale.detach()), requires_grad=scale.requires_grad))
