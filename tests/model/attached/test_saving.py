"""An attached model is saved whole, comes back equal, and never comes back as something else."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertForMaskedLM,
    LlamaForCausalLM,
    LlamaModel,
)

import sinkscope as ss
from sinkscope.errors import InputError
from tests.model.attached.hosts import HOSTS, host, inputs, output, stir

WITHOUT = """
import sys
from transformers import AutoModelForCausalLM, LlamaForCausalLM
for cls in (AutoModelForCausalLM, LlamaForCausalLM):
    try:
        cls.from_pretrained(sys.argv[1])
    except ValueError as error:
        print(cls.__name__, str(error).splitlines()[0])
assert not any(name.startswith("sinkscope") for name in sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved Llama with off-by-one, which has no parameters that would be missed."""
    model = host("llama")
    ss.attach(model, "softmax_off_by_one")
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", HOSTS)
def test_every_family_comes_back_equal(name: str, tmp_path: Path) -> None:
    model, given = host(name), inputs(name)
    ss.attach(model, "gated_elementwise", start="as_is")
    stir(model)
    model.save_pretrained(tmp_path)
    loaded = ss.load(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(output(loaded, given), output(model, given))
    ss.detach(loaded)
    plain = host(name)
    loaded.set_attn_implementation(plain.config._attn_implementation)
    assert type(loaded.config) is type(plain.config)
    assert torch.equal(output(loaded, given), output(plain, given))


def test_the_auto_classes_give_the_hosts_class(folder: Path) -> None:
    given = inputs("llama")
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(loaded) is LlamaForCausalLM
    assert torch.equal(output(loaded, given), output(ss.load(folder), given))
    tokens = loaded.generate(given["input_ids"][:1], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert tokens.shape[1] == given["input_ids"].shape[1] + 3
    assert type(AutoModel.from_pretrained(folder)) is LlamaModel
    again = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    assert str(again.config.attachment).startswith("softmax_off_by_one")
    with pytest.raises(InputError, match="family 'llama' has no AutoModelForMaskedLM"):
        AutoModelForMaskedLM.from_pretrained(folder)


def test_parts_precision_and_a_second_saving(tmp_path: Path) -> None:
    model = host("llama").to(torch.bfloat16)
    ss.attach(model, "sink_logit")
    assert model.model.layers[0].self_attn.operation.slot_modules[0].logit.dtype == torch.bfloat16
    model.model.save_pretrained(tmp_path / "part")
    part = AutoModel.from_pretrained(tmp_path / "part")
    assert (type(part), part.dtype, part.config.attachment.name) == (LlamaModel, torch.bfloat16, "sink_logit")
    part.save_pretrained(tmp_path / "again")
    wide = ss.load(tmp_path / "again", dtype="float32")
    assert (wide.dtype, wide.config.attachment.spec) == (torch.float32, model.config.attachment.spec)


def test_a_masked_language_model_comes_back(tmp_path: Path) -> None:
    model = host("bert")
    ss.attach(model, "kv_bias")
    model.save_pretrained(tmp_path)
    assert type(ss.load(tmp_path)) is BertForMaskedLM


def test_a_copy_is_a_model_of_its_own() -> None:
    model, given = host("llama"), inputs("llama")
    ss.attach(model, "gated_value", start="as_is")
    before, copied = output(model, given), copy.deepcopy(model)
    stir(copied)
    assert torch.equal(output(model, given), before)
    assert not torch.equal(output(copied, given), before)
    ss.detach(copied)
    assert torch.equal(output(copied, given), output(host("llama"), given))
    assert torch.equal(output(model, given), before)


@pytest.mark.slow
def test_without_sinkscope_the_folder_fails_loudly(folder: Path) -> None:
    """Neither the Auto classes nor the family's own class, which transformers lets open other models' folders."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    auto, own = done.stdout.splitlines()
    assert "model type `sinkscope_attached`" in auto
    assert "needs_sinkscope" in own


def test_no_model_type_but_ours_stands_anywhere_in_the_file(folder: Path) -> None:
    """transformers would open the folder by one that it finds inside."""
    text = (folder / "config.json").read_text()
    assert text.count("model_type") == 1
    assert json.loads(text)["model_type"] == "sinkscope_attached"


def test_the_hosts_own_class_fails_with_sinkscope_too(folder: Path) -> None:
    with pytest.raises(ValueError, match="needs_sinkscope"):
        LlamaForCausalLM.from_pretrained(folder)


def edited(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "saved in version 2 of attached models, newer than 1"),
        ({"attention": {"slots": [{"kind": "hole"}]}}, "hole"),
        ({"attention": None}, "lacks 'attention'"),
        ({"host": {"family": "mamba", "fields": {}}}, "family 'mamba': supported are llama"),
        ({"host": {"family": "llama"}}, "lacks 'fields'"),
    ],
)
def test_a_folder_that_cannot_be_understood_is_an_input_error(
    folder: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        ss.load(edited(folder, **changes))
    assert "\n" not in str(caught.value)


def test_the_attention_implementation_is_not_a_choice(folder: Path) -> None:
    for load in (
        lambda: ss.load(folder, attn="sdpa"),
        lambda: AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager"),
    ):
        with pytest.raises(InputError, match="by its operation: leave the attention implementation"):
            load()
