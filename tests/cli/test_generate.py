from __future__ import annotations

import itertools

import pytest
import torch

import sinkscope as ss
from sinkscope.cli.writing import tokens
from sinkscope.cli.writing.tokens import Decoded
from sinkscope.caches.memory import held_bytes
from sinkscope.model import load_tokenizer
from sinkscope.quantization import FirstTokens, Grid, quantized_cache

STREAM = ("--stream", "--sinks", 2, "--window", 6)


@pytest.mark.slow
def test_what_streams_is_what_generate_writes(sinkscope):
    """Greedy text of `generate` with a cache that read the prompt strictly."""
    answer = sinkscope("generate", "nano", "--prompt", "import os", *STREAM, "--max-tokens", 30, "--temperature", 0)
    assert answer.code == 0
    model, tokenizer = ss.load("nano"), load_tokenizer("nano")
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer("import os", add_special_tokens=False)["input_ids"]]])
    cache = ss.StreamingCache(model, 2, 6)
    cache.prefill(model, ids)
    out = model.generate(ids, past_key_values=cache, do_sample=False, max_new_tokens=30, min_new_tokens=30)
    assert answer.out == tokenizer.decode(out[0, ids.shape[1] :]) + "\n"
    assert "30 tokens" in answer.err
    assert "cache 0." in answer.err


@pytest.mark.slow
def test_json_is_alone_on_stdout(sinkscope):
    answer = sinkscope("generate", "nano", "--prompt", "def", *STREAM, "--max-tokens", 60, "--json")
    found = answer.json
    assert found["stream"] == {"sinks": 2, "window": 6, "distance": "cache"}
    assert found["tokens"] == 60
    assert found["seen"] == found["prompt_tokens"] + 59
    assert found["cache_bytes"] <= 4 * 4 * 2 * 4 * 32 * (8 + 64 + 2) * 2
    assert found["stopped"] == "written"
    assert len(found["text"]) > 60


@pytest.mark.slow
def test_a_quantized_cache_writes_what_generate_writes_and_holds_less(sinkscope):
    """Greedy text of `generate` with a cache of the same scheme; the prompt's last token is read alone."""
    prompt, options = "import os\n" * 12, ("--max-tokens", 40, "--temperature", 0, "--json")
    found = sinkscope(
        "generate", "nano", "--prompt", prompt, "--cache", "kv2-kivi", "--spare", "first:1", *options
    ).json
    full = sinkscope("generate", "nano", "--prompt", prompt, *options).json
    assert (found["cache"], found["spare"], full["cache"]) == ("kv2-kivi", "first:1", "full")
    assert found["cache_bytes"] < 0.6 * full["cache_bytes"]
    model, tokenizer = ss.load("nano"), load_tokenizer("nano")
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]])
    cache = quantized_cache(model, Grid(2, "channel", group=32), Grid(2), FirstTokens(1))
    with torch.no_grad():
        model(ids[:, :-1], past_key_values=cache)
    out = model.generate(ids, past_key_values=cache, do_sample=False, max_new_tokens=found["tokens"])
    assert found["text"] == tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert found["cache_bytes"] == held_bytes(cache)


def test_an_interrupt_is_the_way_to_end(sinkscope, monkeypatch):
    def interrupted(*args):
        yield from itertools.islice(itertools.repeat(300), 12)
        raise KeyboardInterrupt

    monkeypatch.setattr(tokens, "written", interrupted)
    answer = sinkscope("generate", "nano", "--prompt", "def", *STREAM)
    assert answer.code == 0
    assert answer.err.splitlines()[-1].startswith("interrupted: 12 tokens")
    assert answer.out.endswith("\n")


def test_the_same_seed_writes_the_same(sinkscope):
    def written(seed: int) -> str:
        return sinkscope("generate", "nano", "--prompt", "def", "--max-tokens", 12, "--seed", seed).out

    assert written(3) == written(3) != written(4)


def test_characters_wait_until_they_are_whole():
    tokenizer = load_tokenizer("nano")
    text = "def naïve(x): # → 日本 ✓\n    return x"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoded = Decoded(tokenizer, [])
    parts = [decoded.add(token) for token in ids]
    assert "".join(parts) == text
    assert "" in parts
    assert "�" not in "".join(parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", "def", "--max-tokens", 1000), "the model has positions for 128: write fewer, or --stream"),
        (("--stream", "--window", 0), "--window"),
        (("--stream", "--distance", "none"), "--distance"),
        (("--prompt", "def", "--max-tokens", 0), "--max-tokens"),
        (("--stream", "--cache", "kv4-kivi"), "choose one"),
        (("--prompt", "def", "--cache", "kv4-kiwi"), "did you mean 'kv4-kivi'"),
        (("--prompt", "def", "--cache", "kv4-head"), "only simulated"),
        (("--prompt", "def", "--cache", "kv4-kivi", "--spare", "first:0"), "first:N with N of at least 1"),
        (("--prompt", "def", "--cache", "w8a8-token"), "not about caches"),
        (("--prompt", "def", "--spare", "measured"), "goes with a quantized --cache"),
    ],
)
def test_bad_input_is_one_line(sinkscope, options, message):
    assert message in sinkscope("generate", "nano", *options).error


def test_a_model_that_cannot_stream_is_refused(sinkscope, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=2048, n_embd=32, n_layer=1, n_head=2, n_positions=64)).save_pretrained(
        tmp_path
    )
    load_tokenizer("nano").save_pretrained(tmp_path)
    assert "absolute positions" in sinkscope("generate", tmp_path, "--prompt", "def", *STREAM).error
