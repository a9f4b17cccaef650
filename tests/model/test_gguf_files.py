"""Tiny GGUF files, written as llama.cpp's converter writes them, compute what their source models compute."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.model import blueprint, load_tokenizer

WORDS = ["<unk>", "<bos>", "<eos>", "<eot>", *bytes_to_unicode().values(), "Ġa", "Ġb", "ab"]
MERGES = ["Ġ a", "Ġ b", "a b"]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(**changes: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, "head_dim": 8, "tie_word_embeddings": True, **changes}))


def qwen3() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(**SIZES, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    )


def gemma3() -> Gemma3ForCausalLM:
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    sizes = SIZES | {"num_hidden_layers": 7}
    rope = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**sizes, head_dim=16, query_pre_attn_scalar=16, sliding_window=4, rope_parameters=rope)
    )


MODELS: dict[str, Callable[[], PreTrainedModel]] = {"llama": llama, "qwen3": qwen3, "gemma3": gemma3}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    """Norms too, so that a norm stored with another offset is noticed; values that half precision holds exactly."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((torch.randn_like(weight) * 0.3).half().float())
    return model.eval()


def write(
    path: Path,
    architecture: str,
    model: PreTrainedModel,
    *,
    half: bool = False,
    blocks: gguf.GGMLQuantizationType | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    set_up: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    tokenizer: bool = True,
) -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture == "llama":
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(WORDS)
        writer.add_token_types([3] * 4 + [1] * (len(WORDS) - 4))
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(3)
        writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    set_up(writer)
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    tied = config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        array = weight.numpy()
        if architecture == "gemma3" and "norm" in name:
            array = array + 1
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if architecture == "llama" and part in name:  # pairs of neighbors are rotated there, halves here
                array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        stem, _, suffix = name.rpartition(".")
        target = f"{names.get_name(stem)}.{suffix}"
        if blocks and "blk." in target and array.ndim > 1 and array.shape[-1] % 32 == 0:
            writer.add_tensor(target, gguf.quantize(np.ascontiguousarray(array), blocks), raw_dtype=blocks)
        elif target not in drop:
            writer.add_tensor(
                target, np.ascontiguousarray(array.astype(np.float16 if half and array.ndim > 1 else np.float32))
            )
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("half", [False, True], ids=["F32", "F16"])
@pytest.mark.parametrize("architecture", MODELS)
def test_logits_are_those_of_the_source(tmp_path: Path, architecture: str, half: bool):
    model = randomized(MODELS[architecture]())
    bpe = architecture != "gemma3"  # whose files have SentencePiece's
    loaded = ss.load(write(tmp_path / "model.gguf", architecture, model, half=half, tokenizer=bpe))
    ids = torch.randint(0, len(WORDS), (2, 24))
    expected = model(ids).logits
    assert expected.std() > 0.1
    assert torch.allclose(loaded(ids).logits, expected, atol=2e-4)


def test_llama_3_scaling_is_taken_from_its_divisors(tmp_path: Path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model = randomized(llama(rope_parameters=LLAMA3, head_dim=32))
    plain = 1 / 500000.0 ** (torch.arange(16) / 16)
    divisors = (plain / ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]).numpy()
    assert divisors.min() == pytest.approx(1)
    assert divisors.max() == pytest.approx(8)
    loaded = ss.load(
        write(tmp_path / "a.gguf", "llama", model, extra={"rope_freqs.weight": divisors.astype(np.float32)})
    )
    ids = torch.randint(0, len(WORDS), (1, 24))
    assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=2e-4)
    divisors[3] = 2.0
    path = write(tmp_path / "b.gguf", "llama", model, extra={"rope_freqs.weight": divisors.astype(np.float32)})
    with pytest.raises(InputError, match="not Llama 3's"):
        ss.load(path)


