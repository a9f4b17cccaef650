"""Loading: the right class for the weights, and one clear line where there is nothing to load."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, BertModel, T5Config, T5ForConditionalGeneration

from sinkscope.errors import InputError
from sinkscope.model import SHIPPED, load, load_tokenizer
from tests.families.registry import FAMILIES

BERT = BertConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
T5 = T5Config(vocab_size=31, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)


def test_a_model_comes_back_as_what_it_was_saved_as(tmp_path, tiny_llama):
    models = [tiny_llama, BertForMaskedLM(BERT), BertModel(BERT), T5ForConditionalGeneration(T5)]
    for index, model in enumerate(models):
        folder = tmp_path / str(index)
        model.save_pretrained(folder)
        loaded = load(folder)
        assert type(loaded) is type(model)
        assert not loaded.training
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name


def test_weights_that_git_did_not_fetch_are_said(tmp_path, tiny_llama):
    tiny_llama.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
    with pytest.raises(InputError, match=r"model\.safetensors is a Git LFS pointer.* git lfs pull"):
        load(tmp_path)


def test_precision_and_attention_on_request(tmp_path, tiny_llama):
    tiny_llama.save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype="bfloat16", attn="eager")
    assert loaded.dtype == torch.bfloat16
    assert loaded.config._attn_implementation == "eager"


def test_unknown_names_suggest_a_shipped_one(monkeypatch, tmp_path):
    monkeypatch.setitem(SHIPPED, "nano", tmp_path)
    with pytest.raises(InputError, match="unknown model 'nanno': did you mean 'nano'"):
        load("nanno")


@pytest.mark.parametrize("below", ["", "model"])
def test_a_folder_with_the_name_of_a_shipped_model(tmp_path, tiny_llama, monkeypatch, below):
    """Neither is taken silently; a path means the folder."""
    monkeypatch.chdir(tmp_path)
    Path("nano").mkdir()
    assert "Lab" in type(load("nano")).__name__
    deepcopy(tiny_llama).bfloat16().save_pretrained(Path("nano", below))
    with pytest.raises(InputError, match=r"shipped model and a folder here: write '\./nano'"):
        load("nano")
    for name in ("./nano", Path("nano")):
        assert (type(loaded := load(name)), loaded.dtype) == (type(tiny_llama), torch.bfloat16)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder.mkdir(), "config.json is missing"),
        (lambda folder: folder.write_text("x"), "is a file"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{")), "cannot load model"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text('{"model_type": "nope"}')), "cannot load"),
    ],
)
def test_folders_that_hold_no_model(tmp_path, make, words):
    folder = tmp_path / "model"
    make(folder)
    with pytest.raises(InputError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "changed", "words"),
    [
        ("config.json", {"hidden_size": "x"}, "hidden_size"),
        ("config.json", {"num_attention_heads": 0}, "cannot load model"),
        ("config.json", {"num_hidden_layers": 7}, r"its weights lack model\.layers\.\d\..* in all"),
        ("config.json", {"model_type": "sinkscope_attached", "host": [1]}, "cannot load model"),
        ("config.json", {"model_type": "sinkscope_attached", "version": "x"}, "cannot load model"),
        ("generation_config.json", [], "cannot load model"),
        ("config.json", {"rope_scaling": {"rope_type": "spiral"}}, r"cannot load model '.*': there is no 'spiral'$"),
        ("gguf.json", None, "cannot load model"),
    ],
)
def test_files_that_do_not_fit_each_other(tmp_path, tiny_llama, file, changed, words):
    tiny_llama.save_pretrained(tmp_path)
    place = tmp_path / file
    if isinstance(changed, dict):
        changed = json.loads(place.read_text()) | changed
    place.write_text("{" if changed is None else json.dumps(changed))
    with pytest.raises(InputError, match=words) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_none(tmp_path, tiny_llama, device):
    tiny_llama.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"device '{device}' cannot be used"):
        load(tmp_path, device=device)


def test_corrupted_weights(tmp_path, tiny_llama):
    tiny_llama.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(InputError, match="cannot load model"):
        load(tmp_path)


def test_no_tokenizer(tmp_path, tiny_llama):
    """Of transformers' list of what it tried, the line above it would stand alone."""
    tiny_llama.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no tokenizer for model .*: its files are missing .*next to the weights\)$"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [("tokenizer.json", '{"added_tokens": [], "model": {"type": "New"}}'), ("tokenizer_config.json", "[]")],
)
def test_a_tokenizer_in_a_format_that_is_not_known_is_one_line(tmp_path, tiny_llama, file, text):
    """The tokenizers library raises a plain Exception."""
    tiny_llama.save_pretrained(tmp_path)
    load_tokenizer("nano").save_pretrained(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match="no tokenizer for model"):
        load_tokenizer(tmp_path)


