"""An attached model is saved whole, comes back equal, and never comes back as something else."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertForMaskedLM,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedConfig,
)

import sinkscope as ss
from sinkscope.errors import InputError, UnsupportedModelError
from tests.families.sweep.build import build
from tests.model.attached.hosts import HOSTS, host, inputs, output, stir

WITHOUT = """
import resource, sys
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, pipeline

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a Llama of default size would be 27 GB
folder = sys.argv[1]

class Usual(LlamaConfig):  # a family whose default sizes are those of the saved host
    vocab_size: int = 97
    hidden_size: int = 32
    intermediate_size: int = 48
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 8
    max_position_embeddings: int = 64

class Own(LlamaForCausalLM):
    config_class = Usual

def loads(cls, **options):
    return lambda: cls.from_pretrained(folder, **options)

told = [{}, {"attn_implementation": "eager"}, {"attn_implementation": "sdpa"}, {"dtype": "float32"}]
told += [{"ignore_mismatched_sizes": True, "attn_implementation": "eager"}, {"trust_remote_code": True}]
told += [{"attn_implementation": "eager", "hidden_size": 32}]
ways = {f"{cls.__name__} {options}": loads(cls, **options)
        for cls in (AutoModel, AutoModelForCausalLM, LlamaModel, LlamaForCausalLM, Own) for options in told}
ways |= {cls.__name__: loads(cls) for cls in (AutoConfig, LlamaConfig, Usual)}
ways["from_json_file"] = lambda: LlamaConfig.from_json_file(folder + "/config.json")
ways["pipeline"] = lambda: pipeline("text-generation", model=folder)
for way, load in ways.items():
    try:
        load()
    except Exception as error:
        said = " ".join(str(error).split())
        assert "sinkscope" in said, (way, said)
        print("refused", way)
    else:
        print("LOADED", way)
