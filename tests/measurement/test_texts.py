"""Texts of tokens against the tokenizers' own decoders, for vocabularies that write bytes in either way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sinkscope.data.tokenizer import train_bpe
from sinkscope.measurement import Measurement, TokenTexts
from sinkscope.measurement.metrics import token_kind
from sinkscope.measurement.texts import byte_alphabet, characters, shares, token_bytes
from sinkscope.report.observatory.strip import strip_payload, strip_section
from tests.measurement.planted import EVIL, edited_record, measured

TEXT = "if x ≤ 3: # é, naïve “quotes”\n\tprint('漢字 👩‍💻')"
PRINTED = st.text(st.characters(codec="utf-8").filter(lambda letter: letter.isprintable() or letter in "\n\t"))


def byte_level() -> PreTrainedTokenizerFast:
    """Few merges, so that most characters beyond ASCII are split."""
    made = train_bpe(["if x then print naïve \n"] * 4, 270)
    made.add_tokens([AddedToken("café"), AddedToken("<|end▁of▁é|>", special=True)])
    return made


def sentencepiece() -> PreTrainedTokenizerFast:
    """ASCII letters and é as they are; every other character by its bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "é", *map(chr, range(33, 127))]
    model = models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], byte_fallback=True)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()],
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


TOKENIZERS = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}


def texts_of(tokenizer: Any, ids: list[int]) -> TokenTexts:
    pieces = tokenizer.convert_ids_to_tokens(ids)
    record = {"token_text": dict(zip(map(str, ids), pieces, strict=True))}
    return TokenTexts.of(json.loads(json.dumps(record | {"token_bytes": token_bytes(tokenizer, ids, pieces)})))


def read(tokenizer: Any, text: str) -> tuple[list[int], list[str]]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids, texts_of(tokenizer, ids).line(ids, range(len(ids)))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=PRINTED)
def test_the_tokens_of_a_line_make_the_text(name: str, text: str) -> None:
    _, line = read(TOKENIZERS[name], text)
    assert "".join(line).replace("▁", " ") == text.replace("▁", " ")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_character_stands_whole_where_it_begins(name: str) -> None:
    ids, line = read(TOKENIZERS[name], "a≤b")
    assert line in (["a", "≤", "", "", "b"], ["a", "≤", "", "b"])
    alone = texts_of(TOKENIZERS[name], ids).alone()
    assert alone[ids[2]].startswith("<0x")


def test_pieces_that_were_added_as_they_are_stay_so() -> None:
    """é stands for the byte E9 in a byte-level vocabulary, and for itself in a piece that was added."""
    tokenizer = TOKENIZERS["byte-level"]
    assert read(tokenizer, "café ≤")[1][0] == "café"
    assert read(tokenizer, "<|end▁of▁é|>")[1] == ["<|end▁of▁é|>"]
    ids, line = read(TOKENIZERS["sentencepiece"], "é")
    assert (len(ids), line) == (1, ["é"])


def test_tables_keep_the_marks_of_white_space() -> None:
    ids, _ = read(TOKENIZERS["byte-level"], " é\n\tx")
    alone = texts_of(TOKENIZERS["byte-level"], ids).alone()
    assert {"Ġ", "Ċ", "ĉ", "x"} <= set("".join(alone[token] for token in ids))


def test_the_alphabet_is_the_tokenizers_own() -> None:
    alphabet = byte_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    decoder = decoders.ByteLevel()
    for letter, byte in alphabet.items():
        if byte < 128:
            assert decoder.decode([letter]) == chr(byte)


def test_bytes_that_make_no_character_are_named() -> None:
    assert characters(b"a\xe2\x89") == ["a", "<0xE2>", "<0x89>"]
    assert characters(b"\xff\x00") == ["<0xFF>", "<0x00>"]
    assert shares([b"\xe2", b"\x89b", b"\xe2\x89", b"\xa4"]) == ["<0xE2>", "<0x89>b", "≤", ""]


def test_tokens_that_do_not_stand_together_share_no_character() -> None:
    texts = TokenTexts({1: "x", 2: "y", 3: "-"}, {1: b"\xe2\x89", 2: b"\xa4"})
    assert texts.line([1, 2], [4, 5]) == ["≤", ""]
    assert texts.line([1, 2], [4, 6]) == ["<0xE2><0x89>", "<0xA4>"]
    assert texts.line([1, 3, 2], [0, 1, 2]) == ["<0xE2><0x89>", "-", "<0xA4>"]
    assert texts.line([9], [0]) == [None]


def written(text: str) -> Measurement:
    """The planted measurement, with this text's tokens in each sample."""
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = measured(positions=len(ids))
    data = found.data.assign_coords(token_id=(("sample", "position"), np.tile(ids, (found.data.sizes["sample"], 1))))
    distinct = sorted(set(ids))
    pieces = tokenizer.convert_ids_to_tokens(distinct)
    record = {"token_text": dict(zip(map(str, distinct), pieces, strict=True)), "special_tokens": []}
    return edited_record(Measurement(data), **record, token_bytes=token_bytes(tokenizer, distinct, pieces))


def test_the_strip_shows_the_text_and_no_mojibake() -> None:
    found = written(TEXT + EVIL)
    payload = strip_payload(found.data, 0.3, found.record)
    sample = payload["samples"][0]
    words = [sample["split"].get(str(index), payload["drawn"][str(token)]) for index, token in enumerate(sample["ids"])]
    assert "".join(words).replace("◂", "").replace("⏎", "\n").replace("⇥", "\t").replace("<0xE2><0x80><0x8D>", "‍") == (
        TEXT + EVIL
    )
    assert "◂: a token with further bytes" in strip_section(found.data, 0.3, found.record).sentence
    plain = written("if x then print " * 4)
    assert "◂" not in strip_section(plain.data, 0.3, plain.record).sentence


def test_tables_of_tokens_are_readable_and_their_kinds_are_those_of_characters() -> None:
    found = written("“quotes” naïve é ≤ " * 3)
    kinds = found.token_kinds()["kind"].tolist()
    assert "bytes" in kinds
    assert not any("Ã" in token or "â" in token for token in found.sink_tokens(0.01)["token"])
    assert token_kind("“", special=False) == "punctuation"
    assert token_kind("<0xE2><0x80>", special=False) == "bytes"
