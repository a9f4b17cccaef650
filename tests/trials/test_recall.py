"""Recall, by a model that finds exactly what its cache still holds."""

from __future__ import annotations

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.trials import Alphabet, Asked, Needles, noise, recalled, unchanged
from tests.trials.caches import Lookup, keeping

ALPHABET = Alphabet()


def test_an_answer_is_right_where_its_needle_is_still_held() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(20, seed=0)
    model = Lookup(ALPHABET.size)
    found = recalled(model, asked, [unchanged(), keeping(0, 30)])
    assert found["full"].unseen.all()
    # Behind the context the last 30 stay; before question q, 2 q tokens have come since.
    questions = torch.arange(4)
    held = asked.places >= 60 - 30 + 2 * questions
    assert torch.equal(found["0+30"].unseen, held)
    assert 0 < held.double().mean() < 1


def test_a_question_that_was_seen_is_a_choice_among_the_values_asked_for() -> None:
    """The planted model finds the key itself, behind the key, and prefers no value: nothing is right by a tie."""
    asked = Needles(length=60, pairs=6, asked=4).draw(20, seed=0)
    assert not recalled(Lookup(ALPHABET.size), asked, [unchanged()])["full"].seen.any()


def test_a_value_of_two_keys_is_right_for_both() -> None:
    asked = Needles(length=60, pairs=6, asked=4).draw(5, seed=0)
    same = Asked(asked.context, asked.keys, asked.answers[:, :1].expand(-1, 4).contiguous(), asked.places)
    assert recalled(Lookup(ALPHABET.size), same, [unchanged()])["full"].seen.all()


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
