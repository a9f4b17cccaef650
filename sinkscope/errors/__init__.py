"""Errors in a user's input, as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "InputError",
    "UnsupportedModelError",
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


def unknown(kind: str, name: str, choices: Iterable[str]) -> InputError:
    """The error for a name that does not exist: `unknown("recipe", "nanno", RECIPES)` suggests `nano`."""
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(names)}" if names else "there is none"
    return InputError(f"unknown {kind} '{name}': {hint}")
