from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sinkscope.data import DataConfig, Inputs, as_chat, build_inputs, cut, load_corpus, prepare
from sinkscope.data.corpora.corpus import split_names
from sinkscope.data.measuring_inputs import SPLITS
from sinkscope.data.tokenizer import as_encoder, encode, train_bpe, with_bos
from sinkscope.errors import InputError

VOCABULARY = 300
SPECIAL = {0, 1, 2}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text of some 600 tokens."""
    path = tmp_path / "essay.txt"
    path.write_text("".join(f"sentence {7919**index} speaks of <eos>\n" for index in range(40)))
    return path


def build(kind: str, tokenizer: PreTrainedTokenizerFast | None, **options: object) -> Inputs:
    given = {"vocab_size": VOCABULARY, "tokens": 16, "samples": 6, "seed": 0} | options
    return build_inputs(kind, tokenizer=tokenizer, **given)


def is_inside(row: list[int], text: list[int]) -> bool:
    return any(text[start : start + len(row)] == row for start in range(len(text)))


def test_natural_windows_of_a_file_are_different_stretches_of_it(tokenizer: PreTrainedTokenizerFast, file: Path):
    found = build("natural", tokenizer, text=file, samples=10)
    [ids] = encode(tokenizer, [file.read_text()])
    rows = found.input_ids.tolist()
    starts = [next(start for start in range(0, len(ids), 16) if ids[start : start + 16] == row) for row in rows]
    assert len(set(starts)) == 10
    assert found.input_ids.dtype == torch.long
    assert not SPECIAL & set(found.input_ids.flatten().tolist())
    assert "10 windows of 16 tokens from the text essay.txt" in found.description
    assert found.first.startswith("whatever token the text has there")


def test_windows_from_document_starts_or_of_packed_documents(tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    documents = [f"row {index} " + f"has words {index} " * 9 for index in range(7)]
    path.write_text("\n".join(json.dumps({"text": text}) for text in documents))
    ids = encode(tokenizer, documents)
    starts = build("natural", tokenizer, text=path, samples=99, windows="starts")
    assert starts.input_ids.tolist() == [row[:16] for row in ids]
    assert "the first of each document" in starts.description
    whole = [token for row in ids for token in row]
    packed = build("natural", tokenizer, text=path, samples=99, windows="packed")
    wanted = [whole[start : start + 16] for start in range(0, len(whole) - 15, 16)]
    assert sorted(packed.input_ids.tolist()) == sorted(wanted)
    assert "documents concatenated" in packed.description
    with pytest.raises(InputError, match="unknown windows 'packd': did you mean 'packed'"):
        build("natural", tokenizer, text=path, windows="packd")


@pytest.mark.parametrize("text", ["<bos>one two three four", "<eos> one <bos> two three"])
def test_windows_within_a_text_begin_with_what_the_tokenizer_adds_and_nothing_else(tokenizer, text: str):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    wanted = [[0, *ids[start : start + 3]] for start in range(0, len(ids) - 3, 4)]
    assert cut(with_bos(tokenizer, True), [text], 4, "within").rows == wanted
    assert cut(with_bos(tokenizer, False), [text], 4, "within").rows[0] == ids[:4]


def test_a_word_that_is_another_token_after_special_ones_is_no_part_of_them():
    def numbers(text: str, add_special_tokens: bool = True, **options: Any) -> dict[str, list[int]]:
        ids = [int(word) for word in text.split()]
        if not add_special_tokens:
            return {"input_ids": ids}
        return {"input_ids": [0, 100 + ids[0], *ids[1:], 1], "special_tokens_mask": [1, *[0] * len(ids), 1]}

    assert cut(numbers, ["5 6 5 8 9 4"], 6, "within").rows == [[0, 105, 6, 5, 8, 9]]


def test_a_text_with_fewer_windows_than_asked_gives_what_it_has_and_says_so(tokenizer, file: Path):
    count = len(encode(tokenizer, [file.read_text()])[0]) // 16
    found = build("natural", tokenizer, text=str(file), samples=count + 3)
    assert found.input_ids.shape == (count, 16)
    assert f"{count} windows of 16 tokens ({count + 3} were asked for)" in found.description


def test_natural_text_of_a_corpus_comes_from_its_validation_documents_in_turns(tokenizer, notes: str):
    config = DataConfig(corpus=notes, validation_share=0.4, split_seed=3)
    found = build("natural", tokenizer, corpus=config, samples=4)
    corpus = load_corpus(notes)
    names = split_names(corpus.names, 0.4, 3).validation
    texts = encode(tokenizer, [document.text for document in corpus.documents(names)])
    for turns in (1, 2):
        rows = build("natural", tokenizer, corpus=config, samples=turns * len(texts)).input_ids.tolist()
        owners = [[index for index, text in enumerate(texts) if is_inside(row, text)] for row in rows]
        assert sorted(owner for [owner] in owners) == sorted(turns * list(range(len(texts))))
    many = build("natural", tokenizer, corpus=config, samples=10_000).input_ids
    assert len(many) == sum(len(text) // 16 for text in texts)
    assert torch.equal(many[:4], found.input_ids)


def test_no_more_documents_are_read_than_needed(tokenizer, monkeypatch: pytest.MonkeyPatch, notes: str):
    read: list[int] = []

    def counting(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
        read.append(len(texts))
        return encode(tokenizer, texts)

    monkeypatch.setattr("sinkscope.data.measuring_inputs.encode", counting)
    build("natural", tokenizer, corpus=DataConfig(corpus=notes, validation_share=0.9), samples=2)
    assert 2 <= sum(read) <= 3  # the empty document may come among them


@pytest.mark.slow
def test_the_python_corpus_gives_natural_text_to_any_tokenizer(tokenizer: PreTrainedTokenizerFast):
    found = build("natural", tokenizer, samples=3)
    assert found.input_ids.shape == (3, 16)
    assert "3 windows of 16 tokens from the validation text of the corpus 'python'" in found.description


@pytest.mark.parametrize(
    ("adds", "bos", "expected"),
    [
        (True, "auto", True),
        (False, "auto", False),
        (True, "none", False),
        (False, "add", True),
        (True, "add", True),
    ],
)
def test_the_bos_rule_for_natural_text(tokenizer, file: Path, adds: bool, bos: str, expected: bool):
    found = build("natural", with_bos(tokenizer, adds), text=file, bos=bos)
    plain = build("natural", tokenizer, text=file, bos="none").input_ids
    if expected:
        assert (found.input_ids[:, 0] == 0).all()
        assert torch.equal(found.input_ids[:, 1:], plain[:, :-1])
        assert found.first == "<bos> (id 0)"
    else:
        assert torch.equal(found.input_ids, plain)


@pytest.mark.parametrize(("bos", "framed"), [("auto", (True, True)), ("add", (True, False)), ("none", (False, False))])
def test_an_encoder_reads_natural_text_between_cls_and_sep(tokenizer, file: Path, bos: str, framed: tuple[bool, bool]):
    found = build("natural", as_encoder(tokenizer), text=file, bos=bos, vocab_size=VOCABULARY + 1)
    plain = build("natural", tokenizer, text=file, bos="none").input_ids
    first, last = framed
    assert bool((found.input_ids[:, 0] == 0).all()) == first
    assert bool((found.input_ids[:, -1] == 1).all()) == last
    assert torch.equal(found.input_ids[:, first : 16 - last], plain[:, : 16 - first - last])
    assert ("last: [SEP] (id 1)" in found.description) == last


def test_a_row_of_one_token_keeps_its_cls(tokenizer, file: Path):
    found = build("natural", as_encoder(tokenizer), text=file, tokens=1, vocab_size=VOCABULARY + 1)
    assert (found.input_ids == 0).all()


def test_what_training_fixed_is_what_auto_adds(notes: str):
    for bos in ("fixed", "none"):
        config = DataConfig(corpus=notes, tokenizer="bpe:300", validation_share=0.3, bos=bos)
        data = prepare(config, context=16)
        found = build("natural", data.tokenizer, corpus=config).input_ids
        assert bool((found[:, 0] == data.tokenizer.bos_token_id).all()) == (bos == "fixed")


@pytest.mark.parametrize("kind", ["random", "repeated"])
def test_random_and_repeated_tokens_are_ordinary_and_get_no_bos_of_themselves(tokenizer, kind: str):
    adding = with_bos(tokenizer, True)
    found = build(kind, adding, samples=400)
    assert found.input_ids.shape == (400, 16)
    assert set(found.input_ids.flatten().tolist()) <= set(range(3, VOCABULARY))
    assert torch.equal(found.input_ids, build(kind, tokenizer, samples=400, bos="none").input_ids)
    with_one = build(kind, adding, samples=400, bos="add")
    assert (with_one.input_ids[:, 0] == 0).all()
    assert torch.equal(with_one.input_ids[:, 1:], found.input_ids[:, :-1])


def test_random_tokens_are_uniform(tokenizer: PreTrainedTokenizerFast):
    ids = build("random", tokenizer, samples=297, tokens=1000).input_ids.flatten()
    counts = ids.bincount(minlength=VOCABULARY)[3:].double()
    assert ((counts - 1000) ** 2 / 1000).sum() < 400  # chi squared, 296 degrees of freedom: p = 5e-5


def test_repeated_rows_hold_one_token_each(tokenizer: PreTrainedTokenizerFast):
    ids = build("repeated", tokenizer, samples=50).input_ids
    assert (ids == ids[:, :1]).all()
    assert len(ids[:, 0].unique()) > 30


def test_first_tokens_differ_and_the_text_after_them_does_not(tokenizer, file: Path):
    found = build("first-token", with_bos(tokenizer, True), text=file, samples=VOCABULARY)
    assert sorted(found.input_ids[:, 0].tolist()) == list(range(VOCABULARY)), "special tokens too"
    assert (found.input_ids[:, 1:] == found.input_ids[0, 1:]).all()
    [ids] = encode(tokenizer, [file.read_text()])
    assert is_inside(found.input_ids[0, 1:].tolist(), ids)


def test_every_first_token_is_as_many_as_there_are(tokenizer, file: Path):
    found = build("first-token", tokenizer, text=file, samples=100_000)
    assert sorted(found.input_ids[:, 0].tolist()) == list(range(VOCABULARY))
    assert "every one of the 300 first tokens" in found.description
    assert "6 of 300 first tokens" in build("first-token", tokenizer, text=file).description


@pytest.mark.parametrize(("bos", "count"), [("none", 0), ("add", 1), ("double", 2)])
def test_a_bos_is_left_out_added_or_doubled_before_the_same_text(tokenizer, file: Path, bos: str, count: int):
    marked = with_bos(tokenizer, True)
    plain = build("natural", marked, text=file, bos="none").input_ids
    found = build("natural", marked, text=file, bos=bos)
    assert found.input_ids[:, :count].eq(tokenizer.bos_token_id).all()
    assert torch.equal(found.input_ids[:, count:], plain[:, : 16 - count])
    assert ("2 times" in found.first) == (bos == "double")


def test_a_folder_is_read_document_by_document(tokenizer, file: Path, tmp_path: Path):
    folder = tmp_path / "domain"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha beta gamma delta " * 30)
    (folder / "deep" / "b.txt").write_text("one two three four five " * 30)
    found = build("natural", tokenizer, text=folder, samples=1000)
    documents = [encode(tokenizer, [path.read_text()])[0] for path in (folder / "a.txt", folder / "deep" / "b.txt")]
    assert all(any(is_inside(row, ids) for ids in documents) for row in found.input_ids.tolist())
    assert len(found.input_ids) == sum(len(ids) // 16 for ids in documents)


def test_a_model_s_vocabulary_may_be_larger_or_smaller_than_the_tokenizer_s(tokenizer, file: Path):
    assert build("random", tokenizer, vocab_size=9999, samples=500).input_ids.max() < VOCABULARY
    assert build("random", tokenizer, vocab_size=10, samples=500).input_ids.max() < 10
    with pytest.raises(InputError, match=r"token id \d+ is outside the model's vocabulary of 150"):
        build("natural", tokenizer, vocab_size=150, text=file)


@pytest.mark.parametrize("kind", ["natural", "random", "repeated", "first-token"])
def test_the_seed_decides(tokenizer, file: Path, kind: str):
    first, same, other = (build(kind, tokenizer, text=file, seed=seed).input_ids for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_models_without_a_tokenizer_take_random_and_repeated_tokens():
    assert build("random", None).input_ids.shape == build("repeated", None).input_ids.shape == (6, 16)
    for kind, options in (("natural", {}), ("first-token", {}), ("random", {"bos": "add"})):
        with pytest.raises(InputError, match="needs a tokenizer"):
            build(kind, None, **options)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("naturel", {}, "unknown input 'naturel': did you mean 'natural'?"),
        ("random", {"bos": "atuo"}, "unknown bos 'atuo': did you mean 'auto'?"),
        ("random", {"tokens": 0}, r"tokens \(0\) and samples \(6\) must be at least 1"),
        ("random", {"vocab_size": 3}, "has only special tokens"),
        ("natural", {"tokens": 5000}, r"has at most \d+ tokens in one document; a window takes 5000"),
        ("natural", {"text": "nowhere.txt"}, "cannot read nowhere.txt: No such file"),
        ("first-token", {"bos": "add"}, "has a first token already"),
        ("first-token", {"bos": "double"}, "has a first token already"),
    ],
)
def test_bad_input_is_told_in_a_line(tokenizer, file: Path, kind: str, options: dict[str, object], reason: str):
    with pytest.raises(InputError, match=reason) as caught:
        build(kind, tokenizer, **({"text": file} | options))
    assert "\n" not in str(caught.value)


def test_a_binary_file_is_no_text(tokenizer, tmp_path: Path):
    (tmp_path / "image.txt").write_bytes(b"\x89PNG\xff")
    with pytest.raises(InputError, match=r"image\.txt is not text"):
        build("natural", tokenizer, text=tmp_path / "image.txt")


def test_adding_a_bos_needs_one(file: Path):
    none = PreTrainedTokenizerFast(tokenizer_object=train_bpe([file.read_text()], 300).backend_tokenizer)
    with pytest.raises(InputError, match="no BOS token to add"):
        build("natural", none, text=file, bos="add")


def test_rows_give_the_windows_that_files_with_the_same_texts_give(tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    documents = [f"def {number} return attention " * 40 for number in range(6)]
    (tmp_path / "files").mkdir()
    for number, document in enumerate(documents):
        (tmp_path / "files" / f"{number}.txt").write_text(document)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in documents))
    rows = build("natural", tokenizer, text=tmp_path / "rows.jsonl", field="body", samples=20)
    files = build("natural", tokenizer, text=tmp_path / "files", samples=20)
    assert torch.equal(rows.input_ids, files.input_ids)
    assert "the text rows.jsonl, field 'body'" in rows.description


def test_a_corpus_gives_its_validation_documents_or_all(tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text(f"{number} " * 400)
    found = {
        split: build("natural", tokenizer, corpus=f"text:{tmp_path}/*.txt", split=split, samples=8) for split in SPLITS
    }
    distinct = {split: len({tuple(row.tolist()) for row in inputs.input_ids}) for split, inputs in found.items()}
    assert distinct == {"validation": 1, "all": 8}
    assert "the validation text of the corpus" in found["validation"].description
    assert "(1 of 8 documents)" in found["validation"].description
    assert "all the text of the corpus" in found["all"].description
    with pytest.raises(InputError, match="unknown split 'al': did you mean 'all'"):
        build("natural", tokenizer, corpus=f"text:{tmp_path}/*.txt", split="al")


@pytest.mark.slow
def test_ids_with_a_bos_lie_in_one_piece(tokenizer: PreTrainedTokenizerFast):
    assert build("natural", tokenizer, bos="add", samples=3).input_ids.is_contiguous()


def words(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words."""
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_ids_that_a_vocabulary_leaves_out_are_not_drawn():
    tokenizer = words({"<unk>": 0, "a": 7, "b": 9, "c": 400})
    assert set(build("random", tokenizer, tokens=64).input_ids.flatten().tolist()) == {7, 9}


def test_a_text_of_unknown_words_alone_is_refused(file: Path):
    """A model of proteins would be measured on one repeated token."""
    with pytest.raises(InputError, match=r"knows no word of .*essay.txt: each is <unk> \(id 0\)"):
        build("natural", words({"<unk>": 0, "MKT": 1}), text=file)
    assert build("natural", words({"<unk>": 0, "speaks": 1}), text=file).input_ids.unique().tolist() == [0, 1]


def test_windows_that_end_before_the_message_begins_are_refused(file: Path):
    """A system prompt fills them, and each would be the same."""
    tokenizer = train_bpe(["attention"], VOCABULARY)
    tokenizer.chat_template = "<bos>{% for turn in messages %}You are helpful.{{ turn.content }}{% endfor %}"
    lead = len(tokenizer("You are helpful.")["input_ids"]) + 1
    with pytest.raises(InputError, match=f"takes {lead} tokens before a message, so windows of {lead} tokens"):
        as_chat(build("natural", tokenizer, text=file, tokens=lead), tokenizer)
    rows = as_chat(build("natural", tokenizer, text=file, tokens=lead + 1), tokenizer).input_ids
    assert len({*rows[:, -1].tolist()}) > 1
