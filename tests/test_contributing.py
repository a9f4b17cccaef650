"""The recipes of CONTRIBUTING.md are carried out on a copy of the repository, in order.

What they add works (`tests/recipes.py`), and the tests of the house, of the pages and of the registry stay green.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("sinkscope", "tests", "tools", "benchmarks", "results", "docs", "replication/sinkscope_replication")
GREEN = ("tests/recipes.py", "tests/test_house.py", "tests/test_registry.py", "tests/tools/test_pages.py")
RUN = f"""
import sys, pytest

class Pages:
    def pytest_collection_finish(self):
        from tools.pages.__main__ import main
        main([])

sys.exit(pytest.main(["-m", "not slow", "-p", "no:cacheprovider", *{GREEN}], [Pages()]))
"""


def recipes() -> dict[str, str]:
    """The diff of each recipe that has one, by what it adds."""
    sections = re.findall(
        r"^## How to add (.+)\n((?:(?!^## ).*\n)*)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    found = {name: re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for name, text in sections}
    return {name: diffs[0] for name, diffs in found.items() if diffs}


def carry_out(diff: str, copy: Path) -> None:
    """Apply a diff: added lines go below the line above them in the diff, or to the end of the file."""
    for before, name, body in re.findall(r"--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)(?=\n--- |\Z)", diff, flags=re.DOTALL):
        path = copy / name
        if not path.parent.is_dir():
            continue  # the replication is not here
        for lines in (hunk.splitlines() for hunk in re.split(r"^@@$", body, flags=re.MULTILINE) if hunk.strip()):
            added = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
            above = next((f"{line[1:]}\n" for line in lines if line.startswith(" ")), "")
            text = "" if before == "/dev/null" else path.read_text()
            assert text.count(above) == 1 or not above, f"{name} has no line {above!r}"
            path.write_text(text.replace(above, above + added) if above else text + added)


def test_each_recipe_is_used() -> None:
    tests = [node.name for node in ast.parse((ROOT / "tests/recipes.py").read_text()).body if hasattr(node, "name")]
    assert {f"test_{name.replace(' ', '_')}" for name in recipes()} == {
        name for name in tests if name.startswith("test")
    }


@pytest.mark.release
def test_recipes_work_and_leave_the_house_in_order(tmp_path: Path) -> None:
    for folder in FOLDERS:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    for diff in recipes().values():
        carry_out(diff, tmp_path)
    settings = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'replication'}", "SINKSCOPE_NO_SHAPE_CHECKS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
