"""The README's Python block prints what it says it prints."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:texts begin without the BOS")
def test_the_readme_prints_what_it_says(
    smollm2_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / smollm2_file.name).symlink_to(smollm2_file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINKSCOPE_CACHE", os.environ["SINKSCOPE_REAL"])  # where the weights are dequantized already
    exec(compile(block.replace("model.gguf", smollm2_file.name), "README.md", "exec"), {"__name__": "snippet"})
    promised = re.findall(r"# → (.+)", block)
    assert len(promised) == 2
    assert capsys.readouterr().out.splitlines()[:2] == promised
