"""Compiling a model: what stays as it was, and what is said where a machine cannot."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sinkscope.errors import InputError
from sinkscope.training.recipe import Recipe


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
            f"this machine cannot compile the recipe's model ({reason}): install a C++ compiler, or set compile=false"
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


def require_compiler() -> None:
    """Raises `InputError` where the C++ compiler that torch.compile would call is not on the path."""
    from torch._inductor import config

    command = shlex.split(str(config.cpp.cxx[-1]))[0]
    if shutil.which(command) is None:
        raise InputError(
            f"--compile needs the C++ compiler '{command}', which is not on PATH: install it, name another in CXX, or "
            "leave --compile out"
        )
