"""Operations of other packages: lines of the catalog, and pieces of specifications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import isfunction
from typing import Any, TypeVar, get_args, overload

from pydantic.dataclasses import is_pydantic_dataclass

from sinkscope.attention.catalog import ENTRIES, Entry, Maker
from sinkscope.attention.pieces import PLACES, OpenTo, piece
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError
from sinkscope.registry import package_of, taking

Thing = TypeVar("Thing", bound="type | Maker")


@overload
def operation(thing: Thing, /) -> Thing: ...
@overload
def operation(
    *, formula: str = ..., rows: str = ..., source: str = ..., acts: str = ..., effect: str = ...
) -> Callable[[Maker], Maker]: ...


@taking("operation")
def operation(thing: Any = None, /, **described: str) -> Any:
    """Register your own attention operation: a line of the catalog, or a new piece.

    A line is a function from options to an `AttentionSpec`; its name is the operation's:
    `@sinkscope.operation(formula=…, rows=…, source=…)` as in sinkscope's own catalog, or `@sinkscope.operation`, whose
    formula is the first line of its docstring. Then the name works wherever those of the catalog do: `attach`,
    `LabConfig`, `--set attention=mine`, `explain`, `sinkscope zoo`.

    A piece is a class with a `kind` that derives from `NormalizerPiece`, `SimilarityPiece`, `SlotPiece`, `OutputPiece`
    or `MaskPiece` of `sinkscope.attention`. It becomes a frozen, validated value that combines with all other pieces.
    Files saved with it name your package, and do not load without it.

    Raises `InputError` for anything else, for a name that is taken, for a piece without a `kind`, and for a subclass of
    one of sinkscope's pieces, because paths exact for that piece would be used for yours.
    """
    if thing is None:
        return lambda maker: _line(maker, described)
    if isinstance(thing, type):
        return _piece(thing)
    return _line(thing, described)


def _line(maker: Maker, described: dict[str, str]) -> Maker:
    if not isfunction(maker):
        raise InputError(
            f"@sinkscope.operation decorates a function that makes an AttentionSpec, or a piece; got {maker!r}"
        )
    name = maker.__name__
    known = ENTRIES.added.get(name)
    if known is not None and known.maker is maker:
        return maker
    lines = (maker.__doc__ or "").strip().splitlines()
    about = {"formula": lines[0] if lines else "–", "rows": "–", "source": f"the package {package_of(maker)}"}
    try:
        entry = Entry(name, maker, **{**about, **described})
    except TypeError as error:
        raise InputError(f"attention operation '{name}': {error}") from error
    if not isinstance(entry.spec, AttentionSpec):
        raise InputError(f"attention operation '{name}': its function makes {entry.spec!r}, not an AttentionSpec")
    ENTRIES.add(name, entry)
    return maker


def _piece(kind: type) -> type:
    place = next((place for place in PLACES.values() if issubclass(kind, place.base)), None)
    if place is None:
        bases = ", ".join(f"{name.capitalize()}Piece" for name in PLACES)
        raise InputError(f"{kind.__name__}: a piece of an attention operation derives from one of {bases}")
    if kind in place.kinds.added.values():
        return kind
    if parent := next((one for one in get_args(place.builtin) if issubclass(kind, one)), None):
        raise InputError(
            f"{kind.__name__} derives from sinkscope's {parent.__name__}, and paths that are exact for that would be "
            f"taken: derive from {place.place.capitalize()}Piece"
        )
    made = kind if is_pydantic_dataclass(kind) else piece(kind)
    place.kinds.add(_named(made, place), made)
    return made


def _named(kind: type, place: OpenTo) -> str:
    kind_name = next((field.default for field in fields(kind) if field.name == "kind"), None)
    if not isinstance(kind_name, str):
        name = kind.__name__.lower()
        raise InputError(f'{place.place} {kind.__name__}: needs a kind, such as  kind: Literal["{name}"] = "{name}"')
    return kind_name
