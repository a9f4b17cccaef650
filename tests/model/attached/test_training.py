"""Attached models learn: the operation alone or with the rest, with checkpointing, compiled, and end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

import sinkscope as ss
from sinkscope.attention import AttentionSpec, HeadGate, ZeroSlot
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM
from tests.model.attached.hosts import HOSTS, host, inputs, output, stir
from tests.shapes import unchecked

GATED = AttentionSpec(slots=(ZeroSlot(),), output=(HeadGate(),))


@pytest.mark.parametrize("name", HOSTS)
def test_only_the_operation_learns(name: str) -> None:
    model = host(name)
    ss.attach(model, "gated_head")
    learning = ss.trainable_only(model, "operation")
    assert {path for path, p in model.named_parameters() if p.requires_grad} == set(learning)
    assert all(".operation.output_modules.0." in path for path in learning)
    output_of = model(**inputs(name))[0]
    output_of.square().mean().backward()
    assert all(bool(parameter.grad.any()) for parameter in learning.values())
    everything = ss.trainable_only(model, "everything")
    assert set(everything) == {path for path, p in model.named_parameters() if p.requires_grad}
    assert set(everything) > set(learning)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "gemma3_text"])
@pytest.mark.parametrize("operation", ["sink_logit", "gated_elementwise", "sigmoid"])
def test_bf16_autocast_without_a_cache(name: str, operation: str) -> None:
    """As `Trainer(bf16=True)` runs it: rotated queries and keys come in fp32, values in bf16."""
    model = host(name).train()
    ss.attach(model, operation, seed=0)
    whole = model(**inputs(name), use_cache=False)[0].detach()
    with torch.autocast("cpu", torch.bfloat16):
        short = model(**inputs(name), use_cache=False)[0].float()
    assert float((short - whole).detach().abs().mean()) < 0.03 * float(whole.abs().mean())
    short.square().mean().backward()
    assert all(bool(p.grad.any()) for path, p in model.named_parameters() if ".operation." in path)


def test_lab_models_have_operations_too_and_some_learn_nothing() -> None:
    lab = LabForCausalLM(LabConfig(hidden_size=16, num_hidden_layers=2, attention="sink_logit"))
    assert len(ss.trainable_only(lab, "operation")) == 2
    model = host("llama")
    ss.attach(model, "softmax_off_by_one")
    with pytest.raises(InputError, match="learns nothing"):
        ss.trainable_only(model, "operation")
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    found: list[dict[str, Tensor]] = []
    for checkpointing in (False, True):
        model = host("llama").train()
        ss.attach(model, "gated_elementwise", seed=0, start="as_is")
        if checkpointing:
            newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
            enable = model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable
            enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(**inputs("llama"), labels=inputs("llama")["input_ids"], use_cache=False).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], atol=1e-7, rtol=1e-5)


@pytest.mark.release
@unchecked
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_keeps_its_operation() -> None:
    """Also one that was compiled before the operation came, and it loses it again."""
    model, given = host("llama"), inputs("llama")
    plain, before = output(model, given), torch.compile(model, backend="eager")
    output(before, given)
    ss.attach(model, "sink_logit", start="as_is")
    stir(model)
    found, after = output(model, given), torch.compile(model, backend="eager")
    assert (found - plain).abs().max() > 1e-3
    for compiled in (before, after):
        assert (output(compiled, given) - found).abs().max() < 1e-5
    ss.detach(model)
    for compiled in (before, after):
        assert (output(compiled, given) - plain).abs().max() < 1e-5


def text(samples: int = 64, length: int = 24) -> list[dict[str, Tensor]]:
    """Counting upwards by three from anywhere, which a model learns in a few steps."""
    start = torch.randint(0, 96, (samples, 1), generator=torch.Generator().manual_seed(0))
    ids = (start + 3 * torch.arange(length)) % 96
    return [{"input_ids": row, "labels": row} for row in ids]


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        max_steps=30,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=5,
        save_steps=30,
        seed=0,
    )


@pytest.mark.slow
def test_a_llama_fine_tuned_with_a_gate_and_off_by_one(tmp_path: Path) -> None:
    """Attached, trained by transformers' Trainer, saved by it, loaded, generated from, measured."""
    model = host("llama")
    assert ss.attach(model, GATED, seed=0).changes == ("zero",)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=text())
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
    gate = model.model.layers[0].self_attn.operation.output_modules[0]
    assert bool(gate.weight.any())
    loaded = ss.load(tmp_path / "checkpoint-30")
    assert type(loaded) is LlamaForCausalLM
    given = {"input_ids": torch.stack([row["input_ids"] for row in text(4)])}
    assert torch.equal(output(loaded, given), output(model.eval(), given))
    prompt = given["input_ids"][:, :12]
    written = loaded.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert (written[:, 12:] == given["input_ids"][:, 12:18]).float().mean() > 0.7
    found = ss.measure(loaded, given, observers=[ss.SlotReceived()])
    assert 0 < float(found.data["slot_received"].mean()) < 1
