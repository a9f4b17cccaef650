"""What all commands share, whatever they do: how options are read, which of them help shows first, early refusals."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from sinkscope.errors import InputError
from sinkscope.files import read_fields
from sinkscope.names import names_a_path, no_such_folder, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ADVANCED = "Advanced"  # the second panel of help
FIRST = 15  # options that the first panel shows at most, --help among them
SELDOM = {
    "attn",
    "audio",
    "batch_size",
    "config",
    "device_map",
    "dtype",
    "epsilon",
    "field",
    "figure",
    "images",
    "revision",
    "seed",
    "split",
    "tables",
    "trust_remote_code",
    "windows",
}
"""Options of the second panel in every command."""
ALWAYS = {"as_json", "out", "plan_only", "full"}
"""Options of the first panel, however many there are."""
MODEL = "MODEL"  # in the metavar of arguments that name models, or a file that lists them
RENAMED = {"--spare": "--protect"}
"""Old names of options, which commands that have the new one take for one release, with a remark."""
LISTS = (".yaml", ".yml", ".json")
READS = {"text"}
"""Options that name a file or folder to read."""


@dataclass(frozen=True)
class When:
    """The condition under which a run reads an option, next to `typer.Option` in the option's annotation.

    `holds`: of the command's values by name. `why` completes "--sinks …", with values in braces: "goes with --stream".
    """

    holds: Callable[[Mapping[str, Any]], object]
    why: str


class Command(TyperCommand):
    """A command that refuses what it would otherwise pass over, and paths that lead nowhere before torch is imported.

    An option that takes one value may be given once, and one that this run does not read (`When`) is refused. Help has
    two panels, of which the first is short.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        first = []
        for param in self.params:
            if not isinstance(param, TyperOption) or param.hidden:
                continue
            if param.name in SELDOM:
                param.rich_help_panel = param.rich_help_panel or ADVANCED
            if param.rich_help_panel is None:
                first.append(param)
        movable = [param for param in first if param.name not in ALWAYS and not param.required]
        for param in movable[len(movable) - max(0, len(first) + 1 - FIRST) :]:
            param.rich_help_panel = ADVANCED

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            values, rest, order = parse([self._renamed(arg) for arg in args])
            for param, times in Counter(order).items():
                once = isinstance(param, TyperOption) and not (param.multiple or param.is_flag or param.count)
                if once and times > 1:
                    raise InputError(f"{param.opts[0]} is given {times} times and takes one value")
            return values, rest, order

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser

    def _renamed(self, argument: str) -> str:
        name, sign, value = argument.partition("=")
        there = {option for param in self.params for option in param.opts}
        if name not in RENAMED or name in there or RENAMED[name] not in there:
            return argument
        warnings.warn(f"{name} is called {RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return f"{RENAMED[name]}{sign}{value}"

    def invoke(self, ctx: Any) -> Any:
        for param in self.params:
            value = ctx.params.get(param.name)
            values = value if isinstance(value, list | tuple) else [value]
            if isinstance(param, TyperOption):
                if param.name in READS and isinstance(value, Path) and not value.exists():
                    raise InputError(f"cannot read {value}: no such file or folder")
                continue
            for name in (each for each in values if isinstance(each, str)):
                if name.endswith(LISTS):
                    _check_file(Path(name), "recipe" if param.metavar == "RECIPE" else "survey")
                elif MODEL in (param.metavar or ""):
                    resolve(name)
                elif names_a_path(name) and not Path(name).expanduser().exists():
                    raise no_such_folder(name)
        for param in self.params:
            for when in self.conditions.get(param.name, ()) if was_given(ctx, param.name) else ():
                if not when.holds(ctx.params):
                    raise InputError(f"{param.opts[0]} {when.why.format_map(ctx.params)}")
        return super().invoke(ctx)

    @cached_property
    def conditions(self) -> dict[str, list[When]]:
        """When options are read, by the names of those that not every run reads."""
        hints = get_type_hints(self.callback, include_extras=True)
        stated = {
            name: [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, When)]
            for name, hint in hints.items()
        }
        return {name: conditions for name, conditions in stated.items() if conditions}


class App(typer.Typer):
    """A group of commands, each a `Command`."""

    def command(self, name: str | None = None, *, cls: Any = Command, **named: Any) -> Callable[..., Any]:
        return super().command(name, cls=cls, **named)


def _check_file(path: Path, kind: str) -> None:
    """Raises `InputError` for a file that cannot be read, and for a recipe with a field that no recipe has."""
    fields = read_fields(path, kind)
    if kind == "recipe":
        from sinkscope.cli.recipe_fields import check_field_names  # pydantic takes a quarter of a second

        check_field_names(fields)


def was_given(context: Any, name: str) -> bool:
    """Whether an option stands on the command line or in the file of --config."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")
