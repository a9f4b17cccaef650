"""The package as users get it: a wheel, installed somewhere else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sinkscope

PACKAGE = Path(sinkscope.__file__).parent
TOOLS = PACKAGE.parent / "tools"
NEEDED = ("pyproject.toml", "README.md", "LICENSE")


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
    shutil.copytree(PACKAGE, source / "sinkscope", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (TOOLS, PACKAGE.parent / "tests" / "families"):  # which stay at home
        shutil.copytree(folder, source / folder.relative_to(PACKAGE.parent))
    for name in NEEDED:
        shutil.copy(PACKAGE.parent / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, ".", cwd=source)
    return next(built.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    here = {path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()}
    packed = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert {path for path in here if "__pycache__" not in path.parts} - packed == set()
    assert {path.parts[0] for path in packed} == {"sinkscope", f"sinkscope-{sinkscope.__version__}.dist-info"}
    at_home = {path.stem for path in TOOLS.glob("*.py")} | {"contract", "contracts"}
    assert at_home & {path.stem for path in packed} == {"__init__"}, "tools and contracts are no part of the package"


@pytest.mark.slow
def test_the_installed_wheel_measures_the_shipped_model(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    run(*pip, cwd=elsewhere)
    where = run(
        sys.executable, "-c", "import sinkscope; print(sinkscope.__file__)", cwd=elsewhere, PYTHONPATH=str(site)
    )
    assert Path(where.strip()).is_relative_to(site)
    command = (sys.executable, site / "bin" / "sinkscope", "measure", "nano", "--samples", "4", "--json")
    result = json.loads(run(*command, cwd=elsewhere, PYTHONPATH=str(site)))
    assert result["model"] == "nano"
    assert 0 <= result["sink_rate"]["0"] <= 100
    assert len(result["layers"]) == 4
