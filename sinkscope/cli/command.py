"""How commands are read: shared groups of options, what is refused before torch is imported, and the panels of help."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from sinkscope.errors import InputError
from sinkscope.files import read_fields
from sinkscope.names import names_a_path, no_such_folder, resolve

ADVANCED = "Advanced"  # the second panel of help
MODEL = "MODEL"  # in the metavar of arguments that name models, or a file that lists them
LISTS = (".yaml", ".yml", ".json")  # a file that lists models, or holds a recipe
FORMER = {
    "--spare": "--protect",
    "--spare-sink": "--protect-sink",
    "--no-spare-sink": "--no-protect-sink",
    "cache --windows": "--samples",
}
"""Former names of options, accepted for one release by the commands that have the new one, or by the command named."""

Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class When:
    """The condition under which a run reads an option; it follows `typer.Option` in the option's annotation.

    `holds` takes the values of the command by name. `why` completes "--sinks …", with values in braces: "goes with
    --stream".
    """

    holds: Callable[[Mapping[str, Any]], object]
    why: str


@dataclass(frozen=True)
class LateHelp:
    """Help that lists names of a registry; it is made only when it is shown, because that imports torch."""

    make: Callable[[], str]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Expand the parameters of `command` that are frozen dataclasses of options, such as `InputOptions`.

    Typer sees every field as a separate option, in place of the dataclass, with the default that the parameter's
    default value has for it; the command is called with the dataclass.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: param.annotation for name, param in signature.parameters.items() if is_dataclass(param.annotation)
    }
    options: list[inspect.Parameter] = []
    for name, param in signature.parameters.items():
        if name not in groups:
            options.append(param.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(param.annotation, include_extras=True)
        options += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(param.default, field.name),
                annotation=hints[field.name],
            )
            for field in fields(param.annotation)
        ]

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    expanded.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    expanded.__annotations__ = {option.name: option.annotation for option in options}
    return expanded


class Command(TyperCommand):
    """A command that refuses what it would otherwise ignore, and paths that do not exist before torch is imported.

    An option with one value may be given once, and an option that the run does not read (`When`) is an error.
    """

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            values, rest, order = parse([self._current_name(arg) for arg in args])
            for param, times in Counter(order).items():
                once = isinstance(param, TyperOption) and not (param.multiple or param.is_flag or param.count)
                if once and times > 1:
                    raise InputError(f"{param.opts[0]} is given {times} times and takes one value")
            return values, rest, order

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser

    def invoke(self, ctx: Any) -> Any:
        for param in self.params:
            if isinstance(param, TyperOption):
                self._check_option(ctx, param)
            else:
                _check_argument(ctx, param)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        late = self._metadata(LateHelp)
        for param in self.params:
            for text in late.get(param.name, ()):
                param.help = text.make()  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    @cached_property
    def conditions(self) -> dict[str, list[When]]:
        """The conditions of the options that not every run reads, by name."""
        return self._metadata(When)

    def _check_option(self, ctx: Any, param: TyperOption) -> None:
        value = ctx.params.get(param.name)
        if param.name == "text" and isinstance(value, Path) and not value.exists():
            raise InputError(f"cannot read {value}: no such file or folder")
        for when in self.conditions.get(param.name, ()) if was_given(ctx, param.name) else ():
            if not when.holds(ctx.params):
                given = param.secondary_opts if value is False and param.secondary_opts else param.opts
                raise InputError(f"{given[0]} {when.why.format_map(ctx.params)}")

    def _current_name(self, argument: str) -> str:
        name, sign, value = argument.partition("=")
        options = {option for param in self.params for option in (*param.opts, *param.secondary_opts)}
        new = FORMER.get(name, FORMER.get(f"{self.name} {name}"))
        if name in options or new not in options:
            return argument
        warnings.warn(f"{name} is called {new} now", DeprecationWarning, stacklevel=2)
        return f"{new}{sign}{value}"

    def _metadata(self, kind: type[Metadata]) -> dict[str, list[Metadata]]:
        """The metadata next to `typer.Option`, by the names of the options that have any."""
        hints = get_type_hints(self.callback, include_extras=True)
        named = {
            name: [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, kind)]
            for name, hint in hints.items()
        }
        return {name: each for name, each in named.items() if each}


class App(typer.Typer):
    """A group of commands, each a `Command` with its groups of options expanded."""

    def command(self, name: str | None = None, *, cls: Any = Command, **named: Any) -> Callable[..., Any]:
        add = super().command(name, cls=cls, **named)
        return lambda function: add(with_options(function))


def was_given(context: Any, name: str) -> bool:
    """Whether an option is on the command line or in the file of --config."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")


def is_list(name: str) -> bool:
    """Whether a name is that of a file that lists models or holds a recipe; a folder may be called so too."""
    return name.endswith(LISTS) and not Path(name).expanduser().is_dir()


def _check_argument(ctx: Any, param: Any) -> None:
    """Raise `InputError` for an argument that names a file or folder which does not exist or cannot be read."""
    for name in _texts(ctx.params.get(param.name)):
        if MODEL in (param.metavar or "") and is_list(name):
            from sinkscope.measurement import load_survey

            load_survey(name)
        elif is_list(name) and param.name == "recipe":
            read_fields(Path(name), "recipe")
        elif name.endswith(".nc") or is_list(name) or (Path(name).expanduser() / "measurement.nc").is_file():
            if not Path(name).expanduser().exists():
                raise InputError(f"no such file: '{name}'")
        elif MODEL in (param.metavar or ""):
            resolve(name)
        elif names_a_path(name) and not Path(name).expanduser().exists():
            raise no_such_folder(name)


def _texts(value: Any) -> Iterator[str]:
    yield from (each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, str))
