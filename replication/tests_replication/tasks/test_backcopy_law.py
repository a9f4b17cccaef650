"""The law of the Bigram-Backcopy task, and sequences drawn from it: exact rules, and chi² where there is chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope_replication.tasks.backcopy_law import BOS, Sequences, law_of, tokenizer_of

from .conftest import drawn


def chi2(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """By how many standard deviations Pearson's χ² exceeds its mean; rare cells are put together."""
    expected = probabilities * counts.sum()
    common = expected >= 5
    seen, wanted = (
        np.append(counts[common], counts[~common].sum()),
        np.append(expected[common], expected[~common].sum()),
    )
    keep = wanted > 0
    assert not seen[~keep].any()
    degrees = keep.sum() - 1
    return float((((seen - wanted) ** 2)[keep] / wanted[keep]).sum() - degrees) / math.sqrt(2 * degrees)


def test_the_law_of_a_text_is_its_pairs(small, text):
    assert small.characters == tuple("abcde")
    documents = ["aaaabbbacbcadaebcd" * 3, "eabacadabx"]  # no pair across documents, and none with the rare x
    for i, first in enumerate("abcde", start=1):
        follows = [
            sum(part[t : t + 2] == first + second for part in documents for t in range(60)) for second in "abcde"
        ]
        np.testing.assert_allclose(small.transition[i, 1:], np.array(follows) / sum(follows))
    counts = np.array([sum(part.count(letter) for part in documents) for letter in "bcde"])
    np.testing.assert_allclose(small.transition[BOS], [0, 0, *(counts / counts.sum())])
    assert not small.transition[:, BOS].any()


def test_the_default_law(law):
    assert law.tokens == 65
    assert law.triggers == 3
    assert law.characters[:2] == (" ", "e")
    np.testing.assert_allclose(law.transition.sum(1), 1)


def test_a_trigger_copies_what_stands_before_it(law):
    ids = drawn(law, 200, 64)
    copied = law.is_trigger(ids)[:, 1:-1]
    assert copied.sum() > 1000
    assert torch.equal(ids[:, 2:][copied], ids[:, :-2][copied])


def test_one_bos_and_no_trigger_behind_it(law):
    ids = drawn(law, 500, 32)
    assert ((ids == BOS).sum(1) == 1).all()
    assert (ids[:, 0] == BOS).all()
    assert not law.is_trigger(ids[:, 1]).any()
    assert not law.is_trigger(torch.tensor([BOS, law.triggers + 1])).any()


def test_bigrams_behind_other_tokens_are_the_texts(law):
    ids = drawn(law, 1500, 64).numpy()
    for token in range(law.triggers + 1, law.triggers + 9):
        follows = ids[:, 1:][ids[:, :-1] == token]
        assert abs(chi2(np.bincount(follows, minlength=law.tokens), law.transition[token])) < 4
    assert abs(chi2(np.bincount(ids[:, 1], minlength=law.tokens), law.transition[BOS])) < 4


def test_a_wrong_matrix_would_be_noticed(law):
    ids = drawn(law, 1500, 64).numpy()
    token, other = law.triggers + 1, law.triggers + 2
    follows = np.bincount(ids[:, 1:][ids[:, :-1] == token], minlength=law.tokens)
    mixed = 0.9 * law.transition[token] + 0.1 * law.transition[other]
    assert chi2(follows, mixed) > 4


@pytest.mark.parametrize("copying", [0.0, 0.4])
def test_between_copying_and_a_markov_chain(copying):
    law = law_of(copying=copying)
    ids = drawn(law, 800, 64)
    triggers = law.is_trigger(ids)[:, 1:-1]
    last, follows, before = ids[:, 1:-1][triggers], ids[:, 2:][triggers], ids[:, :-2][triggers]
    chance = torch.from_numpy(law.transition)[last, before]
    share = copying + (1 - copying) * chance
    copies = (follows == before).double()
    assert abs(float((copies - share).sum())) < 4 * float((share * (1 - share)).sum().sqrt())
    assert abs(chi2(np.bincount(follows[copies == 0], minlength=65), expected_elsewhere(law, last, before))) < 4


def expected_elsewhere(law, last, before) -> np.ndarray:
    """What follows triggers where nothing is copied, on average over these."""
    rows = law.transition[last.numpy()].copy()
    rows[np.arange(len(rows)), before.numpy()] = 0
    return (rows / rows.sum(1, keepdims=True)).mean(0)


@pytest.mark.parametrize("copying", [0.0, 0.3, 1.0])
def test_surprise_is_minus_log_of_the_law(text, copying):
    law = law_of(text, characters=5, triggers=2, copying=copying)
    ids = drawn(law, 20, 12)
    found = law.surprise(ids)
    for row, surprises in zip(ids.tolist(), found.tolist(), strict=True):
        for t in range(len(row) - 1):
            probability = law.transition[row[t], row[t + 1]]
            if 0 < row[t] <= 2:
                probability = copying * (row[t + 1] == row[t - 1]) + (1 - copying) * probability
            assert surprises[t] == pytest.approx(-math.log(probability), abs=1e-5)


def test_items_depend_on_part_seed_and_number_alone(law):
    def item(number: int, part: str = "a", seed: int = 0) -> list[int]:
        return Sequences(law, 10, 32, part, seed)[number]["input_ids"].tolist()

    assert item(3) == item(3)
    assert len({tuple(each) for each in (item(3), item(4), item(3, "b"), item(3, seed=1))}) == 4
    sequences = Sequences(law, 10, 32, "a", 0)
    assert len(sequences) == 10
    for outside in (-1, 10):
        with pytest.raises(IndexError):
            sequences[outside]
    assert torch.equal(sequences[0]["labels"], sequences[0]["input_ids"])


def test_the_tokenizer_has_the_laws_ids(law):
    tokenizer = tokenizer_of(law)
    assert len(tokenizer) == law.tokens
    text = "e a\ntrigger"
    ids = tokenizer(text)["input_ids"]
    assert ids == [BOS, *(law.characters.index(character) + 1 for character in text)]


def test_laws_that_differ_have_other_digests(text, law):
    laws = [law, law_of(triggers=2), law_of(copying=0.5), law_of(characters=32), law_of(text, 5, 1)]
    assert len({each.sha256() for each in laws}) == 5


def test_a_text_of_too_few_characters(tmp_path):
    for name in ("1.txt", "2.txt"):
        (tmp_path / name).write_text("abab")
    with pytest.raises(InputError, match="2 different characters"):
        law_of(f"text:{tmp_path}/*.txt")
