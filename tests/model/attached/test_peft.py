"""LoRA on a model with an attached operation, which PEFT copies for each adapter and whose maps it wraps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sinkscope as ss
from sinkscope.attention import Operation, operation_of
from sinkscope.errors import UnsupportedModelError
from tests.model.attached.hosts import host, inputs, output

peft = pytest.importorskip("peft", reason="PEFT is not installed")
GIVEN = inputs("llama")
LEARNING = ["gated_value", "qk_norm", "sink_logit", "gated_head", "kv_bias", "v_bias"]


def adapted(name: str, family: str = "llama") -> Any:
    """A host with an operation and a LoRA adapter of which nothing is at its start."""
    model = host(family)
    ss.attach(model, name, seed=0)
    config = peft.LoraConfig(target_modules=["q_proj", "k_proj", "v_proj"], modules_to_save=["operation"])
    wrapped = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in wrapped.named_parameters():
            if "lora_B" in path or ("operation" in path and parameter.requires_grad):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return wrapped


@pytest.mark.parametrize("name", LEARNING)
def test_what_learns_gets_a_gradient(name: str) -> None:
    model = adapted(name)
    model(**GIVEN, labels=GIVEN["input_ids"]).loss.backward()
    learning = {path: p for path, p in model.named_parameters() if "operation" in path and p.requires_grad}
    assert learning
    assert [path for path, p in learning.items() if p.grad is None or not bool(p.grad.any())] == []


@pytest.mark.parametrize("name", LEARNING)
def test_the_adapted_model_is_the_merged_one(name: str) -> None:
    """Merged, queries, keys and values come from one map, on all of whose output the operation acts."""
    model = adapted(name)
    before, found = output(model, GIVEN), ss.measure(model, GIVEN)
    with model.disable_adapter():
        plain = output(model, GIVEN)
    merged = copy.deepcopy(model).merge_and_unload()
    assert isinstance(operation_of(merged.model.layers[0].self_attn), Operation)
    assert (before - plain).abs().max() > 0.01
    torch.testing.assert_close(output(merged, GIVEN), before, atol=1e-5, rtol=1e-4)
    expected = ss.measure(merged, GIVEN)
    for variable in ("attention_received", "value_norm"):
        torch.testing.assert_close(
            torch.from_numpy(found.data[variable].values), torch.from_numpy(expected.data[variable].values)
        )
    assert found.record["metric_weights"] == expected.record["metric_weights"]


def test_without_the_adapter_it_is_the_model_that_was_attached() -> None:
    plain = host("llama")
    ss.attach(plain, "gated_value", seed=0)
    wrapped = adapted("gated_value")
    with wrapped.disable_adapter():
        torch.testing.assert_close(output(wrapped, GIVEN), output(plain, GIVEN))


def test_adapters_are_saved_and_loaded_onto_an_attached_model(tmp_path: Path) -> None:
    wrapped = adapted("qk_norm")
    wrapped.save_pretrained(tmp_path)
    fresh = host("llama")
    ss.attach(fresh, "qk_norm", seed=0)
    torch.testing.assert_close(
        output(peft.PeftModel.from_pretrained(fresh, tmp_path).eval(), GIVEN), output(wrapped, GIVEN)
    )


def test_a_hosts_own_sink_stays_the_hosts() -> None:
    wrapped = adapted("gated_head", "gpt_oss")
    layer = wrapped.get_base_model().model.layers[0].self_attn
    assert operation_of(layer).slot_modules[-1].layer[0] is layer
    copied = copy.deepcopy(wrapped).get_base_model().model.layers[0].self_attn
    assert operation_of(copied).slot_modules[-1].layer[0] is copied


@pytest.mark.slow
def test_the_callback_measures_the_model_inside(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    wrapped = adapted("gated_value")
    rows = [{"input_ids": row, "labels": row} for row in GIVEN["input_ids"]]
    arguments = TrainingArguments(tmp_path, max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, save_steps=9)
    callback = ss.SinkCallback(inputs=GIVEN["input_ids"])
    trainer = Trainer(wrapped, arguments, train_dataset=rows, callbacks=[callback])
    trainer.train()
    expected = ss.measure(copy.deepcopy(wrapped).merge_and_unload(), GIVEN["input_ids"])
    logged = [entry["sink/hidden_norm_ratio"] for entry in trainer.state.log_history if "sink/strongest" in entry]
    assert logged[-1] == pytest.approx(float(expected.hidden_norm_ratio().max()), rel=1e-4)


def test_tokens_that_an_adapter_learns_are_refused() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model: nn.Module = peft.get_peft_model(host("llama"), config)
    with pytest.raises(UnsupportedModelError, match="learns tokens in front of the prompt"):
        ss.measure(model, GIVEN)
