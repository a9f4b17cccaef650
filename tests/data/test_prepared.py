from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sinkscope.data import DataConfig, FixedToken, RandomTokens, Windows, load_corpus, prepare
from sinkscope.data import prepared as encoding
from sinkscope.data.corpora.corpus import split_names
from sinkscope.data.tokenizer import encode
from sinkscope.errors import InputError
from sinkscope.files import sha256
from sinkscope.training import Recipe

EOS = 1


@pytest.fixture
def config(notes: str) -> DataConfig:
    return DataConfig(corpus=notes, tokenizer="bpe:300", validation_share=0.25)


@pytest.fixture
def built(logged: list[str]):
    """How many corpora were encoded so far."""
    return lambda: sum(line.startswith("encoding the corpus") for line in logged)


def text_part(windows: Windows) -> np.ndarray:
    return torch.cat([item["input_ids"][1:] for item in windows]).numpy()


def test_windows_hold_the_documents_of_their_part_joined_by_eos(config: DataConfig):
    data = prepare(config, context=16)
    corpus = load_corpus(config.corpus)
    split = split_names(corpus.names, config.validation_share, config.split_seed)
    for windows, names in ((data.train, split.train), (data.validation, split.validation)):
        documents = list(corpus.documents(names))
        ids = encode(data.tokenizer, [document.text for document in documents])
        expected = [token for document in ids for token in [*document, EOS]]
        assert windows.tokens.tolist() == expected
        assert int((windows.tokens == EOS).sum()) == len(documents)
        assert data.tokenizer.decode(ids[0]) == documents[0].text
        assert text_part(windows).tolist() == expected[: len(windows) * 15]
        assert all(item["input_ids"][0] == data.tokenizer.bos_token_id for item in windows)
        assert 0 not in text_part(windows)


def test_the_fingerprint_is_of_this_text_and_these_tokens(config: DataConfig, cache: Path, tmp_path: Path):
    fingerprint = prepare(config, context=16).fingerprint
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert str(tmp_path) not in json.dumps(fingerprint)
    assert fingerprint["corpus"] == "text:**/*.txt"
    assert fingerprint["documents"] == 11 == sum(fingerprint[part]["documents"] for part in ("train", "validation"))
    assert fingerprint["characters"] == sum(fingerprint[part]["characters"] for part in ("train", "validation"))
    assert fingerprint["dtype"] == "uint16"
    assert fingerprint["vocabulary"] == 300
    [entry] = (cache / "corpora").glob("*/")
    for part in ("train", "validation"):
        assert fingerprint[part]["tokens_sha256"] == sha256(entry / f"{part}.bin")
        assert fingerprint[part]["tokens"] * 2 == (entry / f"{part}.bin").stat().st_size
    assert "tokenizers" in fingerprint["versions"]


def test_a_second_call_uses_the_cache(config: DataConfig, built):
    first, second = prepare(config, context=16), prepare(config.model_copy(update={"bos": "none"}), context=8)
    assert built() == 1
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.train.tokens, second.train.tokens)
    assert isinstance(second.train.tokens, np.memmap)


def test_encoding_a_long_text_shows_how_much_of_it_is_done(config: DataConfig, monkeypatch: pytest.MonkeyPatch):
    totals, characters = [], []

    @contextmanager
    def watched(words: str, total: float) -> Iterator[Callable[[float], None]]:
        totals.append(total)
        yield characters.append

    monkeypatch.setattr(encoding, "bar", watched)
    prepare(config.model_copy(update={"split_seed": 5}), context=8)
    assert totals == []
    monkeypatch.setattr(encoding, "LONG", 0)
    prepared = prepare(config.model_copy(update={"split_seed": 6}), context=8)
    assert totals == [sum(characters)] == [prepared.fingerprint["characters"]]


@pytest.mark.parametrize(
    "change", [{"split_seed": 1}, {"validation_share": 0.5}, {"tokenizer": "bpe:310"}, "text"], ids=str
)
def test_whatever_changes_the_tokens_is_another_entry(config: DataConfig, built, tmp_path: Path, change):
    before = prepare(config, context=16).fingerprint
    if change == "text":
        (tmp_path / "notes" / "00.txt").write_text("another text " * 50)
    else:
        config = config.model_copy(update=change)
    after = prepare(config, context=16).fingerprint
    assert built() == 2
    assert before["train"]["tokens_sha256"] != after["train"]["tokens_sha256"]


