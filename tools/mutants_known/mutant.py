"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands once in `file`, becomes `new`; one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A file of the package, with the tests nearest to it; a mutant of it may name others."""

    file: str
    tests: tuple[str, ...]

    def __call__(self, name: str, old: str, new: str, *tests: str) -> Mutant:
        return Mutant(name, self.file, old, new, tests or self.tests)


def of(file: str, *tests: str) -> Place:
    return Place(f"sinkscope/{file}", tests)
