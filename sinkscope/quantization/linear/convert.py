"""Linear maps with real integer weights, by torchao."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Grid
from sinkscope.hooks import unwrapped
from sinkscope.quantization.linear.maps import HEAD, linear_maps

INT8 = Grid(8, "token", symmetric=True)


def converted(
    model: nn.Module, weights: Grid, activations: Grid | None = None, *, skip: Sequence[str] = (HEAD,)
) -> nn.Module:
    """A copy of the model whose linear maps hold torchao's integer weights; `model` stays unchanged.

    What `QuantizeLinear(weights, activations, skip=skip)` simulates, with torchao's kernels and rounding. `weights` of
    8 symmetric bits over "token" with `activations` of 8 symmetric bits over "token" or "tensor" multiply in int8
    (scales are computed in each call; nothing is protected). Any grid of 2 to 8 bits over "token", with or without
    groups, and without activations, is unpacked to floats at each use, and below 8 bits stored one number per byte, so
    it is no smaller than 8 bits. torchao's asymmetric ranges always contain 0, and the symmetric ranges of its Intx
    weights (all but 8 bits without groups) have steps of max |w| / (2^(bits−1) − ½).

    Needs the extra `quantize`. Raises `InputError` for other grids and without torchao, `UnsupportedModelError` for
    maps that are not `nn.Linear` (GPT-2's Conv1D, stacked experts): name them in `skip`.
    """
    configuration = _configuration(weights, activations)
    for path, one in linear_maps(model, skip).items():
        if not isinstance(one.module, nn.Linear) or one.stacked or parametrize.is_parametrized(one.module):
            raise UnsupportedModelError(
                f"'{path}' ({type(one.module).__name__}) is not an nn.Linear with its own weight, the only "
                "module that torchao converts; name it in skip, or simulate it (QuantizeLinear)"
            )
    made = copy.deepcopy(unwrapped(model))
    chosen = {one.module for one in linear_maps(made, skip).values()}
    _torchao().quantize_(made, configuration, filter_fn=lambda module, path: module in chosen)
    return made


def _configuration(weights: Grid, activations: Grid | None) -> Any:
    """torchao's configuration of two grids."""
    ao = _torchao()
    if activations is not None:
        by = {"token": ao.PerRow, "tensor": ao.PerTensor}.get(activations.over)
        eight = activations.bits == 8 and activations.symmetric and activations.group is None
        if weights != INT8 or by is None or not eight:
            raise InputError(
                "torchao multiplies in int8 if both grids are symmetric, of 8 bits and without groups, weights over "
                "'token' and activations over 'token' or 'tensor'"
            )
        # set_inductor_config would change the settings of torch's compiler for the whole process.
        return ao.Int8DynamicActivationInt8WeightConfig(granularity=by(), set_inductor_config=False)
    if weights == INT8:
        return ao.Int8WeightOnlyConfig(set_inductor_config=False)
    if weights.over != "token" or not 2 <= weights.bits <= 8:
        raise InputError(f"torchao stores weights of 2 to 8 bits over 'token' (each output), not {weights}")
    return ao.IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{weights.bits}"),
        granularity=ao.PerAxis(0) if weights.group is None else ao.PerGroup(weights.group),
        mapping_type=ao.MappingType.SYMMETRIC if weights.symmetric else ao.MappingType.ASYMMETRIC,
    )


def _torchao() -> Any:
    """torchao's quantization; importing it takes seconds. Raises `InputError` if it is not installed."""
    try:
        from torchao import quantization
        from torchao.quantization import granularity, quant_primitives
    except ImportError as error:
        raise InputError("integer weights need torchao: pip install 'sinkscope[quantize]'") from error
    return SimpleNamespace(**{**vars(granularity), **vars(quant_primitives), **vars(quantization)})
