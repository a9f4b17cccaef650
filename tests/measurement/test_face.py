"""`ss.measure` on names, texts, datasets and loaders: the numbers of the token ids that stand behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import BatchEncoding, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import sinkscope as ss
from sinkscope.cli import main
from sinkscope.data import cut
from sinkscope.model import load_tokenizer

TEXTS = ["import argparse, calendar, csv and a few more words", "def one():\n    return 1\n", "x = " + "1 + " * 30]


@pytest.fixture(scope="module")
def nano() -> Any:
    return ss.load("nano")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("nano")


def received(m: ss.Measurement) -> np.ndarray:
    return m.data["attention_received"].values


def by_hand(model: Any, tokenizer: Any, tokens: int) -> list[np.ndarray]:
    """Each text by itself, which knows no padding."""
    rows = (tokenizer(text, truncation=True, max_length=tokens).input_ids for text in TEXTS)
    return [received(ss.measurement.measure(model, torch.tensor([row])))[0] for row in rows]


@pytest.mark.slow
def test_texts_are_measured_as_each_by_itself(nano: Any, tokenizer: Any) -> None:
    m = ss.measure("nano", texts=TEXTS, tokens=24)
    for found, wanted in zip(received(m), by_hand(nano, tokenizer, 24), strict=True):
        np.testing.assert_allclose(found[..., : wanted.shape[-1]], wanted, atol=2e-6)
        assert np.isnan(found[..., wanted.shape[-1] :]).all()
    said = m.record["input"]
    assert said["windows"] == "starts"
    assert said["description"] == "the first 24 tokens of each of 3 texts, 2 of them shorter"
    assert m.record["token_text"]  # of the tokenizer that was found with the model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["strings", "file", "jsonl", "rows", "iterable", "loader", "datasets"])
def test_every_holder_of_texts_gives_the_same(kind: str, nano: Any, tokenizer: Any, tmp_path: Path) -> None:
    wanted = received(ss.measure(nano, texts=TEXTS, tokens=16, tokenizer=tokenizer))
    rows = [{"body": text, "n": number} for number, text in enumerate(TEXTS)]
    given: dict[str, Any] = {"texts": None, "field": "body"}
    if kind == "strings":
        given = {"inputs": TEXTS}
    elif kind == "file":
        for number, text in enumerate(TEXTS):
            (tmp_path / f"{number}.txt").write_text(text)
        given = {"texts": tmp_path}
    elif kind == "jsonl":
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
        given["texts"] = tmp_path / "t.jsonl"
    elif kind == "rows":
        given["texts"] = rows
    elif kind == "iterable":

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(rows)

        given["texts"] = Stream()
    elif kind == "loader":
        given = {"texts": DataLoader(TEXTS, batch_size=2)}
    else:
        datasets = pytest.importorskip("datasets")
        given["texts"] = datasets.Dataset.from_list(rows)
    found = received(ss.measure(nano, tokens=16, tokenizer="nano", windows="starts", **given))
    np.testing.assert_array_equal(found, wanted)


def test_tokenized_datasets_and_loaders(nano: Any, tokenizer: Any) -> None:
    ids = torch.randint(0, 2048, (5, 12))

    class Rows(Dataset):
        def __len__(self):
            return len(ids)

        def __getitem__(self, index):
            return {"input_ids": ids[index], "labels": ids[index]}

    wanted = received(ss.measure(nano, ids))
    for source in (Rows(), DataLoader(Rows(), batch_size=2), [{"input_ids": row.tolist()} for row in ids]):
        np.testing.assert_allclose(received(ss.measure(nano, source)), wanted, atol=2e-6)
    assert received(ss.measure(nano, Rows(), samples=2)).shape[0] == 2
    assert "5 rows of a Rows" in ss.measure(nano, Rows()).record["input"]["description"]


@pytest.mark.slow
def test_what_a_tokenizer_gives_is_understood(nano: Any, tokenizer: Any) -> None:
    wanted = by_hand(nano, tokenizer, 24)
    lists = tokenizer(TEXTS, truncation=True, max_length=24)
    assert isinstance(lists, BatchEncoding)
    assert isinstance(lists["input_ids"], list)
    padded = tokenizer(TEXTS, truncation=True, max_length=24, padding=True, return_tensors="pt")
    for given in (lists, lists["input_ids"], dict(lists), padded):
        for found, right in zip(received(ss.measure(nano, given)), wanted, strict=True):
            np.testing.assert_allclose(found[..., : right.shape[-1]], right, atol=2e-6)
            assert np.isnan(found[..., right.shape[-1] :]).all()


def test_windows(tokenizer: Any) -> None:
    whole = [tokenizer(text).input_ids for text in TEXTS]
    packed = [token for ids in whole for token in ids]
    found = cut(tokenizer, TEXTS, 8, "packed")
    assert found.rows == [packed[start : start + 8] for start in range(0, len(packed) - 7, 8)]
    assert f"{len(found.rows)} windows of 8 tokens of 3 texts, packed" in found.description
    bare = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    within = cut(tokenizer, TEXTS, 8, "within")
    assert within.rows == [[tokenizer.bos_token_id, *ids[s : s + 7]] for ids in bare for s in range(0, len(ids) - 7, 8)]
    assert cut(tokenizer, iter(TEXTS), 8, "packed", 2).rows == found.rows[:2]
    with pytest.raises(ss.InputError, match="unknown windows 'start': did you mean 'starts'"):
        cut(tokenizer, TEXTS, 8, "start")
    with pytest.raises(ss.InputError, match=r"the 3 text\(s\) give no window of 5000 tokens"):
        cut(tokenizer, TEXTS, 5000, "packed")


@pytest.mark.slow
def test_a_file_is_read_as_the_command_line_reads_it(nano: Any, tmp_path: Path, capsys: Any) -> None:
    """As many windows, each with a BOS. (Where in a text they lie is drawn there.)"""
    text = tmp_path / "long.txt"
    text.write_text(" ".join(TEXTS) * 20)
    m = ss.measure(nano, texts=text, tokens=16, tokenizer="nano")
    assert m.record["input"]["windows"] == "within"
    assert main(["measure", "nano", "--text", str(text), "--tokens", "16", "--samples", "500", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["samples"] == m.data.sizes["sample"] > 10
    assert {row[0] for row in m.data["token_id"].values.tolist()} == {0}
    assert printed["sink_rate"]["0"] == pytest.approx(m.sink_rate(position=0), abs=2)


def test_an_encoder_decoder_reads_texts_on_both_sides(tokenizer: Any) -> None:
    config = T5Config(vocab_size=2048, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()
    m = ss.measure(model, texts=TEXTS[2:] * 2, tokens=12, tokenizer=tokenizer)
    assert set(m.data["stack"].values) == {"encoder", "decoder", "cross"}
    with pytest.raises(ss.InputError, match="no mask for texts of unequal lengths"):
        ss.measure(model, texts=TEXTS, tokens=12, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("./does-not-exist", {"texts": TEXTS}, "no such folder: './does-not-exist'"),
        ("nan", {"texts": TEXTS}, "unknown model 'nan': did you mean 'nano'"),
        (3, {"texts": TEXTS}, "expected a model of transformers, or its folder, hub id or name; got a int"),
        ("nano", {}, "give one of the two"),
        ("nano", {"inputs": [[1, 2]], "texts": TEXTS}, "give one of the two"),
        ("nano", {"texts": "no such file"}, "no file or folder 'no such file'; a single text goes in a list"),
        ("nano", {"texts": [1, 2]}, "a row is a int"),
        ("nano", {"texts": [[1, 2]]}, "expected strings, got a"),
        ("nano", {"texts": []}, "inputs are empty"),
        ("nano", {"texts": {"train": TEXTS}}, "a mapping of train: pass one of these"),
        ("nano", {"texts": [{"body": "x"}]}, "a row has no field 'text': it has body; name the text's field=…"),
        (
            "nano",
            {"inputs": {"input_ids": [[1, 2], [1]], "position_ids": [[0, 1], [0]]}},
            "rows of 'position_ids' have",
        ),
        ("nano", {"texts": TEXTS, "samples": 0}, "samples = 0: at least 1"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(model: Any, given: dict, said: str, nano: Any) -> None:
    with pytest.raises(ss.InputError) as raised:
        ss.measure(nano if model == "nano" else model, **given)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_without_a_name_asks_for_its_tokenizer(tiny_llama: LlamaForCausalLM) -> None:
    with pytest.raises(ss.InputError, match="does not say its name: pass tokenizer"):
        ss.measure(tiny_llama, texts=TEXTS)
