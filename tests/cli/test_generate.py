from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

import sinkscope as ss
from sinkscope.caches.sizes import held_bytes
from sinkscope.cli import generate
from sinkscope.cli.generate import Decoder, Writer
from sinkscope.model import load_tokenizer
from sinkscope.quantization import Grid, quantized_cache
from sinkscope.sinks import First
from tests.families.registry import FAMILIES

STREAM = ("--stream", "--sinks", 2, "--window", 6)
GREEDY = ("--temperature", 0)


@pytest.mark.slow
def test_what_streams_is_what_generate_writes(sinkscope):
    """Greedy text of `generate` with a cache that read the prompt strictly."""
    answer = sinkscope("generate", "nano", "--prompt", "import os", *STREAM, "--max-tokens", 30, *GREEDY, "--endless")
    assert answer.code == 0
    model, tokenizer = ss.load("nano"), load_tokenizer("nano")
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer("import os", add_special_tokens=False)["input_ids"]]])
    cache = ss.StreamingCache(model, 2, 6)
    cache.prefill(model, ids)
    out = model.generate(ids, past_key_values=cache, do_sample=False, max_new_tokens=30, min_new_tokens=30)
    assert answer.out == tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True) + "\n"
    assert "30 tokens" in answer.err
    assert "cache 0." in answer.err


@pytest.mark.slow
def test_json_is_alone_on_stdout(sinkscope):
    answer = sinkscope("generate", "nano", "--prompt", "def", *STREAM, "--max-tokens", 60, "--endless", "--json")
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
        "generate", "nano", "--prompt", prompt, "--cache", "kv2-kivi", "--protect", "first:1", *options
    ).json
    full = sinkscope("generate", "nano", "--prompt", prompt, *options).json
    assert (found["cache"], found["protect"], full["cache"]) == ("kv2-kivi", "first:1", "full")
    assert found["cache_bytes"] < 0.6 * full["cache_bytes"]
    model, tokenizer = ss.load("nano"), load_tokenizer("nano")
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]])
    cache = quantized_cache(model, Grid(2, "channel", group=32), Grid(2), First(1))
    with torch.no_grad():
        model(ids[:, :-1], past_key_values=cache)
    out = model.generate(ids, past_key_values=cache, do_sample=False, max_new_tokens=found["tokens"])
    assert found["text"] == tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert found["cache_bytes"] == held_bytes(cache)


def test_an_interrupt_is_the_way_to_end(sinkscope, monkeypatch):
    def interrupted(*args):
        yield from itertools.islice(itertools.repeat(300), 12)
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "write_tokens", interrupted)
    answer = sinkscope("generate", "nano", "--prompt", "def", *STREAM)
    assert answer.code == 0
    assert answer.err.splitlines()[-1].startswith("interrupted: 12 tokens")
    assert answer.out.endswith("\n")


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    """A copy of it to change."""
    folder = tmp_path / "nano-copy"
    ss.load("nano").save_pretrained(folder)
    load_tokenizer("nano").save_pretrained(folder)
    return folder


def generation_config(folder: Path, **fields: object) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def writing(*ids: int) -> Callable:
    """In the place of `write_tokens`."""
    return lambda *arguments: itertools.chain(ids, itertools.repeat(300))


@pytest.mark.parametrize("end", [401, 402, 1])
@pytest.mark.parametrize("stream", [(), STREAM])
def test_a_text_ends_at_any_end_of_the_config_and_the_tokenizer(sinkscope, monkeypatch, nano, end, stream):
    generation_config(nano, eos_token_id=[401, 402])
    monkeypatch.setattr(generate, "write_tokens", writing(300, 310, end))
    found = sinkscope("generate", nano, "--prompt", "def", *stream, "--json").json
    assert (found["stopped"], found["tokens"]) == ("the text ended", 3)
    endless = sinkscope("generate", nano, "--prompt", "def", *stream, "--json", "--endless", "--max-tokens", 20).json
    assert (endless["stopped"], endless["tokens"]) == ("written", 20)


