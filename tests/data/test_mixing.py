"""Mixtures of corpora that overlap: no text is in training here and in validation there, for any of the parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sinkscope.data import DataConfig, encode_data
from sinkscope.data.corpora import Corpus, TextDocument, load_corpus
from sinkscope.data.corpora.corpus import CorpusEntry
from sinkscope.data.prepared import CorpusSource, EncodedData, apart, encode_corpus
from tests.data.conftest import prose

SHARE = 0.4


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Twenty texts in each of three folders: `one` and `two` share half of theirs under other names."""
    for number in range(20):
        for folder, text in (("one", number), ("two", number + 10), ("three", number + 100)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{folder}-{number}.txt").write_text(prose(text, 60), encoding="utf-8")
    return tmp_path


def config(corpus: str, *others: str) -> DataConfig:
    mixture = {name: 1 / (1 + len(others)) for name in (corpus, *others)} if others else {}
    return DataConfig(corpus=corpus, mixture=mixture, tokenizer="bpe:300", validation_share=SHARE)


def texts(data: EncodedData, part: str, which: str) -> set[str]:
    """The documents of a part as they stand in its token file."""
    encoded = data.whole if part == "whole" else data.parts[part]
    tokens = np.asarray(getattr(encoded, which).tokens)
    ends = np.flatnonzero(tokens == encoded.tokenizer.eos_token_id)
    pieces = np.split(tokens, ends + 1)[:-1]
    return {encoded.tokenizer.decode(piece[:-1]) for piece in pieces}


def test_no_part_trains_on_a_text_that_any_part_validates_on(folders: Path) -> None:
    one, two = (f"text:{folders}/{name}/*.txt" for name in ("one", "two"))
    data = encode_data(config(one, two))
    kept = texts(data, "whole", "validation") | set().union(*(texts(data, name, "validation") for name in (one, two)))
    for name in (one, two):
        assert not texts(data, name, "train") & kept
        assert len(texts(data, name, "train")) >= 4
    by_names = encode_data(config(two)).whole  # the split that the part has by itself
    alone = EncodedData(by_names, {})
    assert texts(alone, "whole", "train") & kept, "the two corpora must disagree by themselves, or nothing is tested"


def test_a_corpus_within_another_keeps_its_validation_out(folders: Path) -> None:
    every, one = f"text:{folders}/**/*.txt", f"text:{folders}/one/*.txt"
    data = encode_data(config(every, one))
    assert not texts(data, one, "train") & texts(data, "whole", "validation")
    assert not texts(data, every, "train") & texts(data, "whole", "validation")


def test_domains_are_apart_by_content_too(folders: Path) -> None:
    """Two folders of one corpus that hold the same texts under other names."""
    every = f"text:{folders}/**/*.txt"
    mixed = DataConfig(
        corpus=every, mixture={"one": 0.5, "two": 0.5}, tokenizer="bpe:300", validation_share=SHARE, split_seed=1
    )
    data = encode_data(mixed)
    validated = texts(data, "whole", "validation")
    for name in ("one", "two"):
        assert not texts(data, name, "train") & validated
    assert texts(data, "whole", "train") & validated, "a text is there twice, or nothing is tested"


def test_corpora_that_share_nothing_are_split_as_by_themselves(folders: Path) -> None:
    """Their tokens are those of the same corpus alone, under the mixture's tokenizer."""
    one, three = (f"text:{folders}/{name}/*.txt" for name in ("one", "three"))
    data = encode_data(config(one, three))
    for name in (one, three):
        alone = encode_corpus(CorpusSource.of(load_corpus(name), config(name)), config(name), data.whole.tokenizer)
        for which in ("train", "validation"):
            assert texts(data, name, which) == texts(EncodedData(alone, {}), "whole", which)
    assert data.whole.fingerprint == encode_data(config(one)).whole.fingerprint


def test_a_corpus_alone_is_split_by_its_names_as_ever(notes: str) -> None:
    """Recorded runs rely on it: the digests of the tokens, as they were before mixtures were split by content."""
    data = encode_data(DataConfig(corpus=notes, tokenizer="bpe:300", validation_share=0.25, split_seed=3))
    known = json.loads((Path(__file__).parent / "split_alone.json").read_text())
    assert {part: data.whole.fingerprint[part]["tokens_sha256"] for part in ("train", "validation")} == known


def entries(*names: str) -> tuple[CorpusEntry, ...]:
    return tuple(CorpusEntry(name, lambda name=name: f"text of {name}") for name in names)


def test_conversations_about_a_validation_file_are_not_trained_on() -> None:
    """Parts of `python` are made from the same files, with other texts: there the file decides."""
    files = [f"torch/{number}.py" for number in range(20)]
    whole = CorpusSource.of(Corpus("python", entries(*files)), DataConfig(validation_share=SHARE))
    talks = Corpus("python:chat", entries(*(f"{file}#{number:04d}" for file in files for number in range(3))))
    chat = CorpusSource.of(talks, DataConfig(validation_share=SHARE))
    kept = set(whole.split.validation)
    assert {name.partition("#")[0] for name in chat.split.train} & kept
    (part,) = apart([chat], whole)
    assert not {name.partition("#")[0] for name in part.split.train} & kept
    assert part.split.train
    assert isinstance(next(talks.documents()), TextDocument)
