"""The words of choices, as commands take them: `measured@0.2+outliers`."""

from __future__ import annotations

from collections.abc import Callable

from sinkscope.errors import InputError, unknown
from sinkscope.sinks.choice import Choice, First, Last, Measured, Online, Outliers, Positions, Spikes, TokenIds

WORDS = (
    "none | measured[@ε] | online[@ε] | first:4 | last:4 | positions:0,5 | ids:2,13 | outliers[:ratio[,site]] | "
    "spikes:depth,dimension[,n], joined by +"
)


def parse(words: str) -> Choice | None:
    """The choice that `words` describe; None for `none`. str(parse(words)) is equivalent.

    Raises `InputError`, naming the nearest words, for unknown ones.
    """
    if words.strip() == "none":
        return None
    choice: Choice | None = None
    for word in words.split("+"):
        one = _one(word.strip(), words)
        choice = one if choice is None else choice + one
    return choice


def _one(word: str, words: str) -> Choice:
    name, _, value = word.partition("@" if "@" in word else ":")
    if name == "none":
        raise InputError(f"'{words}': none stands alone")
    if name not in _READ:
        raise unknown("choice of tokens", word, [*_READ, "none"])
    try:
        return _READ[name](value)
    except (ValueError, TypeError) as error:  # no number, or too few or too many of them
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{word}' names no tokens: {WORDS}") from None


def _numbers(value: str) -> tuple[int, ...]:
    return tuple(int(number) for number in value.split(","))


def _outliers(ratio: str, site: str = Outliers.site) -> Outliers:
    return Outliers(float(ratio), site)


_READ: dict[str, Callable[[str], Choice]] = {
    "measured": lambda value: Measured(float(value)) if value else Measured(),
    "online": lambda value: Online(float(value)) if value else Online(),
    "first": lambda value: First(int(value)) if value else First(),
    "last": lambda value: Last(int(value)) if value else Last(),
    "positions": lambda value: Positions(*_numbers(value)),
    "ids": lambda value: TokenIds(*_numbers(value)),
    "outliers": lambda value: _outliers(*value.split(",")) if value else Outliers(),
    "spikes": lambda value: Spikes(*_numbers(value)),
}
