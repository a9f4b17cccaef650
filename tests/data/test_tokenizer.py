from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sinkscope.data.tokenizer import (
    adds_first_token,
    as_encoder,
    encode,
    first_token_id,
    in_chat,
    last_token_id,
    load_fast_tokenizer,
    parse_tokenizer,
    tokenizer_digest,
    train_bpe,
    with_bos,
)
from sinkscope.errors import InputError

TEXTS = ["attention sinks drain attention " * 20, "é 中文 " * 30]
TRAINED = train_bpe(TEXTS, 280)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_and_holds_no_special_token(text: str):
    [ids] = encode(TRAINED, [text])
    assert TRAINED.decode(ids, clean_up_tokenization_spaces=False) == text
    assert not set(ids) & {0, 1, 2}


def test_ids_are_special_tokens_then_bytes_then_merges():
    assert (TRAINED.bos_token_id, TRAINED.eos_token_id, TRAINED.pad_token_id) == (0, 1, 2)
    assert len(TRAINED) == 280
    assert len(encode(TRAINED, ["attention"])[0]) == 1
    assert len(train_bpe(["a"], 2048)) == 259


def test_a_text_that_spells_a_special_token_is_text():
    spelled = "a <eos> b <bos><pad>"
    assert TRAINED.encode("<eos>", add_special_tokens=False) == [1]
    [ids] = encode(TRAINED, [spelled])
    assert not set(ids) & {0, 1, 2}
    assert TRAINED.decode(ids) == spelled


@pytest.mark.parametrize("add", [True, False])
def test_the_bos_rule_travels_with_the_saved_tokenizer(tmp_path: Path, add: bool):
    saved = with_bos(TRAINED, add)
    saved.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for tokenizer in (saved, loaded, with_bos(with_bos(TRAINED, not add), add)):
        assert adds_first_token(tokenizer) == add
        assert tokenizer.encode("attention")[:-1] == [0] * add
        assert encode(tokenizer, ["attention"]) == encode(TRAINED, ["attention"])
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)
    assert tokenizer_digest(loaded) == tokenizer_digest(saved)
    assert not adds_first_token(TRAINED)


def test_one_token_may_be_bos_and_eos():
    both = PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer, bos_token="<eos>", eos_token="<eos>")
    assert with_bos(both, True).encode("attention")[0] == 1


def test_a_fixed_bos_needs_a_bos():
    none = PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer, eos_token="<eos>")
    with pytest.raises(InputError, match="no BOS token to fix"):
        with_bos(none, True)
    assert first_token_id(none) is None
    assert not adds_first_token(none)


def test_a_classifier_token_counts_as_the_first():
    words = Tokenizer(models.WordLevel({"[CLS]": 0, "a": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, cls_token="[CLS]")
    assert first_token_id(tokenizer) == 0


def test_words_that_a_tokenizer_without_an_unknown_token_lacks_are_one_line():
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "1": 2, "+": 3}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", sep_token="</s>")
    assert encode(tokenizer, ["1 + 1"]) == [[2, 3, 2]]
    assert adds_first_token(tokenizer)  # although "a" is none of its words
    assert last_token_id(tokenizer) == 1
    with pytest.raises(InputError, match="the tokenizer cannot encode the text: WordLevel error"):
        encode(tokenizer, ["1 + 2"])


def test_half_a_character_is_named_with_what_is_around_it():
    tokenizer = train_bpe(["some text to learn from"], 280)
    with pytest.raises(InputError, match=r"half a character .*: 'good \\ud800 bye'"):
        encode(tokenizer, ["fine", "good \ud800 bye"])


def test_a_local_folder_is_a_tokenizer(tmp_path: Path):
    TRAINED.save_pretrained(tmp_path / "here")
    assert parse_tokenizer(str(tmp_path / "here")) is None
    assert tokenizer_digest(load_fast_tokenizer(str(tmp_path / "here"))) == tokenizer_digest(TRAINED)


def test_a_tokenizer_without_eos_is_refused(tmp_path: Path):
    PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has no EOS token"):
        load_fast_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["nobody/nothing", "./nowhere", "."])
def test_what_cannot_be_loaded_is_told_in_a_line(name: str):
    with pytest.raises(InputError, match=r"cannot load the tokenizer|no such folder") as caught:
        load_fast_tokenizer(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "size"), [("bpe:2048", 2048), ("bpe:259", 259), ("gpt2", None), ("a/b", None)])
def test_names(name: str, size: int | None):
    assert parse_tokenizer(name) == size


@pytest.mark.parametrize("name", ["bpe:258", "bpe:", "bpe:2k", "bpe:-3"])
def test_sizes_that_make_no_vocabulary(name: str):
    with pytest.raises(InputError, match="bpe:SIZE with SIZE at least 259"):
        parse_tokenizer(name)


def test_an_unknown_kind_suggests_the_known_one():
    with pytest.raises(InputError, match="did you mean 'bpe:2048'"):
        parse_tokenizer("bep:2048")


def test_an_encoders_tokenizer_keeps_the_ids_of_text_and_frames_it(tmp_path: Path):
    as_encoder(TRAINED).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')  # whose own tokenizer class must not take over
    for tokenizer in (as_encoder(TRAINED), AutoTokenizer.from_pretrained(tmp_path)):
        assert encode(tokenizer, ["attention [SEP] é"]) == encode(TRAINED, ["attention [SEP] é"])
        assert tokenizer.encode("attention") == [0, *TRAINED.encode("attention"), 1]
        assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id) == (0, 1, 2)
        assert tokenizer.mask_token_id == len(TRAINED) == len(tokenizer) - 1
        assert (first_token_id(tokenizer), last_token_id(tokenizer)) == (0, 1)
        assert adds_first_token(tokenizer)


def test_only_a_sep_that_the_tokenizer_puts_there_is_a_last_token():
    assert last_token_id(TRAINED) is None
    named = PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer, sep_token="<eos>")
    assert last_token_id(named) is None


def test_an_encoders_tokenizer_is_made_of_one_trained_here():
    with pytest.raises(InputError, match="is made of one trained as bpe:SIZE"):
        as_encoder(PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer, eos_token="<eos>"))


def test_a_tokenizer_in_a_format_that_is_not_known_is_one_line(tmp_path: Path):
    TRAINED.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [], "model": {"type": "New"}}')
    with pytest.raises(InputError, match="cannot load the tokenizer"):
        load_fast_tokenizer(str(tmp_path))


def test_a_path_that_leads_nowhere_is_no_tokenizer_of_the_hub():
    with pytest.raises(InputError, match=r"no such folder: '\./absent'"):
        load_fast_tokenizer("./absent")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("<bos>{{ messages[0].role }}", "it leaves out what a message says"),
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", "it leaves out what a message says"),
    ],
)
def test_a_chat_template_that_says_nothing_of_the_message_is_one_line(template: str, said: str):
    """The last one is of models that read images: it takes the message as a list of parts."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer, chat_template=template)
    with pytest.raises(InputError, match=f"^the chat template cannot be filled: {said}$"):
        in_chat(tokenizer, [[{"role": "user", "content": "attention"}]])


@pytest.mark.parametrize("content", ["attention", "", " attention ", [{"type": "text", "text": "attention"}]])
def test_a_chat_template_may_strip_a_message_and_take_it_in_parts(content: object):
    template = "{% for m in messages %}{{ m.content | trim if m.content is string else m.content[0].text }}{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TRAINED.backend_tokenizer, chat_template=template)
    ids = in_chat(tokenizer, [{"role": "user", "content": content}], return_dict=False)
    assert tokenizer.decode(ids) == ("attention" if content else "")