def test_a_made_up_tokenizer_is_none(tmp_path):
    """Where its files are missing, transformers builds some families' tokenizers with special tokens alone."""
    BertForMaskedLM(BERT).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no tokenizer for model .*: it comes without a vocabulary"):
        load_tokenizer(tmp_path)


def test_a_device_map_takes_the_place_of_a_device(tmp_path, tiny_llama):
    tiny_llama.save_pretrained(tmp_path)
    assert load(tmp_path, device_map={"": "cpu"}).device.type == "cpu"
    with pytest.raises(InputError, match="cannot load model"):
        load(tmp_path, device_map="no-such-strategy")
    with pytest.raises(InputError, match="device and device_map exclude each other"):
        load(tmp_path, device="cpu", device_map="auto")


def test_the_hub_out_of_reach():
    with pytest.raises(InputError, match="cannot load model 'someone/something'"):
        load("someone/something")


@pytest.mark.parametrize("name", ["./absent", "../absent", "/absent", "a/b/c", "~/absent-folder", Path("absent")])
def test_a_path_that_leads_nowhere_is_no_hub_id(name: str | Path) -> None:
    for wrong in (load, load_tokenizer):
        with pytest.raises(InputError, match=f"no such folder: '{name}'"):
            wrong(name)


def test_the_folder_beside_it_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "my-llama").mkdir()
    with pytest.raises(InputError, match=r"did you mean '.*/my-llama'\?"):
        load(tmp_path / "my-lama")


@pytest.mark.slow
def test_speech_and_image_models_keep_their_heads(tmp_path: Path) -> None:
    for name in ("whisper", "llava"):
        model = FAMILIES[name].build()
        model.save_pretrained(tmp_path / name)
        assert type(load(tmp_path / name)) is type(model)
    for name, head in (("vit", "ViTForImageClassification"), ("wav2vec2", "Wav2Vec2ForCTC")):
        getattr(transformers, head)(FAMILIES[name].build().config).save_pretrained(tmp_path / head)
        assert type(load(tmp_path / head)).__name__ == head
    bare = FAMILIES["vit"].build()
    bare.save_pretrained(tmp_path / "bare")
    assert type(load(tmp_path / "bare")) is type(bare)


def test_a_model_with_code_of_its_own_has_the_head_that_it_names(tmp_path, tiny_llama):
    """Its family is in no table of transformers, and it need not name a class without a head."""
    tiny_llama.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "unheard-of", "architectures": ["MineForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'unheard-of'\n\n\n"
        "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    loaded = load(tmp_path, trust_remote_code=True)
    assert type(loaded).__name__ == "MineForCausalLM"
    ids = torch.arange(8)[None]
    assert torch.equal(loaded(ids).logits, tiny_llama.eval()(ids).logits)
    with pytest.raises(InputError, match="custom code"):
        load(tmp_path)
    # Saved without the head that the family has.
    config |= {"architectures": ["MineModel"]}
    config["auto_map"] |= {"AutoModel": "mine.MineModel"}
    tiny_llama.model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "mine.py").open("a") as code:
        code.write("\n\nfrom transformers import LlamaModel\n\n\n")
        code.write("class MineModel(LlamaModel):\n    config_class = MineConfig\n")
    assert type(load(tmp_path, trust_remote_code=True)).__name__ == "MineModel"


def test_a_tokenizer_that_git_did_not_fetch_is_said(tmp_path):
    nano = SHIPPED["nano"]
    for file in nano.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
    with pytest.raises(InputError, match=r"tokenizer\.json is a Git LFS pointer.* git lfs pull"):
        load_tokenizer(tmp_path)


def test_a_misspelled_file_is_found_here(tmp_path, monkeypatch):
    (tmp_path / "mine.gguf").touch()
    (tmp_path / "their").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"did you mean 'mine\.gguf'"):
        load("mine.ggu")
    with pytest.raises(InputError, match="choose from nano") as caught:
        load("theirs")
    assert "'their'" not in str(caught.value)  # a folder without a model


def test_what_git_did_not_fetch_is_not_blamed_for_something_else(tmp_path, tiny_llama):
    tiny_llama.save_pretrained(tmp_path)
    (tmp_path / "old.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
    (tmp_path / "a.json").mkdir()
    with pytest.raises(InputError, match="no tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "LFS" not in str(caught.value)
    assert type(load(tmp_path)) is type(tiny_llama)
