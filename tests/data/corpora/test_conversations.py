"""Conversations as text and as tokens: what is said by whom, and what counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from sinkscope.data import DataConfig, as_chat, load_corpus, prepare
from sinkscope.data.corpora import python_corpus
from sinkscope.data.corpora.conversations import chat_template, rendered, responses
from sinkscope.data.corpora.corpus import TextDocument
from sinkscope.data.corpora.python_corpus import chat, code, prose
from sinkscope.data.measuring_inputs import Inputs
from sinkscope.data.tokenizer import encode, encode_conversations, train_bpe
from sinkscope.errors import InputError

TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is a sink?"},
    {"role": "assistant", "content": "A key that\nall attend to."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Rows sum to one."},
]
SOURCE = '''"""A module that says something."""

import os  # a comment stays


class Thing:
    """A thing.

    At length.
    """

    def size(self, unit="m", *rest):
        """How large it is.

        Never mind.
        """
        return 3

    async def grow(self):
        """Make it larger."""


def quiet(x: int) -> int:
    return x
'''


@pytest.fixture
def talks(tmp_path: Path) -> str:
    """The name of a corpus of 24 conversations in two files."""
    (tmp_path / "talks").mkdir()
    for name in "ab":
        lines = [
            json.dumps(
                {
                    "messages": [
                        {"role": "user", "content": f"What is {number} of {name}?"},
                        {"role": "assistant", "content": f"It is sink {number * 7}."},
                    ]
                }
            )
            for number in range(12)
        ]
        (tmp_path / "talks" / f"{name}.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return f"chat:{tmp_path}/talks/*.jsonl"


def test_the_template_writes_what_is_trained_on():
    tokenizer = train_bpe([rendered(TALK)] * 3, 300)
    for bos in (None, tokenizer.bos_token):
        tokenizer.chat_template = chat_template(bos)
        assert tokenizer.apply_chat_template(TALK, tokenize=False) == (bos or "") + rendered(TALK)
    asked = tokenizer.apply_chat_template(TALK[:2], tokenize=False, add_generation_prompt=True)
    assert asked == "<bos>" + rendered(TALK)[: len(asked) - len("<bos>")]


def test_responses_are_what_the_assistant_says():
    text = rendered(TALK)
    assert [text[start:stop] for start, stop in responses(text)] == [
        "A key that\nall attend to.\n",
        "Rows sum to one.\n",
    ]


def test_tokens_of_responses_spell_them():
    text = rendered(TALK)
    tokenizer = train_bpe([text] * 3, 300)
    [ids], [said] = encode_conversations(tokenizer, [text])
    assert ids == encode(tokenizer, [text])[0]
    spelled = tokenizer.decode([token for token, scored in zip(ids, said, strict=True) if scored])
    assert spelled == "A key that\nall attend to.\nRows sum to one.\n"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "a conversation without messages"),
        ([{"role": "robot", "content": "x"}], "a message needs a role"),
        ([{"role": "user", "content": 3}], "its content as text"),
        ([{"role": "user", "content": "a <|user|>\nb"}], "spells the head of a message"),
    ],
)
def test_what_is_no_conversation(messages: list, reason: str):
    with pytest.raises(InputError, match=reason):
        rendered(messages)


def test_only_responses_are_scored_and_each_with_its_end(talks: str):
    config = DataConfig(corpus=talks, tokenizer="bpe:300", validation_share=0.25, labels="responses")
    data = prepare(config, context=24)
    documents = {document.text for document in load_corpus(talks).documents()}
    kept = torch.cat([window["labels"][1:] for window in data.train])
    said = "".join(data.tokenizer.decode(kept[kept >= 0]))
    whole = "".join(data.tokenizer.decode(torch.cat([window["input_ids"][1:] for window in data.train])))
    expected = [part.partition("<|assistant|>\n")[2] for part in whole.split("<eos>")]
    assert said.split("<eos>")[:-1] == expected[:-1]
    assert all(text in documents for text in whole.split("<eos>")[:-1])
    assert all(window["labels"][0] == -100 for window in data.train)
    scored = data.fingerprint["train"]["scored"] + data.fingerprint["validation"]["scored"]
    assert 24 * 5 < scored < data.fingerprint["train"]["tokens"]


def test_all_labels_are_the_windows_own(talks: str):
    data = prepare(DataConfig(corpus=talks, tokenizer="bpe:300", validation_share=0.25), context=24)
    assert all(torch.equal(window["labels"], window["input_ids"]) for window in data.train)


def test_scored_and_unscored_text_share_no_cache_entry(talks: str, tmp_path: Path):
    """The same bytes as plain files are another corpus."""
    as_talk = prepare(DataConfig(corpus=talks, tokenizer="bpe:300", validation_share=0.25), context=24)
    folder = tmp_path / "plain"
    folder.mkdir()
    for document in load_corpus(talks).documents():
        (folder / document.name).write_text(document.text, encoding="utf-8")
    plain = prepare(DataConfig(corpus=f"text:{folder}/*", tokenizer="bpe:300", validation_share=0.25), context=24)
    assert plain.fingerprint["text_sha256"] == as_talk.fingerprint["text_sha256"]
    assert "scored" not in plain.fingerprint["train"]
    assert (
        prepare(DataConfig(corpus=talks, validation_share=0.25, tokenizer="bpe:300"), context=24).train.tokens
        is not None
    )


@pytest.mark.parametrize("bos", ["fixed", "none"])
def test_the_saved_tokenizer_asks_as_training_did(talks: str, tmp_path: Path, bos: str):
    config = DataConfig.model_validate({"corpus": talks, "tokenizer": "bpe:300", "validation_share": 0.25, "bos": bos})
    data = prepare(config, context=24)
    data.tokenizer.save_pretrained(tmp_path / "saved")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    plain = Inputs(torch.tensor([encode(tokenizer, ["what is the sink of it?"])[0]]), "", "")
    [row] = as_chat(plain, tokenizer).input_ids.tolist()
    head = encode(tokenizer, ["<|user|>\n"])[0]
    start = [tokenizer.bos_token_id] if bos == "fixed" else []
    assert row[: len(start) + len(head)] == start + head


def test_labels_need_conversations(notes: str):
    for fields in ({"corpus": notes}, {"corpus": "python:chat", "mixture": {"python:prose": 1.0}}):
        with pytest.raises(ValueError, match=r"data.labels = responses: '.*' has no conversations"):
            DataConfig.model_validate({**fields, "labels": "responses"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "line 2: expected"),
        ('{"text": "x"}', "line 2: expected"),
        ('{"messages": [1]}', "line 2: expected"),
        ('{"messages": [{"role": "user"}]}', "line 2: a message needs a role"),
    ],
)
def test_lines_that_hold_no_conversation_are_named(tmp_path: Path, line: str, reason: str):
    good = json.dumps({"messages": TALK})
    (tmp_path / "t.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"t\.jsonl, {reason}"):
        load_corpus(f"chat:{tmp_path}/*.jsonl")


def test_code_and_prose_are_the_source_taken_apart():
    document = TextDocument("torch/thing.py", SOURCE)
    [(name, kept)], [(_, told)] = code(document), prose(document)
    assert name == "torch/thing.py"
    assert told.split("\n\n") == [
        *("A module that says something.", "A thing.", "At length.", "How large it is.", "Never mind."),
        *("Make it larger.", ""),
    ]
    assert "# a comment stays" in kept
    assert '"""' not in kept
    assert "return 3" in kept
    assert len(kept.splitlines()) == len(SOURCE.splitlines()) - 10


