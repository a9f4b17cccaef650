"""Chosen tokens are protected wherever they stand: planted ones are found, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.caches import EvictingCache, Protect, SinkSet, evicting
from sinkscope.caches.policies import KeyNorm, RandomKeys
from sinkscope.errors import InputError
from sinkscope.sinks import Choice, First, Last, Measured, Online, Outliers, Positions, TokenIds, Tokens
from sinkscope.sinks.tokens import Rows
from tests.caches import reference
from tests.families.registry import FAMILIES

IDS = torch.randint(10, 90, (2, 40), generator=torch.Generator().manual_seed(3))
IDS[:, 13] = IDS[1, 4] = 5
PADDED = torch.ones(2, 40).long().index_put_((torch.tensor(1), torch.arange(4)), torch.tensor(0))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


def kept(
    model: PreTrainedModel, protect: Choice | Tokens | None, budget: int = 9, mask: Tensor | None = None
) -> list[list[list[set[int]]]]:
    """The kept columns of each row of each head of each layer."""
    with evicting(model, RandomKeys(), budget, protect=protect, recent=3) as cache, torch.no_grad():
        model(IDS, attention_mask=mask, past_key_values=cache)
    return [[[{p for p in head if p >= 0} for head in row] for row in layer.places.tolist()] for layer in cache.kept]


def test_the_first_are_counted_behind_the_padding(model: PreTrainedModel) -> None:
    for layer in kept(model, First(2), mask=PADDED):
        assert all({0, 1, 37, 38, 39} <= head for head in layer[0])
        assert all({4, 5, 37, 38, 39} <= head for head in layer[1])


def test_positions_and_the_last_add_up(model: PreTrainedModel) -> None:
    for layer in kept(model, Positions(7) + Last(5), mask=PADDED):
        assert all({7, 35, 36, 37, 38, 39} <= head for head in layer[0])
        assert all({11, 35, 36, 37, 38, 39} <= head for head in layer[1])
    assert Protect(KeyNorm(), Positions(7) + Last(5), 3).least == 7


def test_ids_are_protected_wherever_they_stand(model: PreTrainedModel) -> None:
    for layer in kept(model, TokenIds(5)):
        assert all(13 in head for head in layer[0])
        assert all({4, 13} <= head for head in layer[1])
    without = kept(model, TokenIds(6))
    assert not all(13 in head for layer in without for row in layer for head in row)


def planted(tokens: dict[tuple[int, int], int], rows: Rows | None = None, row: int = 0) -> Tokens:
    """Tokens of 2 layers of 4 heads: of head (layer, head) the one at a position."""
    mask = np.zeros((1 if rows is None else len(rows), 2, 4, 40), dtype=bool)
    for (layer, head), position in tokens.items():
        mask[row, layer, head, position] = True
    return Tokens(mask, rows, (0, 1))


def test_tokens_are_those_of_the_heads_group(model: PreTrainedModel) -> None:
    tokens = planted({(0, 1): 7, (1, 2): 11})
    found = kept(model, tokens, mask=PADDED)
    assert 7 in found[0][0][0]
    assert 11 in found[0][1][0]  # in the row with 4 of padding
    assert 11 in found[1][0][1]
    assert 15 in found[1][1][1]
    free = kept(model, None, mask=PADDED)
    assert found[0][0][1] == free[0][0][1]  # the other group's head keeps what it would
    assert Protect(KeyNorm(), tokens, 0).least == 2
    assert Protect(KeyNorm(), planted({(0, 1): 7, (0, 0): 8}), 0).least == 2
    assert Protect(KeyNorm(), Tokens(np.ones((1, 1, 1, 3), bool)), 0).least == 4


def test_tokens_of_a_row_are_protected_in_it_alone(model: PreTrainedModel) -> None:
    rows = Rows.plain([40, 36])
    found, free = kept(model, planted({(0, 0): 9}, rows, 1), mask=PADDED), kept(model, None, mask=PADDED)
    assert 13 in found[0][1][0]
    assert found[0][0] == free[0][0]


@dataclass(eq=False)
class Known:
    """A measurement that has found these."""

    tokens: Tokens

    def sinks(self, epsilon: float, by: str) -> Tokens:
        assert (epsilon, by) == (0.2, "position")
        return self.tokens


def test_a_measurement_tells_its_sinks(model: PreTrainedModel) -> None:
    tokens = planted({(0, 1): 7})
    assert kept(model, Measured(0.2, measurement=Known(tokens))) == kept(model, tokens)
    both = kept(model, First(1) + Measured(0.2, measurement=Known(tokens)))
    assert {0, 7} <= both[0][0][0]


@pytest.mark.parametrize("mask", [None, PADDED], ids=["plain", "padded"])
def test_sinks_found_online_are_those_of_loops(model: PreTrainedModel, mask: Tensor | None) -> None:
    """α, the queries that see a token and what uniform attention gives, by loops over a model that keeps everything."""
    pads = [0, 0] if mask is None else [0, 4]
    epsilon, total, some = 0.12, IDS.shape[1], 0
    eager = FAMILIES["llama"].build("eager")
    with reference.loops(eager, pads) as histories, torch.no_grad():
        columns = (torch.arange(total)[None] - torch.tensor(pads)[:, None]).clamp(min=0)
        eager(IDS, position_ids=columns)
    for history, sets in zip(histories, kept(model, Online(epsilon), 30, mask), strict=True):
        for row in range(2):
            for head in range(2):
                sinks = set()
                for k in range(pads[row], total):
                    alpha = max(
                        sum(history.given[row, h][t].get(k, 0.0) for t in range(k, total)) / (total - k)
                        for h in history.of_group(head)
                    )
                    uniform = sum(1 / (t + 1 - pads[row]) for t in range(k, total)) / (total - k)
                    if alpha > epsilon and alpha >= 2 * uniform and total - k >= 17:
                        sinks.add(k)
                assert sinks <= sets[row][head]
                some += len(sinks)
    assert some


def test_one_query_makes_no_sink_online(model: PreTrainedModel) -> None:
    """The last token gives itself much: nothing of it is protected, so a budget of 4 is enough."""
    with evicting(model, RandomKeys(), 4, protect="online@0.01", recent=0) as cache, torch.no_grad():
        model(IDS[:, :4], past_key_values=cache)  # N = 4: the first token alone counts
        model(IDS[:, 4:6], past_key_values=cache)
    assert all(layer.used == 4 for layer in cache.kept)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Protect(KeyNorm(), Measured()), "find_tokens"),
        (lambda: Protect(KeyNorm(), First(1) + Outliers()), "outliers: a cache cannot tell"),
        (lambda: Protect(KeyNorm(), 4), "a choice of tokens"),  # type: ignore[arg-type]
        (lambda: Protect(KeyNorm(), First(1), -1), "at least 0"),
    ],
)
def test_what_no_cache_can_tell_is_refused(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


@torch.no_grad()
def test_what_a_pass_does_not_tell_is_refused(model: PreTrainedModel) -> None:
    def run(protect: Choice | Tokens, **inputs: Any) -> EvictingCache:
        with evicting(model, Protect(KeyNorm(), protect, 2), 9) as cache:
            model(**inputs, past_key_values=cache)
        return cache

    with pytest.raises(InputError, match="given embeddings"):
        run(TokenIds(5), inputs_embeds=torch.randn(1, 20, 32))
    with pytest.raises(InputError, match="layer 0"):
        run(Tokens(np.ones((1, 2, 4, 3), bool), None, (4, 5)), input_ids=IDS)
    with pytest.raises(InputError, match="another model"):
        run(Tokens(np.ones((1, 2, 3, 3), bool), None, (0, 1)), input_ids=IDS)
    with pytest.raises(InputError, match="chosen in 1 texts, but the batch has 2"):
        run(planted({(0, 0): 3}, Rows.plain([40])), input_ids=IDS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda: SinkSet.online(0.2), Online(0.2)),
        (lambda: SinkSet.tokens([5, 6]), TokenIds(5, 6)),
        (lambda: SinkSet.first(2), First(2)),
        (lambda: SinkSet.first(0), None),
        (lambda: SinkSet.of(Known, 0.2), Measured(0.2, measurement=Known)),
    ],
)
def test_old_names_say_the_new_ones(old: Any, new: Any) -> None:
    with pytest.deprecated_call(match="sinkscope.sinks"):
        assert old() == new