def scaled(writer: gguf.GGUFWriter, kind: gguf.RopeScalingType | None, share: float | None) -> None:
    if kind is not None:
        writer.add_rope_scaling_type(kind)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(16)
    if share is not None:
        writer.add_rope_scaling_attn_factors(share)


@pytest.mark.parametrize("share", [None, 1.5])
def test_yarn_scales_cosines_and_sines_by_its_own_factor_and_the_files(tmp_path: Path, share: float | None):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    model = randomized(llama(rope_parameters=yarn | {"attention_factor": (share or 1) * (1 + 0.1 * math.log(4))}))
    set_up = lambda writer: scaled(writer, gguf.RopeScalingType.YARN, share)  # noqa: E731
    loaded = ss.load(write(tmp_path / "model.gguf", "llama", model, set_up=set_up))
    ids = torch.randint(0, len(WORDS), (1, 24))
    assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=2e-4)


def test_positions_are_scaled_linearly_where_the_file_names_no_type(tmp_path: Path):
    model = randomized(llama())
    loaded = ss.load(write(tmp_path / "model.gguf", "llama", model, set_up=lambda writer: scaled(writer, None, None)))
    assert loaded.config.rope_parameters["rope_type"] == "linear"
    assert loaded.config.rope_parameters["factor"] == 4
    path = write(tmp_path / "odd.gguf", "llama", model, set_up=lambda writer: scaled(writer, None, 1.5))
    with pytest.raises(InputError, match=r"attn_factor = 1.5, which is read only where all positions are scaled by"):
        ss.load(path)


@pytest.mark.filterwarnings("ignore:.* its tokenizer cannot be read")  # by transformers 5.17, and it is not used here
def test_layers_with_a_window_keep_their_positions_under_yarn(tmp_path: Path):
    """As in llama.cpp. There the file's own factor scales their cosines too, which is refused."""
    model = gemma3()
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
    model.config.rope_parameters["full_attention"] = yarn
    model = randomized(type(model)(model.config))
    for share, name in ((None, "model.gguf"), (1.5, "odd.gguf")):
        set_up = lambda writer, share=share: scaled(writer, gguf.RopeScalingType.YARN, share)  # noqa: E731
        write(tmp_path / name, "gemma3", model, set_up=set_up)
    ids = torch.randint(0, len(WORDS), (1, 24))
    assert torch.allclose(ss.load(tmp_path / "model.gguf")(ids).logits, model(ids).logits, atol=2e-4)
    with pytest.raises(InputError, match=r"attn_factor = 1.5, which is read only where all positions are scaled by"):
        ss.load(tmp_path / "odd.gguf")


def test_a_loaded_model_behaves_as_a_folder_does(tmp_path: Path, capfd: pytest.CaptureFixture, own_cache: Path):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama(tie_word_embeddings=False)))
    model, tokenizer = ss.load(path), load_tokenizer(path)
    said = capfd.readouterr().err
    assert "Writing" not in said
    assert said.count(str(own_cache / "gguf")) == 2  # where it is, and what to delete
    renamed = path.rename(tmp_path / "other [1].gguf")
    ss.load(renamed)
    renamed.rename(path)
    ss.load(path)
    assert "dequantized" not in capfd.readouterr().err
    assert model.config.name_or_path == model.name_or_path == tokenizer.name_or_path == str(path)
    assert not hasattr(model.config, "quantization_config")
    assert model.generation_config.eos_token_id == [2, 3]
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    ids = torch.randint(0, len(WORDS), (1, 8))
    assert torch.equal(ss.load(tmp_path / "saved")(ids).logits, model(ids).logits)
    assert load_tokenizer(tmp_path / "saved")("ab").input_ids == tokenizer("ab").input_ids == [len(WORDS) - 1]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "<bos>ab"


