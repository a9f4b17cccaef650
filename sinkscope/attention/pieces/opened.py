"""Unions of pieces that take registered ones too, from Python and from JSON.

A registered piece is written with the package that registers it, so that a file which names it says what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, get_args

from pydantic import Field, GetCoreSchemaHandler, SerializationInfo, TypeAdapter
from pydantic_core import core_schema

from sinkscope.errors import InputError, unknown
from sinkscope.registry import Registry, missing, package_of

PACKAGE = "registered_by"  # beside a piece's fields in JSON
PLACES: dict[str, OpenTo] = {}  # by the name of the place: normalizer, slot …


class OpenTo:
    """The last part of an annotated union: `Annotated[One | Other | Base, OpenTo("slot", One | Other, Base)]`.

    `own`: the pieces of the package; `base`: what others derive from. Raises `InputError`, inside a validation, for
    kinds that nobody registered, naming the package where the value does, and for classes that were not registered.
    """

    def __init__(self, place: str, own: Any, base: type) -> None:
        self.place, self.own, self.base = place, own, base
        self.kinds: Registry[type] = Registry("operation", {_kind(one): one for one in get_args(own)}, place)
        PLACES[place] = self

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        closed = handler.generate_schema(Annotated[self.own, Field(discriminator="kind")])
        dumped = core_schema.wrap_serializer_function_ser_schema(self._dumped, schema=closed, info_arg=True)
        return core_schema.no_info_wrap_validator_function(self._validated, closed, serialization=dumped)

    def _validated(self, value: Any, closed: Any) -> Any:
        if isinstance(value, self.base) and not isinstance(value, get_args(self.own)):
            if type(value) not in self.kinds.values():
                raise InputError(f"{type(value).__name__} is not registered: decorate it with @sinkscope.operation")
            return value
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if not isinstance(kind, str) or kind in self.kinds.own:
            return closed(value)
        if kind in self.kinds:
            return self.kinds[kind](**{str(name): part for name, part in value.items() if name != PACKAGE})
        if PACKAGE in value:
            raise missing(f"the {self.place} '{kind}' of an attention operation", value[PACKAGE])
        if self.kinds.added:
            raise unknown(f"kind of {self.place}", kind, self.kinds)
        return closed(value)

    def _dumped(self, value: Any, closed: Any, info: SerializationInfo) -> Any:
        if type(value) not in self.kinds.added.values():
            return closed(value)
        plain = _adapter(type(value)).dump_python(value, mode=info.mode, exclude_none=info.exclude_none)
        return {**plain, PACKAGE: package_of(value)}


def is_registered(piece: object) -> bool:
    """Whether a piece comes from another package."""
    return any(type(piece) in place.kinds.added.values() for place in PLACES.values())


def _kind(piece: type) -> str:
    return next(str(field.default) for field in fields(piece) if field.name == "kind")


def _adapter(kind: type) -> Any:
    return TypeAdapter(kind)
