"""What a machine must be able to do, so that a recipe means the same everywhere."""

from __future__ import annotations

import os

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
            "launch without it, or set compile=true"
        )
