"""Names that other packages add, and what happens where such a package fails or is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from sinkscope import registry
from sinkscope.errors import InputError
from sinkscope.registry import Registry, dashed, missing, package_of, taking


class First:
    pass


class Second:
    pass


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[EntryPoint]]]:
    """Entry points by group, in the place of those that are installed; nothing was imported yet."""
    known: dict[str, list[EntryPoint]] = {}
    monkeypatch.setattr(registry, "_OPENED", set())
    monkeypatch.setattr(registry, "_TAKES", {})
    monkeypatch.setattr(registry, "entry_points", lambda group: known.get(group, []))
    before = set(sys.modules)
    yield known
    for name in set(sys.modules) - before:
        if name.startswith("toy_"):
            del sys.modules[name]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name, text: (tmp_path / f"{name}.py").write_text(dedent(text))  # type: ignore[return-value]


def test_its_own_names_need_no_other_package(points: dict[str, list[EntryPoint]]) -> None:
    points["sinkscope.policy"] = [EntryPoint("broken", "no_such_module", "sinkscope.policy")]
    names: Registry[type] = Registry("policy", {"first": First})
    assert names["first"] is First
    assert set() == registry._OPENED


def test_entry_points_are_read_where_a_name_is_not_its_own(points: dict, module: Callable[[str, str], None]) -> None:
    module("toy_points", "class Third: pass")
    points["sinkscope.policy"] = [EntryPoint("third", "toy_points:Third", "sinkscope.policy")]
    names: Registry[type] = Registry("policy", {"first": First})
    taking("policy")(lambda kind: names.add(kind.__name__.lower(), kind))
    assert "thirt" not in names
    assert list(names) == ["first", "third"]
    assert (len(names), names["third"].__name__) == (2, "Third")
    assert package_of(names["third"]) == "toy_points"


def test_a_module_registers_by_being_imported(points: dict, module: Callable[[str, str], None]) -> None:
    module("toy_module", "import tests.test_registry as here\nhere.NAMES.add('by-import', here.Second)")
    points["sinkscope.policy"] = [EntryPoint("all", "toy_module", "sinkscope.policy")]
    NAMES.added.clear()
    sys.modules["tests.test_registry"] = sys.modules[__name__]
    assert NAMES["by-import"] is Second


NAMES: Registry[type] = Registry("policy", {"first": First})


def test_a_package_that_fails_is_named_and_the_others_stay(points: dict, module: Callable[[str, str], None]) -> None:
    module("toy_broken", "import no_such_dependency")
    module("toy_whole", "class Whole: pass")
    points["sinkscope.policy"] = [
        EntryPoint("a", "toy_broken:It", "sinkscope.policy"),
        EntryPoint("b", "toy_whole:Whole", "sinkscope.policy"),
    ]
    names: Registry[type] = Registry("policy")
    taking("policy")(lambda kind: names.add(kind.__name__.lower(), kind))
    with pytest.warns(UserWarning, match="'toy_broken:It' is left out.*No module named 'no_such_dependency'"):
        assert list(names) == ["whole"]
    assert list(names) == ["whole"]  # and said once


def test_a_name_belongs_to_one_thing() -> None:
    names: Registry[Any] = Registry("policy", {"first": First})
    names.add("second", Second)
    names.add("second", Second)  # as when a module is read anew
    with pytest.raises(InputError, match="policy 'first' is one of sinkscope's own"):
        names.add("first", Second)
    with pytest.raises(InputError, match=f"'second' is registered already, by {package_of(Second)}"):
        names.add("second", First)
    with pytest.raises(InputError, match="needs a name"):
        names.add("", First)


@pytest.mark.parametrize(
    ("name", "dash"), [("LongValues", "long-values"), ("TOVA", "tova"), ("keep_first", "keep-first"), ("H2O", "h2o")]
)
def test_class_names_become_names_with_dashes(name: str, dash: str) -> None:
    assert dashed(name) == dash


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("toy_absent", "package 'toy_absent', which was not found: install or import it"),
        ("pytest", "package 'pytest', which is imported, but does not register it"),
        ("__main__", "by a script or notebook"),
    ],
)
def test_what_is_missing_is_named_with_its_package(package: str, said: str) -> None:
    assert said in str(missing("policy 'x'", package))