def test_special_tokens_are_not_printed(sinkscope, monkeypatch):
    monkeypatch.setattr(generate, "write_tokens", writing(300, 0, 2, 310, 1))
    tokenizer = load_tokenizer("nano")
    assert sinkscope("generate", "nano", "--prompt", "def").out == tokenizer.decode([300, 310]) + "\n"


@pytest.mark.slow
def test_the_choice_of_tokens_follows_options_and_else_the_generation_config(sinkscope, nano):
    def text(*options: object) -> str:
        return sinkscope("generate", nano, "--prompt", "import os", "--max-tokens", 10, *options).out

    greedy = text(*GREEDY)
    assert text("--top-k", 1) == text("--top-p", 1e-6) == greedy != text()
    generation_config(nano, do_sample=True, top_k=1)
    assert text() == greedy != text("--top-k", 0)
    generation_config(nano, do_sample=True, top_k=None, temperature=1e-4)
    assert text() == greedy != text("--temperature", 1.0)
    generation_config(nano, do_sample=False, repetition_penalty=50.0)
    assert text(*GREEDY) != greedy


def test_penalties_that_know_the_end_of_the_text_are_read(nano):
    """transformers makes them from a tensor of the generation config's end tokens, which `generate` alone prepares."""
    generation_config(nano, min_new_tokens=6, bad_words_ids=[[300]], eos_token_id=list(range(1, 2040)))
    model, tokenizer = ss.load(nano), load_tokenizer(nano)
    writer = Writer(model, tokenizer, streaming=None, quantized=None, sampling=(0, None, None, 0), limit=6,
                    endless=False, chat=False)  # fmt: skip
    ids = writer.prompt("def")
    written = list(writer.tokens(ids, writer.begin(ids)))
    assert not writer.ends & set(written)
    assert written == model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :].tolist()


def test_a_prompt_with_tokens_beyond_the_vocabulary_is_refused(sinkscope, nano):
    model = ss.load(nano)
    model.resize_token_embeddings(100)
    model.save_pretrained(nano)
    assert "is outside the vocabulary of 100 tokens" in sinkscope("generate", nano, "--prompt", "def").error


@pytest.mark.parametrize("options", [(), GREEDY])
def test_predictions_that_are_no_numbers_write_nothing(sinkscope, nano, options):
    model = ss.load(nano)
    model.get_input_embeddings().weight.data.fill_(math.nan)
    model.save_pretrained(nano)
    answer = sinkscope("generate", nano, "--prompt", "", *options)
    assert "predictions after 1 token(s) are NaN or infinite" in answer.error
    assert not answer.out


def test_a_text_stops_where_positions_end(sinkscope, monkeypatch):
    monkeypatch.setattr(generate, "write_tokens", writing())
    found = sinkscope("generate", "nano", "--prompt", "def", "--endless", "--json").json
    assert found["prompt_tokens"] + found["tokens"] == 128
    assert sinkscope("generate", "nano", "--prompt", "def", "--max-tokens", 126, "--endless").code == 0


def test_a_stream_keeps_what_the_model_has_positions_for(sinkscope):
    options = ("generate", "nano", "--prompt", "def", "--stream", "--max-tokens", 2, "--json")
    assert sinkscope(*options).json["stream"] == {"sinks": 4, "window": 124, "distance": "cache"}
    assert sinkscope(*options, "--sinks", 1).json["stream"]["window"] == 127
    larger = sinkscope(*options, "--window", 1020)
    assert larger.json["stream"]["window"] == 1020
    assert "--window 124 stays within them" in larger.err


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--cache", "kv8-token"), STREAM[:1]])
def test_a_conversation_goes_on_as_if_it_were_read_anew(sinkscope, monkeypatch, nano, options):
    (nano / "chat_template.jinja").write_text(TEMPLATE)
    monkeypatch.setattr("sys.stdin", io.StringIO("def f(x):\nreturn\n\nnever read"))
    found = sinkscope("generate", nano, "--chat", *GREEDY, "--max-tokens", 12, *options, "--json").json
    messages = found["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant"] * 2
    assert [each["content"] for each in messages[::2]] == ["def f(x):", "return"]
    model, tokenizer = ss.load(nano), load_tokenizer(nano)
    for turns in (1, 3):
        asked = tokenizer.apply_chat_template(messages[:turns], add_generation_prompt=True, return_tensors="pt")
        out = model.generate(**asked, do_sample=False, max_new_tokens=12)[0, asked["input_ids"].shape[1] :]
        if options != ("--cache", "kv8-token"):
            assert messages[turns]["content"] == tokenizer.decode(out, skip_special_tokens=True)


