"""A saved attached model is no checkpoint of its host: one host tensor has a shape there that no host expects.

Whoever hands a configuration of their own to the host's class never opens the folder's. Then only the weights can tell,
and an operation without parameters leaves none. So in `state_dict()`, and with it in every file, the first scale of the
host (of a norm) is (1, width) in the place of (width,), which transformers and torch refuse to load. The parameter
itself stays as it is; attached models read both shapes.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.attention import Operation
from sinkscope.model.attached.tokens import learned_tokens

SCALE = "weight"
HANDLES = "mark_hooks"  # the attribute of the marked module under which its hooks' handles are kept


def mark(model: PreTrainedModel) -> None:
    """From now on, what is written of the model is marked. A parameter that awaited marked weights gets its shape."""
    module = _awaiting(model)
    if module is None:
        module = _first_scale(model)
    else:
        _reshape(module, lambda scale: scale.flatten())
    handles = [module.register_state_dict_post_hook(_widen), module.register_load_state_dict_pre_hook(_narrow)]
    setattr(module, HANDLES, handles)


def unmark(model: PreTrainedModel) -> None:
    """Take the mark off again."""
    module = _awaiting(model)
    assert module is not None, "marked models alone are unmarked"
    for handle in getattr(module, HANDLES):
        handle.remove()
    delattr(module, HANDLES)


def await_mark(model: PreTrainedModel) -> None:
    """Make the parameter of the shape that it has in files, for as long as transformers loads them."""
    module = _first_scale(model)
    _reshape(module, lambda scale: scale[None])
    setattr(module, HANDLES, [])


def _awaiting(model: PreTrainedModel) -> nn.Module | None:
    return next((module for module in model.base_model.modules() if HANDLES in vars(module)), None)


def _first_scale(model: PreTrainedModel) -> nn.Module:
    """The first module of the base model, which every head has, with a scale of one dimension."""
    base: nn.Module = model.base_model
    added = [module for module in base.modules() if isinstance(module, Operation)] + list(learned_tokens(base))
    own = {part for module in added for part in module.modules()}
    named = ((module, module._parameters.get(SCALE)) for module in base.modules() if module not in own)
    return next(module for module, scale in named if scale is not None and scale.ndim == 1)


def _reshape(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    scale = module.get_parameter(SCALE)
    setattr(module, SCALE, nn.Parameter(change(scale.detach()), requires_grad=scale.requires_grad))


def _widen(module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
    name = prefix + SCALE
    if name in state and state[name].ndim == 1:
        state[name] = state[name][None]


def _narrow(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
    name = prefix + SCALE
    if name in state and state[name].ndim == 2 and len(state[name]) == 1:
        state[name] = state[name][0]