def test_the_fingerprint_names_the_corpus_asked_for_not_the_one_that_filled_the_cache(config: DataConfig, built):
    prepare(config, context=16)
    other = config.model_copy(update={"corpus": config.corpus.replace("*.txt", "*.tx?")})
    assert prepare(other, context=16).fingerprint["corpus"] == "text:**/*.tx?"
    assert built() == 1


@pytest.mark.parametrize("file", ["train.bin", "validation.bin", "parts.json", "tokenizer/tokenizer.json"])
def test_a_corrupted_entry_is_built_again(config: DataConfig, cache: Path, built, file: str):
    good = prepare(config, context=16)
    tokens = good.train.tokens.copy()
    [entry] = (cache / "corpora").glob("*/")
    raw = bytearray((entry / file).read_bytes())
    raw[len(raw) // 2] ^= 1
    (entry / file).write_bytes(raw)
    again = prepare(config, context=16)
    assert built() == 2
    assert again.fingerprint == good.fingerprint
    assert np.array_equal(again.train.tokens, tokens)


def test_an_error_while_writing_leaves_no_entry(config: DataConfig, cache: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(encoding, "encode", full)
        with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
            prepare(config, context=16)
    assert [path.suffix for path in (cache / "corpora").iterdir()] == [".lock"]
    assert len(prepare(config, context=16).train) > 0


def test_batches_do_not_change_the_tokens(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
):
    whole = prepare(config, context=16).fingerprint
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 1)
    assert prepare(config, context=16).fingerprint == whole


def test_a_tokenizer_is_trained_on_training_text_alone_and_on_no_more_than_it_takes(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []
    train_bpe = encoding.train_bpe

    def recording(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
        seen.extend(texts)
        return train_bpe(seen, vocabulary)

    monkeypatch.setattr(encoding, "TOKENIZER_CHARACTERS", 2000)
    monkeypatch.setattr(encoding, "train_bpe", recording)
    prepare(config, context=16)
    corpus = load_corpus(config.corpus)
    split = split_names(corpus.names, config.validation_share, config.split_seed)
    assert set(seen) <= {document.text for document in corpus.documents(split.train)} | {""}
    assert sum(map(len, seen[:-1])) < 2000 <= sum(map(len, seen))


@pytest.mark.parametrize("bos", ["fixed", "none"])
def test_the_saved_tokenizer_does_what_training_did(config: DataConfig, tmp_path: Path, bos: str):
    data = prepare(config.model_copy(update={"bos": bos}), context=16)
    data.tokenizer.save_pretrained(tmp_path / "saved")
    ids = AutoTokenizer.from_pretrained(tmp_path / "saved").encode("the")
    assert (ids[0] == data.tokenizer.bos_token_id) == (bos == "fixed")
    assert (data.train[0]["input_ids"][0] == data.tokenizer.bos_token_id) == (bos == "fixed")


def words_tokenizer(folder: Path, size: int, *, few: bool = False, **roles: str) -> str:
    """A tokenizer of whole words in a folder, with ids below any size; `few`: most of them belong to no word."""
    words = range(2, 9 if few else size - 1)
    vocabulary = {"<unk>": 0, "<end>": 1} | {f"w{index}": index for index in words} | {"sink": size - 1}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", **roles).save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dtype"), [(65536, "uint16"), (65537, "uint32")])
def test_a_tokenizer_of_a_folder_and_the_width_of_its_ids(config: DataConfig, tmp_path: Path, size: int, dtype: str):
    name = words_tokenizer(tmp_path / "words", size, bos_token="<end>")
    data = prepare(config.model_copy(update={"tokenizer": name}), context=16)
    assert data.fingerprint["dtype"] == data.train.tokens.dtype.name == dtype
    assert data.fingerprint["vocabulary"] == size
    assert int(data.train.tokens.max()) == size - 1
    assert data.train[3]["input_ids"][0] == EOS == data.tokenizer.bos_token_id


def test_ids_of_a_vocabulary_with_holes_come_back_as_they_are(config: DataConfig, tmp_path: Path):
    name = words_tokenizer(tmp_path / "words", 65537, few=True, bos_token="<end>")
    data = prepare(config.model_copy(update={"tokenizer": name}), context=16)
    assert len(data.tokenizer) == 10
    assert int(data.train.tokens.max()) == 65536
    recipe = Recipe(name="own", steps=1, batch_size=1, context=16, optimizer={"lr": 1e-3})
    assert recipe.lab_config(data.tokenizer).vocab_size == 65537


def test_a_fixed_bos_needs_a_tokenizer_with_one(config: DataConfig, tmp_path: Path):
    config = config.model_copy(update={"tokenizer": words_tokenizer(tmp_path / "words", 50)})
    with pytest.raises(InputError, match="no BOS token to fix at position 0"):
        prepare(config, context=16)
    assert len(prepare(config.model_copy(update={"bos": "none"}), context=16).train) > 0


def test_interventions_reach_both_parts_and_their_seed_is_the_call_s(config: DataConfig):
    config = config.model_copy(
        update={"interventions": (FixedToken(position=2, token=7), RandomTokens(start=4, stop=6)), "bos": "none"}
    )
    data, other = prepare(config, context=16, seed=0), prepare(config, context=16, seed=1)
    for windows in (data.train, data.validation):
        assert all(item["input_ids"][2] == 7 for item in windows)
        assert any(item["labels"][2] != 7 for item in windows)
    drawn = [[item["input_ids"][4:6].tolist() for item in part.train] for part in (data, other)]
    assert drawn[0] != drawn[1]
    assert data.fingerprint == other.fingerprint


def test_texts_too_short_are_told_with_both_numbers(config: DataConfig, tmp_path: Path):
    with pytest.raises(InputError, match=r"the training text of the corpus .* has \d+ tokens, fewer than the 99999 "):
        prepare(config, context=100_000)
    (tmp_path / "lonely.txt").write_text("a few words")
    with pytest.raises(InputError, match=r"the corpus has 1 document\(s\)"):
        prepare(DataConfig(corpus=f"text:{tmp_path}/lonely.txt"), context=16)


def test_a_file_that_is_not_text_is_named_and_leaves_nothing(config: DataConfig, cache: Path, tmp_path: Path):
    (tmp_path / "notes" / "03.txt").write_bytes(b"\x89PNG\0")
    with pytest.raises(InputError, match=r"03\.txt is not text"):
        prepare(config, context=16)
    assert not cache.exists()


SCRIPT = """
import json, sys
from sinkscope.data import DataConfig, prepare
print(json.dumps(prepare(DataConfig.model_validate_json(sys.argv[1]), context=16).fingerprint))
"""


@pytest.mark.release
def test_another_process_with_another_hash_seed_prepares_the_same(config: DataConfig, tmp_path: Path):
    """With a cache of its own, and with the tokenizer's threads."""
    other = {"SINKSCOPE_CACHE": str(tmp_path / "other"), "PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", SCRIPT, config.model_dump_json()]
    done = subprocess.run(command, env=os.environ | other, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == prepare(config, context=16).fingerprint


def test_validation_and_the_parts_of_a_mixture_draw_their_own_random_tokens(config: DataConfig):
    drawn = config.model_copy(update={"interventions": (RandomTokens(start=0, stop=12),), "bos": "none"})
    halves = [config.corpus.replace("**/*", pattern) for pattern in ("0[0-3]", "0[4-8]")]
    mixture = prepare(drawn.model_copy(update={"mixture": dict.fromkeys(halves, 0.5)}), context=12)
    alone = prepare(drawn, context=12)
    first, second = mixture.train.parts
    for one, other in ((alone.train, alone.validation), (first, second), (first, mixture.validation)):
        pairs = [(one[index]["input_ids"], other[index]["input_ids"]) for index in range(min(len(one), len(other)))]
        assert len(pairs) > 10
        agreeing = torch.stack([ours == theirs for ours, theirs in pairs]).float().mean()
        assert agreeing < 0.1  # of 300 tokens, one agrees by chance in three hundred