@pytest.mark.parametrize("tied", [True, False])
def test_what_it_would_take_is_known_without_writing_its_weights(tmp_path: Path, own_cache: Path, tied: bool):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama(tie_word_embeddings=tied)))
    planned = blueprint(path)
    assert not own_cache.exists()
    loaded = ss.load(path)
    shapes = [{name: tuple(weight.shape) for name, weight in model.named_parameters()} for model in (planned, loaded)]
    assert type(planned) is type(loaded)
    assert shapes[0] == shapes[1]
    assert planned.config.rope_parameters == loaded.config.rope_parameters


def test_the_types_and_the_name_in_the_file_come_with_the_model(tmp_path: Path):
    def named(writer: gguf.GGUFWriter) -> None:
        writer.add_name("Tiny Llama 2 layers")
        writer.add_basename("tiny")

    path = tmp_path / "model.gguf"
    write(path, "llama", randomized(llama()), blocks=gguf.GGMLQuantizationType.Q4_1, set_up=named)
    for _ in range(2):  # dequantized, then from the cache
        about = ss.load(path).gguf
        assert (about["name"], about["basename"]) == ("Tiny Llama 2 layers", "tiny")
        # down_proj has 48 inputs, which make no blocks of 32. Embeddings and norms are not counted.
        assert about["types"] == {"Q4_1": 2 * 32 * (32 + 2 * 16 + 32 + 2 * 48), "F32": 2 * 32 * 48}
    ss.load(path).save_pretrained(tmp_path / "saved")
    assert not hasattr(ss.load(tmp_path / "saved"), "gguf")  # they may have been changed since


def test_another_file_of_the_same_name_is_read_anew(tmp_path: Path):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()))
    first = ss.load(path).lm_head.weight.clone()
    write(path, "llama", randomized(llama()))
    assert not torch.equal(ss.load(path).lm_head.weight, first)


@pytest.mark.parametrize(
    ("pre", "flag", "adds"),
    [("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_a_bos_is_added_where_the_file_says_so_or_llama_cpp_would(
    tmp_path: Path, pre: str, flag: bool | None, adds: bool
):
    def set_up(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_pre(pre)
        if flag is not None:
            writer.add_add_bos_token(flag)

    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), set_up=set_up)
    assert load_tokenizer(path)("ab").input_ids == [1] * adds + [len(WORDS) - 1]


def test_an_end_is_added_where_the_file_says_so(tmp_path: Path):
    set_up = lambda writer: writer.add_add_eos_token(True)  # noqa: E731
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), set_up=set_up)
    assert load_tokenizer(path)("ab").input_ids == [len(WORDS) - 1, 2]


def test_a_file_without_a_tokenizer_has_a_model(tmp_path: Path):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), tokenizer=False)
    assert ss.load(path).config.vocab_size == len(WORDS)
    with pytest.raises(InputError, match="no tokenizer for model"):
        load_tokenizer(path)


def split(writer: gguf.GGUFWriter) -> None:
    writer.add_uint16("split.count", 3)


def adapter(writer: gguf.GGUFWriter) -> None:
    writer.add_type("adapter")


def odd_scaling(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)


@pytest.mark.parametrize(
    ("set_up", "said"),
    [(split, r"one of 3 parts: join them with"), (adapter, "an adapter"), (odd_scaling, "positions by 'longrope'")],
)
def test_what_a_file_is_instead_is_said(tmp_path: Path, set_up: Callable, said: str, own_cache: Path):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), set_up=set_up)
    with pytest.raises(InputError, match=said):
        ss.load(path)
    assert not list(own_cache.rglob("*.safetensors"))


def test_an_architecture_that_is_not_known_is_refused(tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "perceiver")
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=r"architecture 'perceiver'.* load the folder or hub id"):
        ss.load(tmp_path / "model.gguf")


def test_a_tensor_without_a_place_is_refused(tmp_path: Path):
    """transformers drops it without a word: a bias that its configuration cannot express."""
    bias = {"blk.0.attn_q.bias": np.ones(32, np.float32)}
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), extra=bias)
    with pytest.raises(InputError, match="it would compute something else"):
        ss.load(path)


