"""Recall, by a model that finds exactly what its cache still holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from sinkscope.errors import InputError
from sinkscope.trials import Alphabet, Asked, Needles, asked_in_chat, noise, recalled, unchanged
from sinkscope.trials.needles import NAMES, WORDS
from tests.trials.caches import Lookup, keeping, llama, texts

ALPHABET = Alphabet()


def test_an_answer_is_right_where_its_needle_is_still_held() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(20, seed=0)
    model = Lookup(ALPHABET.size)
    found = dict(recalled(model, asked, [unchanged(), keeping(0, 30)]))
    assert found["full"].unseen.all()
    # Behind the context the last 30 stay; before question q, 2 q tokens have come since.
    questions = torch.arange(4)
    held = asked.places >= 60 - 30 + 2 * questions
    assert torch.equal(found["0+30"].unseen, held)
    assert 0 < held.double().mean() < 1


def test_a_question_that_was_seen_is_a_choice_among_the_values_asked_for() -> None:
    """The planted model finds the key itself, behind the key, and prefers no value: nothing is right by a tie."""
    asked = Needles(length=60, pairs=6, asked=4).draw(20, seed=0)
    assert not dict(recalled(Lookup(ALPHABET.size), asked, [unchanged()]))["full"].seen.any()


def test_a_value_of_two_keys_is_right_for_both() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(5, seed=0)
    same = Asked(asked.context, asked.keys, asked.answers[:, :1].expand(-1, 4).contiguous(), asked.places)
    assert dict(recalled(Lookup(ALPHABET.size), same, [unchanged()]))["full"].seen.all()


def test_needles_stand_where_they_are_said_to_stand() -> None:
    asked = Needles(length=50, pairs=8, asked=5).draw(200, seed=3)
    assert asked.context.shape == (200, 50)
    assert (asked.context[:, 0] == ALPHABET.bos).all()
    assert torch.equal(asked.context.gather(1, asked.places), asked.keys)
    assert torch.equal(asked.context.gather(1, asked.places + 1), asked.answers)
    for ids, (first, end) in ((asked.keys, ALPHABET.keys), (asked.answers, ALPHABET.values)):
        assert ((ids >= first) & (ids < end)).all()
    assert all(len(set(row)) == 5 for row in asked.keys.tolist())
    is_key = (asked.context >= ALPHABET.keys[0]) & (asked.context < ALPHABET.keys[1])
    assert (is_key.sum(1) == 8).all()
    assert all(len(set(row[mask].tolist())) == 8 for row, mask in zip(asked.context, is_key, strict=True))


def test_the_same_seed_gives_the_same_needles() -> None:
    first, again, other = (Needles().draw(4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.context, again.context)
    assert torch.equal(first.keys, again.keys)
    assert not torch.equal(first.context, other.context)


def test_noise_is_followed_by_four_tokens_equally_often() -> None:
    chain = noise(200, 400, torch.Generator().manual_seed(0))
    first, end = ALPHABET.noise
    assert int(chain.min()) >= first
    assert int(chain.max()) < end
    counts = torch.zeros(64, 64)
    here, there = (chain[:, :-1] - first).flatten(), (chain[:, 1:] - first).flatten()
    counts.index_put_((here, there), torch.ones(here.numel()), accumulate=True)
    assert ((counts > 0).sum(1) == 4).all()
    shares = counts[counts > 0].view(64, 4) / counts.sum(1, keepdim=True)
    assert (shares - 0.25).abs().max() < 0.06


def test_words_spell_every_id_once() -> None:
    words = ALPHABET.words()
    assert len(set(words)) == len(words) == 192
    assert (words[0], words[3], words[65], words[191]) == ("<bos>", "k3", "v65", "n191")


@pytest.mark.parametrize("fields", [{"asked": 8}, {"asked": 1}, {"length": 16}])
def test_needles_that_do_not_fit_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match="needles"):
        Needles(**fields)


TEMPLATE = "{% for turn in messages %}<{{ turn.role }}> {{ turn.content }} <end> {% endfor %}"


def chat_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Words and punctuation marks, each a token."""
    text = f"{NAMES} {WORDS} The secret word of is . What the ? I have read passages < > user assistant end"
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(["<unk>", *text.split()]))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = template
    return fast


def test_facts_in_a_chat_are_in_their_passages_and_asked_for_in_turns() -> None:
    tokenizer, lengths = chat_tokenizer(), (30, 20, 25)
    asked = asked_in_chat(tokenizer, torch.zeros(6, 100, dtype=torch.long), lengths, asked=2, seed=0)
    chosen = set()
    for row in range(6):
        words = tokenizer.convert_ids_to_tokens(asked.context[row])
        assert words[:3] == ["<", "user", ">"]
        assert words[75:81] == ["<", "end", ">", "<", "assistant", ">"]
        for start, stop in ((0, 30), (30, 50), (50, 75)):
            assert words[start:stop].count("secret") == 1
        for question in range(2):
            place = int(asked.places[row, question])
            answer = tokenizer.convert_ids_to_tokens(asked.answers[row, question : question + 1])
            assert words[place - 4 : place + 4] == ["The", "secret", "word", "of", words[place], "is", *answer, "."]
            key = tokenizer.convert_ids_to_tokens(asked.keys[row, question])
            assert " ".join(key) == (
                f"< end > < user > What is the secret word of {words[place]} ? < end > < assistant > "
                f"The secret word of {words[place]} is"
            )
            chosen.add((words[place], *answer))
    assert len(chosen) > 8
    again = asked_in_chat(tokenizer, torch.zeros(6, 100, dtype=torch.long), lengths, asked=2, seed=0)
    assert torch.equal(asked.context, again.context)


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{% for m in messages %}{{ m.content * 2 }}{% endfor %}"]
)
def test_a_template_that_leaves_out_or_repeats_messages_asks_nothing(template: str) -> None:
    with pytest.raises(InputError, match="leaves out"):
        asked_in_chat(chat_tokenizer(template), torch.zeros(6, 100, dtype=torch.long), (30,), asked=1, seed=0)


def test_questions_of_several_tokens_are_answered_after_their_last() -> None:
    model, tokenizer = llama(vocab_size=60), chat_tokenizer()
    asked = asked_in_chat(tokenizer, texts(3, 40), (16, 14), asked=1, seed=0)
    found = dict(recalled(model, asked, [unchanged()]))["full"]
    with torch.no_grad():
        logits = model(torch.cat([asked.context, asked.keys[:, 0]], 1)).logits[:, -1]
    likeliest = Asked(asked.context, asked.keys, logits.argmax(-1, keepdim=True), asked.places)
    assert torch.equal(found.unseen[:, 0], logits.argmax(-1) == asked.answers[:, 0])
    assert dict(recalled(model, likeliest, [unchanged()]))["full"].unseen.all()
    assert found.seen is None


@pytest.mark.parametrize(
    ("template", "options", "why"),
    [
        (None, {}, "chat template"),
        (TEMPLATE, {"asked": 3}, "fewer than there are"),
        (TEMPLATE, {"each": 6}, "at most 16"),
        (TEMPLATE, {"lengths": (10, 20, 20)}, "no room"),
        (TEMPLATE, {"lengths": (60, 60, 60)}, "too short"),
    ],
)
def test_a_chat_that_does_not_fit_is_refused(template: str | None, options: dict[str, Any], why: str) -> None:
    options = {"lengths": (30, 20, 25), "asked": 2, **options}
    with pytest.raises(InputError, match=why):
        asked_in_chat(chat_tokenizer(template), texts(2, 100), options.pop("lengths"), seed=0, **options)
