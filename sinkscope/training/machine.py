"""The machine that trains: checks of its abilities, compiling, random generators."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sinkscope.errors import InputError, unknown
from sinkscope.training.recipe import Recipe

DEVICES = ("auto", "cpu")
NOT_COMPILING = ("no", "")


def resolved_device(name: str) -> str:
    """`cpu`, or `auto` if there is an accelerator. Raises `InputError` for another name."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return name if torch.accelerator.is_available() else "cpu"


def check_machine(recipe: Recipe, device: str) -> None:
    """Raises `InputError` if `precision` or `compile` would silently be something else than the recipe says.

    A GPU older than Ampere emulates bf16, slowly and with other last bits; a launcher's environment may ask for
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


@contextmanager
def compiling(recipe: Recipe) -> Iterator[None]:
    """Raises `InputError` if the recipe's model cannot be compiled, for example without a C++ compiler."""
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
    """Keep the precision of fp32 matrix products: Trainer and accelerate switch to TF32 when they compile."""
    backends: Any = torch.backends  # its annotations leave the property out
    general, products = backends.fp32_precision, torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        backends.fp32_precision = general
        torch.set_float32_matmul_precision(products)


def require_compiler() -> None:
    """Raises `InputError` if the C++ compiler that torch.compile would call is not on the path."""
    from torch._inductor import config

    command = shlex.split(str(config.cpp.cxx[-1]))[0]
    if shutil.which(command) is None:
        raise InputError(
            f"compiling the model needs the C++ compiler '{command}', which is not on PATH: install it, name another "
            "in CXX, or train without compiling"
        )


def processors() -> int:
    """The number of processors that this process may use: in a container, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the random generators of Python, NumPy and torch (also the GPUs') on exit, also after an error."""
    python, numpy = random.getstate(), np.random.get_state()
    # Reading the state of a CUDA that is not in use would initialize it.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