def test_a_weight_that_the_file_lacks_is_refused(tmp_path: Path):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), drop=("blk.1.ffn_up.weight",))
    with pytest.raises(InputError, match="lacks weights of LlamaForCausalLM"):
        ss.load(path)


def test_a_setting_that_is_not_read_is_said(tmp_path: Path):
    set_up = lambda writer: writer.add_logit_scale(0.5)  # noqa: E731
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()), set_up=set_up)
    with pytest.warns(UserWarning, match="sets logit_scale, which transformers does not read"):
        ss.load(path)


def test_a_type_that_cannot_be_dequantized_is_named(tmp_path: Path):
    blocks = np.zeros((2, 256 // 32 * 18), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = (tmp_path / "model.gguf").read_bytes()
    name = b"token_embd.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions and both of them
    assert struct.unpack_from("<I", whole, at) == (gguf.GGMLQuantizationType.Q4_0,)
    # A type of blocks of the same size that has no values: 8-bit intermediate sums.
    for kind, said in ((gguf.GGMLQuantizationType.Q8_K, "Q8_K.* llama-quantize"), (200, "cannot read GGUF file")):
        (tmp_path / "other.gguf").write_bytes(whole[:at] + struct.pack("<I", kind) + whole[at + 4 :] + bytes(4096))
        with pytest.raises(InputError, match=said):
            ss.load(tmp_path / "other.gguf")


@pytest.mark.parametrize("content", [b"", b"PK\3\4 a zip", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 64])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InputError, match=r"is not a GGUF file|cannot read GGUF file"):
        ss.load(tmp_path / "model.gguf")


def test_a_list_longer_than_its_file_is_refused_before_it_is_read(tmp_path: Path):
    # one key, "a", with a list (9) of a million bytes (0), of which there are none
    header = struct.pack("<4sIQQQcIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 0, 10**6)
    (tmp_path / "model.gguf").write_bytes(header)
    with pytest.raises(InputError, match="announces a list of 1,000,000 items in a file of 49 bytes"):
        ss.load(tmp_path / "model.gguf")


def test_a_file_that_git_did_not_fetch_is_said(tmp_path: Path):
    (tmp_path / "model.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
    with pytest.raises(InputError, match="is a Git LFS pointer, not the model: fetch it with  git lfs pull"):
        ss.load(tmp_path / "model.gguf")


@pytest.mark.parametrize("share", [0.005, 0.5, 0.9])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, share: float):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"cannot read GGUF file .*: it is damaged or ends too early, so download it"):
        ss.load(path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "model.gguf", "llama", randomized(llama()))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r'pip install "sinkscope\[gguf\]"'):
        ss.load(path)


def test_a_path_that_leads_nowhere_names_its_neighbor(tmp_path: Path):
    write(tmp_path / "model.gguf", "llama", randomized(llama()))
    with pytest.raises(InputError, match=r"no such file: .*did you mean '.*model\.gguf'"):
        ss.load(str(tmp_path / "modle.gguf"))
    with pytest.raises(InputError, match=r"config\.json is missing; did you mean '.*model\.gguf'"):
        ss.load(tmp_path)


def test_a_large_vocabulary_is_read_as_the_package_reads_it(tmp_path: Path):
    """The fast path for lists of strings gives what the slow one gives."""
    from sinkscope.model.gguf_files import _reader

    path = write(tmp_path / "model.gguf", "llama", randomized(llama()))
    fast, slow = _reader()(path), gguf.GGUFReader(path)
    assert fast.fields.keys() == slow.fields.keys()
    for name, field in slow.fields.items():
        assert fast.fields[name].contents() == field.contents(), name
        assert [part.tobytes() for part in fast.fields[name].parts] == [part.tobytes() for part in field.parts], name
    assert math.prod(fast.tensors[0].data.shape) == math.prod(slow.tensors[0].data.shape)
