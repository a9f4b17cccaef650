"""lm-eval through a cache: the full one scores as lm-eval does, and one that drops the needle forgets it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.model import load, load_tokenizer
from sinkscope.trials import Arm, Needles, unchanged
from sinkscope.trials.harness import cached_lm, cut, summed
from tests.trials.caches import keeping

installed = importlib.util.find_spec("lm_eval") is not None
through_lm_eval = [
    pytest.mark.skipif(not installed, reason="the extra 'eval' is not installed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # its imports warn
]

LENGTH = 120


def marked(test: Any) -> Any:
    for mark in through_lm_eval:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load("nano-recall")


def lm(model: LlamaForCausalLM, arm: Arm) -> Any:
    return cached_lm(model, load_tokenizer("nano-recall"), arm, batch_size=1)


def requests(rows: int = 6) -> list[tuple[None, list[int], list[int]]]:
    asked = Needles(LENGTH).draw(rows, seed=0)
    pairs = torch.stack([asked.keys, asked.answers], -1).flatten(1)
    return [(None, *both) for both in zip(asked.context.tolist(), pairs.tolist(), strict=True)]


def test_a_continuation_is_scored_as_one_dense_pass_scores_it(model: LlamaForCausalLM) -> None:
    for _, context, continuation in requests(3):
        with torch.no_grad():
            logs = model(torch.tensor([context + continuation])).logits[0].double().log_softmax(-1)
        behind = logs[len(context) - 1 : -1]
        total = float(behind.gather(1, torch.tensor(continuation)[:, None]).sum())
        greedy = bool((behind.argmax(-1) == torch.tensor(continuation)).all())
        assert summed(model, unchanged(), context, continuation) == (pytest.approx(total, abs=1e-3), greedy)


def test_what_a_cache_drops_changes_the_likelihood_of_a_needle(model: LlamaForCausalLM) -> None:
    """A key and its value behind a context that does not ask; of the score, the key's own part is common to both."""
    gains = {}
    for arm in (unchanged(), keeping(1, 8)):
        scores = [
            summed(model, arm, context, pair[:2])[0] - summed(model, arm, context, [pair[0], pair[1] % 60 + 66])[0]
            for _, context, pair in requests(4)
        ]
        gains[arm.name] = sum(scores) / len(scores)
    assert gains["full"] > 5
    assert gains["1+8"] < gains["full"] - 3


def test_the_left_of_a_context_is_cut() -> None:
    assert cut([1, 2, 3, 4], [5, 6], 10) == [1, 2, 3, 4]
    assert cut([1, 2, 3, 4], [5, 6], 4) == [2, 3, 4]  # with the last token, which is predicted and not read: 5
    assert cut([1, 2], [5, 6], 2) == [2]
    for context, continuation in (([], [1]), ([1], []), ([1], [1, 2, 3])):
        with pytest.raises(InputError, match="both need one at least"):
            cut(context, continuation, 2)


@pytest.mark.skipif(installed, reason="the extra 'eval' is installed")
def test_a_missing_lm_eval_is_said(model: LlamaForCausalLM) -> None:
    with pytest.raises(InputError, match=r"sinkscope\[eval\]"):
        lm(model, unchanged())


@marked
def test_the_full_cache_scores_as_lm_eval_itself(model: LlamaForCausalLM) -> None:
    from lm_eval.models.huggingface import HFLM

    plain = HFLM(pretrained=model, tokenizer=load_tokenizer("nano-recall"), batch_size=1)
    expected = plain._loglikelihood_tokens(requests(), disable_tqdm=True)
    found = lm(model, unchanged())._loglikelihood_tokens(requests(), disable_tqdm=True)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)


@marked
def test_a_context_that_is_too_long_is_cut_as_lm_eval_cuts_it(model: LlamaForCausalLM) -> None:
    from lm_eval.models.huggingface import HFLM

    tokenizer = load_tokenizer("nano-recall")
    plain = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=50)
    ours = lm(model, unchanged())
    ours._max_length = 50
    expected = plain._loglikelihood_tokens(requests(2), disable_tqdm=True)
    found = ours._loglikelihood_tokens(requests(2), disable_tqdm=True)
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)


def task(folder: Path, rows: int = 12) -> Any:
    """Which value belongs to the key: both stand in the continuation, so the context does not ask."""
    from lm_eval.api.task import ConfigurableTask

    asked = Needles(LENGTH).draw(rows, seed=1)
    words = Needles().alphabet.words()
    spelled = [[words[i] for i in row] for row in asked.context[:, 1:].tolist()]
    lines = []
    for context, keys, answers in zip(spelled, asked.keys.tolist(), asked.answers.tolist(), strict=True):
        choices = [f"{words[keys[0]]} {words[answer]}" for answer in dict.fromkeys(answers)]
        lines.append(json.dumps({"context": " ".join(context), "choices": choices}))
    (folder / "needles.jsonl").write_text("\n".join(lines))
    return ConfigurableTask(
        config={
            "task": "needles",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "needles.jsonl")}, "cache_dir": str(folder)},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{context}}",
            "doc_to_choice": "choices",
            "doc_to_target": 0,
            "metric_list": [{"metric": "acc"}],
        }
    )


@marked
def test_what_a_cache_drops_changes_the_score_of_a_task(model: LlamaForCausalLM, tmp_path: Path) -> None:
    import lm_eval

    scores = {}
    for arm in (unchanged(), keeping(1, 8)):
        found = lm_eval.simple_evaluate(lm(model, arm), tasks=[task(tmp_path)], bootstrap_iters=0)
        scores[arm.name] = found["results"]["needles"]["acc,none"]
    assert scores["full"] > 0.9
    assert scores["1+8"] < 0.7


@marked
def test_generation_goes_through_the_cache(model: LlamaForCausalLM) -> None:
    prompts = Needles(LENGTH).draw(8, seed=2).context
    plain = model.generate(prompts, max_length=LENGTH + 6, do_sample=False, pad_token_id=1)
    found = {
        arm.name: lm(model, arm)._model_generate(prompts, LENGTH + 6, [])[:, LENGTH:]
        for arm in (unchanged(), keeping(0, 1))
    }
    assert torch.equal(found["full"], plain[:, LENGTH:])
    assert torch.equal(found["0+1"][:, 0], plain[:, LENGTH])  # the first pass sees all of its tokens
    assert not torch.equal(found["0+1"], plain[:, LENGTH:])
