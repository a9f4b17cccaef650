"""In a causal model no logit depends on a later token, whatever the operation's mask says; a prefix aside."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.masks import Alone, Strict, Without, describe, leaves
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.visibility import causal, longest_prefix
from tests.model.position_models import SIZES

TOKENS = 10
PREFIX = 4
LEAVES = (
    zoo.Causal(),
    zoo.Full(),
    zoo.Window(3),
    zoo.VisiblePrefix(PREFIX),
    zoo.Document(),
    Strict(),
    Without((2, 5)),
    Alone((1, 6)),
)
PAIRS = tuple(joined for one, other in product(LEAVES, LEAVES) for joined in (one & other, one | other))
NESTED = tuple(joined for pair, leaf in product(PAIRS[::3], LEAVES) for joined in (pair & leaf, leaf | pair))
TRAINED = (  # what a model is built with, one for each way to be joined
    zoo.Full(),
    zoo.Window(4),
    zoo.Document(),
    Strict() | zoo.Causal(),
    zoo.Document() | zoo.Causal(),
    zoo.Window(3) | zoo.VisiblePrefix(PREFIX),
    zoo.Document() & (zoo.Window(6) | zoo.VisiblePrefix(PREFIX)),
    zoo.Causal() & zoo.Window(2),
)
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]])


def seen(mask: zoo.Mask) -> torch.Tensor:
    """(query, key), written out."""
    return zoo.Visibility.of(mask, TOKENS, TOKENS, documents=DOCUMENTS).dense()[0, 0]


def allowed(prefix: int) -> torch.Tensor:
    """What a causal model may see: what came before, and the prefix."""
    key = torch.arange(TOKENS)
    return (key[None, :] <= key[:, None]) | (key[None, :] < prefix)


@pytest.mark.parametrize("masks", [LEAVES, PAIRS, NESTED], ids=["leaves", "pairs", "nested"])
def test_a_joined_mask_is_the_mask_below_the_diagonal_and_nothing_above_it(masks) -> None:
    """It loses what lies above the diagonal, and a prefix's square alone may keep some of that."""
    for mask in masks:
        joined, before = seen(causal(mask)), seen(mask)
        assert not bool((joined & ~allowed(longest_prefix(mask))).any()), describe(mask)
        assert torch.equal(joined.tril(), before.tril()), describe(mask)
        assert not bool((joined & ~before).any()), describe(mask)
        if not longest_prefix(mask):
            assert torch.equal(joined, before.tril()), describe(mask)


def test_a_mask_that_looks_back_stays_as_it_is_written() -> None:
    """The same value: saved models, hashes and the paths that know a mask stay what they were."""
    for mask in (
        zoo.Causal(),
        zoo.Causal() & zoo.Window(4),
        zoo.Causal() | zoo.VisiblePrefix(3),
        (zoo.Causal() & zoo.Document()) & zoo.Window(3),
        ((zoo.Causal() & zoo.Document()) & zoo.Window(3)) | zoo.VisiblePrefix(2),
    ):
        assert causal(mask) is mask
    assert causal(zoo.Full()) == zoo.Causal()
    assert causal(zoo.Window(4)) == zoo.Causal() & zoo.Window(4)
    prefixed = zoo.VisiblePrefix(PREFIX) | zoo.Full()
    assert seen(causal(prefixed)).equal(allowed(PREFIX))
    assert [type(leaf) for leaf in leaves(causal(prefixed))] == [zoo.VisiblePrefix, zoo.Causal]


def lab(**options: Any) -> LabForCausalLM:
    torch.manual_seed(0)
    return LabForCausalLM(LabConfig(**{**SIZES, "num_hidden_layers": 3, **options})).eval()


def influence(model: LabForCausalLM) -> torch.Tensor:
    """(logit's position, token's position): whether exchanging the token moves the logits."""
    ids = torch.randint(1, SIZES["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))
    others = ids.repeat(TOKENS, 1)
    others[torch.arange(TOKENS), torch.arange(TOKENS)] = (ids[0] + 7) % SIZES["vocab_size"]
    with torch.no_grad():
        usual = model(ids, document_ids=DOCUMENTS).logits
        moved = (model(others, document_ids=DOCUMENTS.expand(TOKENS, -1)).logits - usual).abs().amax(-1)
    return (moved > 1e-6).T


@pytest.mark.slow
@pytest.mark.parametrize("mask", TRAINED, ids=describe)
@pytest.mark.parametrize("options", [{}, {"sink_tokens": 2, "position": "alibi"}, {"kv_layers": [0, 0, 2]}], ids=str)
def test_no_logit_of_a_causal_model_depends_on_a_later_token(mask: zoo.Mask, options: dict[str, Any]) -> None:
    moved = influence(lab(attention=zoo.AttentionSpec(mask=mask), **options))
    assert not bool((moved & ~allowed(longest_prefix(mask))).any())
    assert bool(moved.diagonal().all())  # the test sees what there is to see
    assert bool(moved.tril(-1).any())


@pytest.mark.parametrize("name", ["sigmoid", "kv_bias", "forgetting_gate", "stable_mask", "differential", "gated_head"])
def test_nor_under_another_operation(name: str) -> None:
    spec = zoo.resolve(name)
    without = {**spec.to_dict(), "mask": {"kind": "window", "size": 4}}
    moved = influence(lab(attention=without, num_hidden_layers=2))
    assert not bool(moved.triu(1).any())
    assert bool(moved.tril(-1).any())


def test_a_bidirectional_model_sees_what_comes() -> None:
    assert bool(influence(lab(is_causal=False)).triu(1).any())
