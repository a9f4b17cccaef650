"""lm-eval's command line with `--model sinkscope`: attached operations and cache policies, on a local task."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.model import attach, load, load_tokenizer
from sinkscope.trials import Needles
from sinkscope.trials.harness import arm_of, register
from tests.trials.caches import ANY

installed = importlib.util.find_spec("lm_eval") is not None
ROOT = Path(__file__).parent.parent.parent
LENGTH = 120


def test_a_cache_by_its_name() -> None:
    model, ids = load("nano-recall"), torch.randint(3, 100, (1, 60))
    held = {}
    for name, options in (
        ("tova", {"budget": "16"}),
        ("h2o", {"budget": 0.5}),
        ("keydiff", {"budget": "1.0"}),
        ("random", {"budget": 20, "protect": 4}),
    ):
        with torch.no_grad(), arm_of(name, **options).open(model, ANY) as cache:
            model.generate(ids, past_key_values=cache, max_new_tokens=1, do_sample=False, pad_token_id=1)
            held[name] = {layer.places.shape[-1] for layer in cache.kept}
    assert held == {"tova": {16}, "h2o": {30}, "keydiff": {60}, "random": {20}}
    with arm_of("stream", sinks=2, window=10).open(model, ANY) as cache:
        assert type(cache).__name__ == "StreamingCache"


def test_what_is_no_cache() -> None:
    with pytest.raises(InputError, match="unknown cache 'snapvk': did you mean 'snapkv'"):
        arm_of("snapvk")
    with pytest.raises(InputError, match="budget = 'much': expected a number of keys, or a share"):
        arm_of("snapkv", budget="much")


@pytest.mark.skipif(installed, reason="the extra 'eval' is installed")
def test_a_missing_lm_eval_is_said() -> None:
    with pytest.raises(InputError, match=r"sinkscope\[eval\]"):
        register()


def local_task(folder: Path, rows: int = 8) -> Path:
    """Which value belongs to the key: both stand in the continuation, so the context does not ask."""
    asked = Needles(LENGTH).draw(rows, seed=1)
    words = Needles().alphabet.words()
    lines = []
    for context, keys, answers in zip(
        asked.context[:, 1:].tolist(), asked.keys.tolist(), asked.answers.tolist(), strict=True
    ):
        choices = [f"{words[keys[0]]} {words[answer]}" for answer in dict.fromkeys(answers)]
        lines.append(json.dumps({"context": " ".join(words[i] for i in context), "choices": choices}))
    (folder / "needles.jsonl").write_text("\n".join(lines))
    (folder / "needles.yaml").write_text(
        f"task: needles\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/needles.jsonl\n"
        f'  cache_dir: {folder}\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: "{{{{context}}}}"\n'
        "doc_to_choice: choices\ndoc_to_target: 0\nmetric_list:\n  - metric: acc\n"
    )
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not installed, reason="the extra 'eval' is not installed")
def test_the_command_line_evaluates_with_an_operation_and_with_a_policy(tmp_path: Path) -> None:
    folder = local_task(tmp_path)
    scores, samples = {}, {}
    for name, more in (
        ("dense", ""),
        ("full", ",cache=streaming,budget=1.0"),
        ("dropping", ",cache=streaming,budget=10"),
        ("sigmoid", ",attach=sigmoid"),
        ("both", ",attach=softmax,cache=streaming,budget=10"),
    ):
        command = (sys.executable, "-m", "sinkscope", "lm-eval", "--model", "sinkscope", "--model_args")
        where = ("--tasks", "needles", "--include_path", folder, "--output_path", tmp_path / name, "--log_samples")
        done = subprocess.run(
            [*command, f"pretrained=nano-recall{more}", *where],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        [found] = (tmp_path / name).rglob("results*.json")
        [logged] = (tmp_path / name).rglob("samples*.jsonl")
        scores[name] = json.loads(found.read_text())["results"]["needles"]["acc,none"]
        samples[name] = [log_likelihoods(line) for line in logged.read_text().splitlines()]
    assert scores["dense"] == scores["full"] > 0.9
    assert scores["dropping"] < 0.7
    assert samples["both"] == samples["dropping"]
    model, tokenizer = load("nano-recall"), load_tokenizer("nano-recall")
    attach(model, "sigmoid")
    asked = [json.loads(line) for line in (folder / "needles.jsonl").read_text().splitlines()]
    for one, found in zip(asked[:2], sorted_by_document(tmp_path / "sigmoid")[:2], strict=True):
        expected = [log_likelihood(model, tokenizer, one["context"], choice) for choice in one["choices"]]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert scores["sigmoid"] < scores["dense"]


def log_likelihoods(line: str) -> tuple[int, list[float]]:
    """Of the choices of one document, as lm-eval wrote them down."""
    row = json.loads(line)
    return row["doc_id"], [float(answer[0][0]) for answer in row["resps"]]


def sorted_by_document(folder: Path) -> list[list[float]]:
    [logged] = folder.rglob("samples*.jsonl")
    return [found for _, found in sorted(log_likelihoods(line) for line in logged.read_text().splitlines())]


def log_likelihood(model: Any, tokenizer: Any, context: str, choice: str) -> float:
    """Σ log p of the tokens of `" " + choice` behind the context."""
    whole, before = tokenizer(f"{context} {choice}").input_ids, len(tokenizer(context).input_ids)
    with torch.no_grad():
        logits = model(torch.tensor([whole])).logits[0].float().log_softmax(-1)
    return sum(logits[at - 1, whole[at]].item() for at in range(before, len(whole)))