def test_a_second_turn_reads_what_is_new_alone(nano):
    (nano / "chat_template.jinja").write_text(TEMPLATE)
    model, tokenizer = ss.load(nano), load_tokenizer(nano)
    widths: list[list[int]] = [[], []]
    writer = Writer(
        model,
        tokenizer,
        streaming=None,
        quantized=None,
        sampling=(0.0, None, None, 0),
        limit=8,
        endless=False,
        chat=True,
    )
    for message, read in zip(("def f(x):", "return"), widths, strict=True):
        ids = writer.conversation(message)
        hook = model.register_forward_pre_hook(
            lambda module, arguments, named, read=read: read.append(named["input_ids"].shape[1]), with_kwargs=True
        )
        out = [token for token in writer.tokens(ids, writer.begin(ids)) if token not in writer.ends]
        hook.remove()
        writer.add_answer(tokenizer.decode(out))
    first = len(tokenizer.apply_chat_template(writer.messages[:1], add_generation_prompt=True)["input_ids"])
    assert max(widths[0]) == first - 1
    assert max(widths[1]) < first


def test_without_a_template_there_is_no_chat(sinkscope):
    assert "needs a chat template" in sinkscope("generate", "nano", "--chat", "--prompt", "def").error


@pytest.mark.parametrize("template", ["{{ raise_exception('no users here') }}", "{% for m in messages %}"])
def test_a_template_that_cannot_be_filled_is_one_line(sinkscope, nano, template):
    (nano / "chat_template.jinja").write_text(template)
    answer = sinkscope("generate", nano, "--chat", "--prompt", "def")
    assert answer.code == 2
    assert answer.error.startswith("error: the chat template cannot be filled: ")


@pytest.mark.filterwarnings("always::DeprecationWarning")
def test_the_old_name_of_an_option_is_taken_and_said(sinkscope):
    options = ("--prompt", "def f(x): return", "--cache", "kv4-token", "--max-tokens", 2, "--json")
    answer = sinkscope("generate", "nano", *options, "--spare", "first:1")
    assert answer.json["protect"] == "first:1"
    assert "--spare is called --protect now" in answer.err


@pytest.mark.slow
def test_the_same_seed_writes_the_same(sinkscope):
    def written(seed: int) -> str:
        return sinkscope("generate", "nano", "--prompt", "def", "--max-tokens", 12, "--seed", seed).out

    assert written(3) == written(3) != written(4)


