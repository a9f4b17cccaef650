"""Errors in a user's input, as one line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real

__all__ = [
    "InputError",
    "UnsupportedModelError",
    "check_whole",
    "is_number",
    "is_whole",
    "unknown",
]


class InputError(ValueError):
    """Bad input: what is wrong, where, and the nearest valid choice. The command line prints it and exits with 2.

    The message is one line: line breaks in a name are shown as `\\n`.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("\\n".join(str(message).splitlines()))


class UnsupportedModelError(InputError):
    """A model family or layer that cannot be measured or changed correctly, and is therefore refused."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> InputError:
    """The error for a name that does not exist: `unknown("recipe", "nanno", RECIPES)` suggests `nano`."""
    name, names = str(name), [str(choice) for choice in choices]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(names)}" if names else "there is none"
    return InputError(f"unknown {kind} '{name}': {hint}")


def is_whole(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number from `least` on, NumPy's too; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raises `InputError` unless the argument `name` is a whole number from `least` on."""
    if not is_whole(value, least):
        raise InputError(f"{name} = {value!r}: expected a whole number from {least} on")


def is_number(value: object, above: float = -math.inf) -> bool:
    """Whether a value is a finite number larger than `above`, NumPy's too; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and above < float(value) < math.inf
