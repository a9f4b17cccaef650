"""How the pieces of a specification are validated: wrong fields fail where they are written, in one line."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from dataclasses import fields as fields_of
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform, get_args

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, SerializationInfo, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic_core import core_schema
from torch import nn

from sinkscope.errors import InputError, unknown
from sinkscope.errors.invalid import in_one_line
from sinkscope.registry import Registry, missing, package_of

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)  # an unknown field or a NaN fails where it is written


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def piece(cls: type[T]) -> type[T]:
    """A frozen, validated value. Raises `InputError`, one line, for fields that do not exist or do not fit."""
    return _telling(validated_dataclass(frozen=True, config=STRICT)(cls))  # type: ignore[arg-type]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def pieces(cls: type[T]) -> type[T]:
    """The same for what is made of pieces: its fields are given by name."""
    return _telling(validated_dataclass(frozen=True, kw_only=True, config=STRICT)(cls))  # type: ignore[arg-type]


def _telling(cls: type[T]) -> type[T]:
    """`cls` with pydantic's complaints, several lines each, as one line with the field's name."""
    validated: Callable[..., None] = cls.__init__
    taken = [field for field in fields_of(cls) if field.init and not field.kw_only]  # type: ignore[arg-type]
    kinds = [field.default for field in fields_of(cls) if field.name == "kind"]  # type: ignore[arg-type]
    what = str(kinds[0]) if kinds else "attention" if not taken else cls.__name__

    @functools.wraps(validated)
    def __init__(self: T, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(taken):
            raise InputError(f"{cls.__name__} takes {len(taken)} values in order, got {len(args)}")
        named = {field.name: value for field, value in zip(taken, args, strict=False)}  # so that errors name fields
        if twice := named.keys() & kwargs.keys():
            raise InputError(f"{cls.__name__} got '{min(twice)}' twice")
        try:
            validated(self, **named, **kwargs)
        except ValidationError as error:
            raise in_one_line(error, cls, what) from error

    setattr(cls, "__init__", __init__)  # noqa: B010  (a class's method, which type checkers do not let change)
    return cls


class ByKind:
    """The last part of an annotated union of pieces, which their kind tells apart: `Annotated[One | Other, ByKind()]`.

    Without a kind, the first that has all the fields that are written.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        kinds = get_args(source)

        def with_kind(value: Any) -> Any:
            if not isinstance(value, Mapping) or "kind" in value:
                return value
            fitting = (one for one in kinds if value.keys() <= {field.name for field in fields(one)})
            return {**value, "kind": _kind(next(fitting, kinds[0]))}

        closed = handler.generate_schema(Annotated[source, Field(discriminator="kind")])
        return core_schema.no_info_before_validator_function(with_kind, closed)


# Unions of pieces that take registered ones too, from Python and from JSON.
#
# A registered piece is written with the package that registers it, so that a file which names it says what it needs.

PACKAGE = "registered_by"  # next to the fields of a piece in JSON
PLACES: dict[str, OpenTo] = {}  # by the name of the place: normalizer, slot …


class OpenTo:
    """The last part of an annotated union: `Annotated[One | Other | Base, OpenTo("slot", One | Other, Base)]`.

    `builtin`: the pieces of the package; `base`: what others derive from. Raises `InputError`, inside a validation, for
    kinds that were not registered, naming the package where the value does, and for classes that were not registered.
    """

    def __init__(self, place: str, builtin: Any, base: type) -> None:
        self.place, self.builtin, self.base = place, builtin, base
        self.kinds: Registry[type] = Registry("operation", {_kind(one): one for one in get_args(builtin)}, place)
        PLACES[place] = self

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        closed = handler.generate_schema(Annotated[self.builtin, Field(discriminator="kind")])
        dumped = core_schema.wrap_serializer_function_ser_schema(self._dumped, schema=closed, info_arg=True)
        return core_schema.no_info_wrap_validator_function(self._validated, closed, serialization=dumped)

    def _validated(self, value: Any, closed: Any) -> Any:
        if isinstance(value, self.base) and not isinstance(value, get_args(self.builtin)):
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


@dataclass(frozen=True)
class Sizes:
    """Query heads, key-value heads, width of one head, width of the block's input, index of the layer."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    layer: int = 0

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim", "hidden_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)}: at least 1")
        if self.heads % self.kv_heads:
            divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise InputError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}: choose from {divisors}")


class Learned(nn.Module):
    """A module that sets its own parameters to their starting values, so that any model can initialize it.

    `maps` names those that are matrices from activations to activations, as a linear layer's weight is. The others are
    vectors and tables, whatever their shape, and optimizers that treat matrices as maps leave them alone.
    """

    maps: tuple[str, ...] = ()

    @abstractmethod
    def reset_parameters(self) -> None:
        """Write the starting values, only through `torch.nn.init` (loaders guard those functions)."""


class _Piece:
    """`needs_every_key`: whether it is another piece once a cache dropped keys, which caches then refuse; so they do
    unless a piece says that it is not."""

    kind: str
    needs_every_key: ClassVar[bool] = True

    def build(self, sizes: Sizes) -> nn.Module:
        """The module of one layer."""
        raise NotImplementedError


class Similarity(_Piece):
    """A map φ: s_tk = scaling · φ(q_t)·φ(k_k).

    Its module takes queries (batch, heads, query, dim) or keys (batch, kv_heads, key, dim), after rotation, in fp32 at
    least, and gives tensors of the same first three dimensions.
    """


class Slot(_Piece):
    """Something to attend to that is no token.

    Its module takes a `Context` and gives `SlotTerms`, or a tuple of as many as its `count` says. `has_value`: whether
    it adds to outputs; `needs_hidden`: whether it reads the block's input (`context.hidden`).
    """

    has_value: bool = False
    needs_hidden: bool = False


class Output(_Piece):
    """What happens to aggregated values.

    Its module takes them, (batch, heads, query, dim), and the block's input, (batch, query, width), and gives what
    leaves in the shape of the first. `needs_hidden`: whether it reads that input. `as_wide_as_heads`: whether it has a
    number for each channel of a head, so that values must be as wide as heads.
    """

    needs_hidden: bool = False
    as_wide_as_heads: ClassVar[bool] = True
