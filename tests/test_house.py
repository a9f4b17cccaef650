"""Rules that a reader of the code may rely on: layers, faces, no circles, and files that never run code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sinkscope

PACKAGE = Path(sinkscope.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

BEFORE = {
    "calibration",
    "evaluate",
    "probes",
    "measuring",
    "measurements",
    "metrics",
    "ranks",
    "spectral",
    "survey",
}  # names of rooms that are read for one release

# Lowest first: a room imports from itself and from lower levels, never from above or beside.
LEVELS = (
    {"errors"},
    {"statistics"},
    {"files", "live", "names", "registry", "theme"},
    {"grids", "sinks"},
    {"attention"},
    {"hooks"},
    {"model"},
    {"data"},
    {"measurement"},
    {"interventions"},
    {"caches"},
    {"quantization"},
    {"trials"},
    {"checks", *BEFORE},
    {"training"},
    {"experiments"},
    {"report"},
    {"cli"},
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
TOP = {"__init__", "__main__"}  # the package itself, which is in no room
BESIDE = (
    "families",
    "families/sweep",
    "planted",
    "real",
    "tools",
    "attention/formulas",
)  # tests of more than one folder
LOOKED_AT = (ast.Import, ast.ImportFrom, ast.Call)
WORD = re.compile(r"`([a-z_]+(?:\.py)?)/?`")
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache  # several rules read each file
def nodes(source: str) -> tuple[ast.AST, ...]:
    """What the rules look at, at any depth: imports and calls."""
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOKED_AT))


def imported(source: str) -> Iterator[str]:
    """Full names of everything a file imports, at any depth; relative imports start with their dots."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{name.name}" for name in node.names)


def upward_imports(source: str, room: str) -> list[str]:
    """Imports that do not point downward. The package's lazy top is nobody's neighbor: it leads everywhere."""

    def points_down(name: str) -> bool:
        package, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if package != "sinkscope" or rest == "__version__":
            return not name.startswith(".")
        return target == room or LEVEL_OF.get(target, len(LEVELS)) < LEVEL_OF.get(room, 0)

    return [name for name in imported(source) if not points_down(name)]


def upward_names(source: str, room: str) -> list[str]:
    """Modules that do not point downward and are named by a string; old names (`moved`, `renamed`) may be."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    moves = [call for call in calls if ast.unparse(call.func).strip("_") in ("moved", "renamed")]
    exempt = {inner for call in moves for inner in ast.walk(call)}
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in exempt]
    names = [text for text in strings if isinstance(text, str) and re.fullmatch(r"sinkscope(\.\w+)+(:\w+)?", text)]
    above = [name for name in names if LEVEL_OF.get(re.split("[.:]", name)[1], 0) > LEVEL_OF.get(room, 0)]
    return sorted(set(above))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(source: str, modules: Container[str]) -> set[str]:
    """Which of `modules` a file imports, at any depth, names of modules taken for the modules themselves."""
    found = set()
    for name in imported(source):
        whole, parent = name, name.rpartition(".")[0]
        found |= {whole} if whole in modules else {parent} if parent in modules else set()
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """One circle of imports, as its modules, or nothing where there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [error.args[1]]
    return []


@cache
def face_of(room: str) -> set[str]:
    """The names that a room exports."""
    faces = PACKAGE / room / "__init__.pyi", PACKAGE / room / "__init__.py"  # a stub where names are imported late
    face = next((path for path in faces if path.exists()), None)
    return set() if face is None else {name.rpartition(".")[2] for name in imported(face.read_text())}


def bypassed_faces(source: str, room: str, faces: Callable[[str], Container[str]] = face_of) -> list[str]:
    """Imports of other rooms that take an exported name from behind the face, or reach into a room's folders."""

    def bypasses(name: str) -> bool:
        package, other, *inside, last = (*name.split("."), "")[:-1]
        if package != "sinkscope" or other == room or not inside:
            return False
        return last in faces(other) or len(inside) > 1

    return [name for name in imported(source) if name.count(".") > 1 and bypasses(name)]


def unsafe_loading(source: str) -> list[str]:
    """Ways to let a file that was read run code."""
    found = [name for name in imported(source) if name.partition(".")[0] in PICKLES]
    for call in (node for node in nodes(source) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name == "torch.load" and options.get("weights_only") != "True":
            found.append(name)
        if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle", "pd.read_pickle"):
            found.append(name)
        if name in ("eval", "exec") or "True" in (options.get("trust_remote_code"), options.get("allow_pickle")):
            found.append(name)
    return found


def everywhere(offences: Callable[[str, str], list]) -> dict[str, list]:
    """The offences of each file that has any, of its text and its room."""
    found = {str(path.relative_to(ROOT)): offences(text(path), room_of(path)) for path in SOURCES}
    return {path: offence for path, offence in found.items() if offence}


@cache
def text(path: Path) -> str:
    return path.read_text()


def test_every_room_has_its_level() -> None:
    rooms = {room_of(path) for path in SOURCES} - TOP
    assert rooms - LEVEL_OF.keys() == set(), "give the new room a level in LEVELS"


def test_the_map_in_contributing_has_every_room_in_order_of_its_level() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("\n## ")[1]
    rows = [
        [name.removesuffix(".py") for name in WORD.findall(row)] for row in re.findall(r"^(\|[^|]*)", section, re.M)
    ]
    rooms = [room for row in rows for room in row]
    assert sorted(rooms) == sorted(LEVEL_OF.keys() - BEFORE)
    assert [LEVEL_OF[room] for room in rooms] == sorted((LEVEL_OF[room] for room in rooms), reverse=True)


def test_imports_point_downward() -> None:
    assert everywhere(lambda source, room: [] if room in TOP else upward_imports(source, room)) == {}


def test_no_string_names_a_higher_room() -> None:
    old = {"sinkscope/measurement/measurement.py": ["sinkscope.report.writing:write_report"]}  # `m.report`, one release
    assert everywhere(lambda source, room: [] if room in TOP else upward_names(source, room)) == old
    assert upward_names('f("sinkscope.trials:run"); moved(__name__, {"a": "sinkscope.trials.b"})', "caches") == [
        "sinkscope.trials:run"
    ]


def test_no_room_has_a_circle_inside() -> None:
    modules = {module_of(path): path for path in SOURCES}
    graph = {name: imports_of(text(path), modules) - {name, "sinkscope"} for name, path in modules.items()}
    assert circles(graph) == []


def test_rooms_are_entered_through_their_faces() -> None:
    assert everywhere(lambda source, room: [] if room in TOP else bypassed_faces(source, room)) == {}


def test_tests_mirror_the_tree() -> None:
    tested = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    there = {path.parent.relative_to(PACKAGE) for path in SOURCES}
    assert tested - there - {Path(name) for name in BESIDE} == set()


def test_nothing_that_is_read_can_run_code() -> None:
    assert everywhere(lambda source, _: unsafe_loading(source)) == {}


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {sinkscope.__version__}\n" in citation
    assert f"\n## {sinkscope.__version__}" in changes


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_every_dependency_is_pinned(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("dev", "docs", "release") if name == "constraints.txt" else ("dev",)
    wanted = {*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])}
    pinned = {line.partition("==")[0].lower() for line in (ROOT / name).read_text().splitlines()}
    plain = {requirement.partition(">=")[0].partition("[")[0].lower() for requirement in wanted}
    assert plain - pinned == set()