def test_conversations_ask_about_functions_with_a_docstring():
    made = dict(chat(TextDocument("torch/thing.py", SOURCE)))
    assert sorted(made) == ["torch/thing.py#0001", "torch/thing.py#0002"]
    texts = sorted(made.values())
    assert any("def size(self, unit='m', *rest)" in text and "How large it is." in text for text in texts)
    assert not any("Never mind" in text for text in texts)
    assert {text[slice(*responses(text)[0])].strip() for text in texts} <= {
        *("How large it is.", "def size(self, unit='m', *rest)", "Make it larger.", "def grow(self)")
    }


def test_what_python_cannot_parse_is_left_out_and_topics_are_prose():
    broken, topic = TextDocument("torch/old.py", "print 'x'"), TextDocument("topics/assert", "The assert statement")
    assert list(chat(broken)) == list(chat(topic)) == []
    assert list(code(broken)) == [("torch/old.py", "")]
    assert list(prose(topic)) == [("topics/assert", "The assert statement")]
    assert list(code(topic)) == [("topics/assert", "")]


def test_parts_of_the_python_corpus_keep_its_names(monkeypatch: pytest.MonkeyPatch, notes: str, tmp_path: Path):
    """So that the split is the same: what is validation text as code is not trained on as prose."""
    for number in range(4):
        (tmp_path / "notes" / f"{number:02d}.txt").write_text(SOURCE.replace("3", str(number)), encoding="utf-8")
    whole = load_corpus(notes)
    monkeypatch.setattr(python_corpus, "load_python", lambda: whole)
    parts = {part: load_corpus(f"python:{part}") for part in ("code", "prose", "chat")}
    assert parts["code"].names == parts["prose"].names == whole.names
    assert [document.name for document in parts["prose"].documents()] == [f"{number:02d}.txt" for number in range(4)]
    assert [parts[part].chat for part in ("chat", "code")] == [True, False]
    (tmp_path / "notes" / "00.txt").write_text('"""Changed."""\n')
    assert next(load_corpus("python:prose").documents()).text == "Changed.\n\n"
