"""What a machine must be able to do so that a recipe means there what it means everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sinkscope.errors import InputError, unknown
from sinkscope.training.recipe import Recipe

DEVICES = ("auto", "cpu")
NOT_COMPILING = ("no", "")


def resolved_device(name: str) -> str:
    """`cpu`, or `auto` where there is an accelerator. Raises `InputError` for another name."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return name if torch.accelerator.is_available() else "cpu"


def check_machine(recipe: Recipe, device: str) -> None:
    """Raises `InputError` where `precision` or `compile` would silently be something else than the recipe says.

    A GPU older than Ampere emulates bf16, slowly and not bit for bit alike; a launcher's environment may ask for
    compilation that the recipe does not have.
    """
    cuda = device != "cpu" and torch.cuda.is_available()
    if recipe.precision == "bf16" and cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(
            f"{torch.cuda.get_device_name()} cannot compute in bf16, which the recipe asks for: "
            "set precision=fp32 (another run), or use an Ampere or newer GPU"
        )
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if backend not in NOT_COMPILING and not recipe.compile:
        raise InputError(
            f"the launcher asks for compilation (ACCELERATE_DYNAMO_BACKEND={backend}), the recipe does not: "
            "launch without it, or set compile=true (another run)"
        )


@contextmanager
def compiling(recipe: Recipe) -> Iterator[None]:
    """Raises `InputError` where the recipe's model cannot be compiled, as without a C++ compiler."""
    if not recipe.compile:
        yield
        return
    from torch._dynamo.exc import TorchDynamoException  # the class of all failures to compile; slow to import

    try:
        yield
    except TorchDynamoException as error:
        reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[0].split())
        raise InputError(
            f"this machine cannot compile the recipe's model ({reason}): install a C++ compiler, "
            "or set compile=false (another run)"
        ) from error


@contextmanager
def unchanged_matmuls() -> Iterator[None]:
    """Keep the precision of fp32 products: Trainer and accelerate turn to TF32 when they compile."""
    backends: Any = torch.backends  # its annotations leave the property out
    general, products = backends.fp32_precision, torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        backends.fp32_precision = general
        torch.set_float32_matmul_precision(products)
