"""`python -m tools.mutants FILE TESTS...`: which small changes of a file do its tests not notice?

mutmut (extra `release`) changes one operator, number or argument of FILE at a time, in a copy of the checkout, and runs
the fast tests in TESTS after each change. Changes that leave every test green are printed as diffs: each is either
equivalent to the original, or a test that is missing. A file of 120 lines takes two minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.pages import ROOT

FOLDERS = ("sinkscope", "tests", "docs")
SETTINGS = """[mutmut]
source_paths = sinkscope
only_mutate = {file}
also_copy =
  conftest.py
  docs
pytest_add_cli_args =
  -m
  not slow
pytest_add_cli_args_test_selection =
  {tests}
use_git_change_detection = false
"""


def main(file: str, *tests: str) -> None:
    """Print the changes of `file` that no test in `tests` notices. Raises `SystemExit` where mutmut fails."""
    environment = os.environ | {"SINKSCOPE_NO_SHAPE_CHECKS": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, copy)
        (copy / "setup.cfg").write_text(SETTINGS.format(file=file, tests="\n  ".join(tests)))

        def mutmut(*command: str, quiet: bool = True) -> str:
            arguments = [sys.executable, "-m", "mutmut", *command]
            done = subprocess.run(
                arguments, cwd=copy, env=environment, stdout=subprocess.PIPE if quiet else None, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"mutmut {command[0]} failed: {done.stdout or ''}")
            return done.stdout or ""

        mutmut("run", quiet=False)
        survivors = [line.partition(":")[0].strip() for line in mutmut("results").splitlines()]
        for name in survivors:
            print(mutmut("show", name))
        print(f"{len(survivors)} changes of {file} went unnoticed.")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