def test_characters_wait_until_they_are_whole():
    tokenizer = load_tokenizer("nano")
    text = "def naïve(x): # → 日本 ✓\n    return x"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoded = Decoder(tokenizer, [])
    parts = [decoded.add(token) for token in ids]
    assert "".join(parts) == text
    assert "" in parts
    assert "�" not in "".join(parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", "def", "--max-tokens", 1000), "positions for 128: at most --max-tokens 126, or --stream"),
        (("--prompt", "def " * 200), "positions for 128: shorten it, or --stream"),
        (("--prompt", "def", "--window", 9), "--window goes with --stream"),
        (("--prompt", "def", "--sinks", 4), "--sinks goes with --stream"),
        (("--prompt", "def", "--distance", "ceiling"), "--distance goes with --stream"),
        (("--prompt", "def", "--temperature", 0, "--top-p", 0.9), "--top-p is not read at --temperature 0"),
        (("--prompt", "def", "--stream", "--sinks", 128), "leaves no window"),
        (("--prompt", "def", "--temperature", 1e-45), "--temperature 1e-45 is under 1e-06"),
        (("--chat", "--endless"), "does not go with --chat"),
        (("--stream", "--window", 0), "--window"),
        (("--stream", "--distance", "none"), "--distance"),
        (("--prompt", "def", "--max-tokens", 0), "--max-tokens"),
        (("--stream", "--cache", "kv4-kivi"), "choose one"),
        (("--prompt", "def", "--cache", "kv4-kiwi"), "did you mean 'kv4-kivi'"),
        (("--prompt", "def", "--cache", "kv4-head"), "only simulated"),
        (("--prompt", "def", "--cache", "kv4-kivi", "--protect", "first:0"), "at least 1"),
        (("--prompt", "def", "--cache", "w8a8-token"), "not about caches"),
        (("--prompt", "def", "--protect", "measured"), "goes with a quantized --cache"),
    ],
)
def test_bad_input_is_one_line(sinkscope, options, message):
    assert message in sinkscope("generate", "nano", *options).error


def test_a_conversation_without_a_message_has_no_json(sinkscope, monkeypatch, nano):
    (nano / "chat_template.jinja").write_text(TEMPLATE)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "there is no message" in sinkscope("generate", nano, "--chat", "--json").error


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_a_model_that_continues_no_text_is_refused(sinkscope, tmp_path, kind):
    from transformers import T5Config, T5ForConditionalGeneration

    if kind == "encoder":
        place = "nano-encoder"
    else:
        place = tmp_path
        T5ForConditionalGeneration(
            T5Config(vocab_size=2048, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        ).save_pretrained(place)
        load_tokenizer("nano").save_pretrained(place)
    assert "does not continue texts" in sinkscope("generate", place, "--prompt", "def").error


def test_a_model_that_reads_on_from_no_cache_is_refused(sinkscope, tmp_path):
    """It ignores the cache that it is given, and would continue the last token alone."""
    config = OpenAIGPTConfig(vocab_size=2048, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    OpenAIGPTLMHeadModel(config).save_pretrained(tmp_path)
    load_tokenizer("nano").save_pretrained(tmp_path)
    error = sinkscope("generate", tmp_path, "--prompt", "def").error
    assert "OpenAIGPTLMHeadModel is not a decoder that reads on from a cache" in error


def test_a_hybrid_that_counts_from_0_without_positions_writes_what_generate_writes():
    """Bamba does, at each pass."""
    model = FAMILIES["bamba"].build().eval()
    model.generation_config.eos_token_id = None
    ids = torch.arange(5, 14)[None]
    tokenizer = SimpleNamespace(eos_token_id=None)
    writer = Writer(model, tokenizer, streaming=None, quantized=None, sampling=(0, None, None, 0), limit=6,
                    endless=True, chat=False)  # fmt: skip
    written = list(writer.tokens(ids, writer.begin(ids)))
    assert written == model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :].tolist()


def test_a_configuration_with_minus_one_positions_names_no_limit(sinkscope, tmp_path):
    config = BloomConfig(vocab_size=2048, hidden_size=16, n_layer=1, n_head=2, max_position_embeddings=-1)
    BloomForCausalLM(config).save_pretrained(tmp_path)
    load_tokenizer("nano").save_pretrained(tmp_path)
    assert sinkscope("generate", tmp_path, "--prompt", "def", "--max-tokens", 2, "--json").code == 0


def test_a_model_that_cannot_stream_is_refused(sinkscope, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=2048, n_embd=32, n_layer=1, n_head=2, n_positions=64)).save_pretrained(
        tmp_path
    )
    load_tokenizer("nano").save_pretrained(tmp_path)
    assert "absolute positions" in sinkscope("generate", tmp_path, "--prompt", "def", *STREAM).error
