"""The package as users get it: a wheel, installed somewhere else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import sinkscope

PACKAGE = Path(sinkscope.__file__).parent
TOOLS = PACKAGE.parent / "tools"
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff")
MOST = 15 * 2**19  # bytes: the shipped models, mostly
ALONE = (
    "measure nano --samples 2 --tokens 16",
    "intervene nano --what hide-sink --samples 2 --tokens 16 --controls 2",
    "zoo softpick",
    "experiment list",
)
"""What must work with nothing but what `pip install sinkscope` brings."""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since a build writes beside what it builds."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in (PACKAGE, TOOLS, PACKAGE.parent / "tests" / "families"):  # the last two stay at home
        bytecode = shutil.ignore_patterns("__pycache__")  # which others write at the same time
        shutil.copytree(folder, source / folder.relative_to(PACKAGE.parent), ignore=bytecode)
    for name in NEEDED:
        shutil.copy(PACKAGE.parent / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, ".", cwd=source)
    return next(built.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_says_how_to_cite_it(wheel: Path) -> None:
    assert any(name.endswith("CITATION.cff") for name in zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    here = {path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()}
    packed = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert {path for path in here if "__pycache__" not in path.parts} - packed == set()
    assert {path.parts[0] for path in packed} == {"sinkscope", f"sinkscope-{sinkscope.__version__}.dist-info"}
    at_home = {path.stem for path in TOOLS.glob("*.py")} | {"contract", "contracts"}
    assert at_home & {path.stem for path in packed} == {"__init__"}, "tools and contracts are no part of the package"


@pytest.mark.slow
def test_the_wheel_is_small_and_holds_the_models_and_no_run_of_the_study(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    sizes = {entry.filename: entry.compress_size for entry in packed.infolist()}
    assert sum(sizes.values()) <= MOST
    assert sum(name.endswith("model.safetensors") for name in sizes) == 4
    rows = [name for name in sizes if name.endswith(".jsonl") and "/shipped/" not in name]
    assert rows + [name for name in sizes if "records" in name or "replication" in name] == []


def test_extras_are_those_that_the_readme_names() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    install = (PACKAGE.parent / "README.md").read_text().split("## Install")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", install)) == {*project["optional-dependencies"]} - {"dev", "release"}


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, without what it needs."""
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    run(*pip, cwd=folder)
    return folder


def brought(name: str, extras: tuple[str, ...] = (), found: set[tuple[str, tuple[str, ...]]] | None = None) -> set[str]:
    """The distributions of this environment that a requirement brings, itself among them."""
    found = set() if found is None else found
    if (name, extras) not in found:
        found.add((name, extras))
        for line in metadata.requires(name) or ():
            wanted = Requirement(line)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                brought(wanted.name, tuple(sorted(wanted.extras)), found)
    return {distribution for distribution, _ in found}


@pytest.fixture(scope="module")
def bare(site: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path with the installed wheel and with what it requires, and nothing else of this environment."""
    folder = tmp_path_factory.mktemp("required")
    for name in {name for line in requirements() for name in brought(line.name, tuple(sorted(line.extras)))}:
        distribution = metadata.distribution(name)
        for part in {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "bin")}:
            place = folder / part
            if not place.exists() and part != "__pycache__":
                place.symlink_to(distribution.locate_file(part))
    return f"{site}{os.pathsep}{folder}"


def requirements() -> list[Requirement]:
    """What the package needs without any extra."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


@pytest.mark.release
def test_the_wheel_alone_answers_the_first_questions(bare: str, tmp_path: Path) -> None:
    absent = ("pytest", "datasets", "ray", "matplotlib", "sphinx", "lm_eval", "playwright")
    script = (
        "import importlib.util\n"
        f"assert not [name for name in {absent} if importlib.util.find_spec(name)]\n"
        f"from sinkscope.cli import main\nfor line in {ALONE}: assert main(line.split()) == 0, line"
    )
    said = run(sys.executable, "-S", "-c", script, cwd=tmp_path, PYTHONPATH=bare, PATH=str(tmp_path))
    assert "sink rate" in said
    assert "softpick" in said
