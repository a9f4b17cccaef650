"""What is compared: a name, and how to open a cache for a model. Nothing else of a cache is known in this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn
from transformers import Cache, DynamicCache, QuantizedCache

from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import family

FULL = "full"
"""The name of the arm that drops nothing; it is part of every comparison."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    `open(model)` gives a context that yields an empty cache; inside it the model is called with that cache alone.
    `series`: arms of one series differ in their budget, and are drawn as one line. `control`: what the others must
    beat.
    """

    name: str
    open: Callable[[nn.Module], AbstractContextManager[Cache]]
    series: str = ""
    control: bool = False


def arm(name: str, make: Callable[[nn.Module], Cache], series: str = "", *, control: bool = False) -> Arm:
    """An arm whose cache needs no context: `make(model)` builds an empty one."""

    @contextmanager
    def opened(model: nn.Module) -> Iterator[Cache]:
        yield make(model)

    return Arm(name, opened, series or name, control)


def full() -> Arm:
    """transformers' own cache: everything that the model's layers can ever see."""
    return arm(FULL, lambda model: DynamicCache(config=model.config))


Backend = Literal["quanto", "hqq", "fp8"]


def transformers_quantized(
    backend: Backend,
    bits: int | None = None,
    *,
    group: int | None = None,
    residual: int | None = None,
    axis: int | None = None,
    name: str | None = None,
) -> Arm:
    """transformers' own `QuantizedCache`, as it is, for comparison; what is not said has its defaults.

    It rounds a prompt as a whole behind its pass, and all of it anew whenever `residual` further tokens are there.
    quanto stores 2 or 4 bits, hqq 1, 2, 3, 4 or 8, fp8 8 with one frozen scale. `group` numbers share a scale, along
    `axis` 0 or −1 (quanto), 0 or 1 (hqq), for keys and values.

    Raises `InputError` for a backend that there is not; when opened, where its package is missing (extra `quantize`),
    and `UnsupportedModelError` for models that it refuses.
    """
    if backend not in get_args(Backend):
        raise unknown("backend", str(backend), get_args(Backend))
    given = {"nbits": bits, "q_group_size": group, "residual_length": residual, "axis_key": axis, "axis_value": axis}

    def make(model: nn.Module) -> Cache:
        config: Any = model.config
        try:
            return QuantizedCache(backend, config, **given)
        except ImportError as error:
            raise InputError(f"{backend} cannot be imported ({error}): pip install 'sinkscope[quantize]'") from error
        except ValueError as error:
            if "only supported for models" in str(error):
                raise UnsupportedModelError(f"family '{family(model)}': {' '.join(str(error).split())}") from error
            raise InputError(f"{backend}: {error}") from error

    return arm(name or (backend if bits is None else f"{backend} {bits} bits"), make, series=backend)


def with_full(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms behind the full cache. Raises `InputError` for two of one name and for another one named `full`."""
    names = [each.name for each in arms]
    if FULL in names:
        raise InputError(f"an arm is named '{FULL}', which is the full cache that every comparison has: rename it")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two arms are named '{twice}': each needs a name of its own")
    if not arms:
        raise InputError("nothing to compare with the full cache: give at least one arm")
    return (full(), *arms)