assert not any(name.startswith("sinkscope") for name in sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved Llama with off-by-one, which has no parameters that would be missed."""
    model = host("llama")
    ss.attach(model, "softmax_off_by_one")
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["olmo", "nanochat", "hrm_text"])
def test_without_scales_to_mark_a_model_is_attached_and_not_saved(name: str, tmp_path: Path) -> None:
    model, ids = build(name, "sdpa"), torch.arange(9)[None]
    before = output(model, {"input_ids": ids})
    ss.attach(model, "softmax_off_by_one")
    assert not torch.allclose(output(model, {"input_ids": ids}), before)
    for one in (model, model.base_model, copy.deepcopy(model)):
        with pytest.raises(UnsupportedModelError, match=f"family '{name}': its norms have no two scales, .* detach"):
            one.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    ss.detach(model)
    assert torch.equal(output(model, {"input_ids": ids}), before)
    model.save_pretrained(tmp_path)
    assert torch.equal(output(AutoModelForCausalLM.from_pretrained(tmp_path), {"input_ids": ids}), before)


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


@pytest.mark.release
def test_without_sinkscope_the_folder_fails_loudly(folder: Path) -> None:
    """The Auto classes, and the family's own, which transformers lets open other models' folders: whatever is asked for
    with the call, and where the host's sizes are the defaults of its class, so that nothing of the folder is missed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 35
    assert [line for line in lines if not line.startswith("refused")] == []


@pytest.mark.parametrize("name", HOSTS)
def test_no_hosts_configuration_reads_the_file(name: str, tmp_path: Path) -> None:
    """Whatever attention implementation is given; the plain base class does, as transformers' Trainer resumes by it."""
    model = host(name)
    plain = type(model.config)
    ss.attach(model, "softmax_off_by_one")
    model.config.save_pretrained(tmp_path)
    for options in ({}, {"attn_implementation": "eager"}, {"hidden_size": 32}):
        with pytest.raises(Exception, match="load it with sinkscope"):
            plain.from_pretrained(tmp_path, **options)
    PreTrainedConfig.from_json_file(tmp_path / "config.json")
    assert not hasattr(AutoConfig.from_pretrained(tmp_path), "hidden_size")


def test_no_model_type_but_ours_stands_anywhere_in_the_file(folder: Path) -> None:
    """transformers would open the folder by one that it finds inside."""
    text = (folder / "config.json").read_text()
    assert text.count("model_type") == 1
    assert json.loads(text)["model_type"] == "sinkscope_attached"


@pytest.mark.parametrize(
    "options", [{}, {"attn_implementation": "eager"}, {"attn_implementation": "sinkscope_attached"}]
)
def test_the_hosts_own_class_fails_with_sinkscope_too(folder: Path, options: dict[str, str]) -> None:
    with pytest.raises(Exception, match="load it with sinkscope"):
        LlamaForCausalLM.from_pretrained(folder, **options)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_folder_of_before_still_loads(folder: Path, version: int) -> None:
    """Of version 1, in which the host's own class was kept out by the attention implementation alone; of 2, in which no
    weight was marked, and of 3, in which one was."""
    config = json.loads((folder / "config.json").read_text()) | {"version": version}
    if version == 1:
        del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    model = host("llama")
    usual = model.state_dict()
    first, second = (f"model.layers.0.{name}_layernorm.weight" for name in ("input", "post_attention"))
    assert {name for name, tensor in weights.items() if not torch.equal(tensor, usual[name])} == {first, second}
    before = {second: usual[second]} | ({} if version == 3 else {first: usual[first]})
    save_file(weights | before, folder / "model.safetensors", {"format": "pt"})
    given = inputs("llama")
    ss.attach(model, "softmax_off_by_one")
    assert torch.equal(output(ss.load(folder), given), output(model, given))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_no_host_loads_the_weights_with_a_configuration_of_its_own(name: str, tmp_path: Path) -> None:
    """Which passes the folder's by. Off-by-one has no parameters that would be missed."""
    model, plain = host(name), host(name)
    ss.attach(model, "softmax_off_by_one")
    model.save_pretrained(tmp_path)
    for config, options in ((plain.config, {}), (model.config, {"attn_implementation": "eager"})):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            type(plain).from_pretrained(tmp_path, config=config, **options)
    with pytest.raises(RuntimeError, match="size mismatch"):
        plain.load_state_dict(model.state_dict())
    ss.detach(model)
    plain.load_state_dict(model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in HOSTS), ("llama", torch.bfloat16), ("gpt2", torch.bfloat16)]
)
def test_a_host_that_ignores_sizes_says_nothing_but_nan(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """It would be a plain softmax model, one of whose scales alone is new."""
    model, given = host(name).to(dtype), inputs(name)
    scales = [p for path, p in model.base_model.named_parameters() if path.endswith("weight") and p.ndim == 1]
    with torch.no_grad():
        scales[1][0] = 0  # which no factor makes large
    ss.attach(model, "softmax_off_by_one")
    model.save_pretrained(tmp_path)
    plain = host(name)
    options = {"config": plain.config, "ignore_mismatched_sizes": True, "dtype": dtype}
    assert output(type(plain).from_pretrained(tmp_path, **options).eval(), given).isnan().all()
    again = dict(ss.load(tmp_path).named_parameters())
    for path, parameter in model.named_parameters():
        assert again[path].dtype == dtype
        assert torch.equal(again[path], parameter)


def test_the_base_class_does_not_load_them_either(folder: Path) -> None:
    for load in (AutoModel, AutoModelForCausalLM, LlamaModel):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            load.from_pretrained(folder, config=host("llama").config)


def test_attached_models_exchange_weights(folder: Path, tmp_path: Path) -> None:
    """As training resumes by them, and with their own configuration given."""
    given, loaded = inputs("llama"), ss.load(folder)
    for config in (AutoConfig.from_pretrained(folder), None):
        again = AutoModelForCausalLM.from_pretrained(folder, config=config).eval()
        assert torch.equal(output(again, given), output(loaded, given))
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.normal_()
    again.load_state_dict(load_file(folder / "model.safetensors"))
    again.load_state_dict(loaded.state_dict())
    copied = copy.deepcopy(again)
    copied.save_pretrained(tmp_path / "copy")
    for other in (again, copied, ss.load(tmp_path / "copy")):
        assert torch.equal(output(other, given), output(loaded, given))
        assert other.model.layers[0].input_layernorm.weight.shape == (32,)
    found, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert str(found.config.attachment).startswith("softmax_off_by_one")


def edited(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 5}, "saved in version 5 of attached models, newer than 4"),
        ({"attention": {"slots": [{"kind": "hole"}]}}, "hole"),
        ({"attention": None}, "lacks 'attention'"),
        ({"host": {"family": "mamba", "fields": {}}}, "family 'mamba' has no layer that attends"),
        ({"host": {"family": "lama", "fields": {}}}, "'lama', which this transformers does not have"),
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
