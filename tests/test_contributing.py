"""What CONTRIBUTING.md says of adding things is what it takes: its diffs are applied to a copy, and used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

USES = {
    "an observer": """
        m = ss.measure(model, ids, observers="all")
        maps = torch.stack(model(ids, output_attentions=True, use_cache=False).attentions, 1)
        wanted = maps.diagonal(-1, -2, -1).sum(-1) / maps.shape[-1]
        torch.testing.assert_close(torch.from_numpy(m.data["previous_token"].values), wanted)
    """,
    "an intervention": """
        from sinkscope.interventions import Subject, named
        halved = named("halve-sink", Subject(model, ids)).intervention
        norms = [ss.measure(model, ids).data["hidden_norm"].sel(position=0).isel(depth=1).values]
        with halved.applied(model):
            norms.append(ss.measure(model, ids).data["hidden_norm"].sel(position=0).isel(depth=1).values)
        assert abs(norms[1] / norms[0] - 0.5).max() < 1e-5
        assert ss.trials.changed(model, ids, halved, name="halved", controls=2).controls("halved")
    """,
    "an eviction policy": """
        from sinkscope.caches.policies import ValueNorm
        with ss.evicting(model, "value-norm", 6) as cache:
            model(ids, past_key_values=cache)
        lengths = [layer.slots["values"].norm(dim=-1) for layer in cache.kept]
        with ss.evicting(model, ValueNorm(), 20) as cache:
            model(ids, past_key_values=cache)
        for kept, layer in zip(lengths, cache.kept):
            every = layer.slots["values"].norm(dim=-1).sort(-1).values
            torch.testing.assert_close(kept.sort(-1).values, every[..., -6:])
    """,
    "a metric per head": """
        m = ss.measure(model, ids)
        wanted = m.data["query_norm"].mean(("sample", "position")).values.ravel()
        assert abs(m.heads()["query_norm"].to_numpy() - wanted).max() < 1e-5
    """,
    "a question": """
        from sinkscope_replication.questions import QUESTIONS
        assert [one.label for one in QUESTIONS["tied-embeddings"].variations] == ["untied", "tied"]
    """,
}


def diffs(section: str) -> str:
    """The diff in a section of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split(f"## How to add {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL)[0]


def applied(diff: str, copy: Path) -> list[str]:
    """Apply a diff; the old files that it changed. Added lines go below the line above them, or to the end."""
    changed = []
    for before, name, body in re.findall(r"--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)(?=\n--- |\Z)", diff, flags=re.DOTALL):
        path = copy / name
        if before == "/dev/null":
            path.write_text("".join(f"{line[1:]}\n" for line in body.splitlines() if line.startswith("+")))
            continue
        changed.append(name)
        for lines in (hunk.splitlines() for hunk in re.split(r"^@@$", body, flags=re.MULTILINE) if hunk.strip()):
            added = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
            text, above = path.read_text(), next((line[1:] + "\n" for line in lines if line.startswith(" ")), "")
            assert text.count(above) == 1 or not above, f"{name} has no line {above!r}"
            path.write_text(text.replace(above, above + added) if above else text + added)
    return changed


@pytest.mark.release
@pytest.mark.parametrize("section", USES)
def test_one_file_and_one_line_is_all_it_takes(section: str, tmp_path: Path) -> None:
    if section == "a question" and not (ROOT / "replication").is_dir():
        pytest.skip("the replication is not here, whose question it is")
    for package in ("sinkscope", "replication/sinkscope_replication"):
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert len(applied(diffs(section), tmp_path)) == 1, "one file that was there is changed"
    code = """
import torch
import sinkscope as ss
model = ss.load("nano", attn="eager")
ids = torch.randint(3, model.config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
torch.set_grad_enabled(False)
"""
    code += "\n".join(line.removeprefix("        ") for line in USES[section].splitlines())
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'replication'}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
