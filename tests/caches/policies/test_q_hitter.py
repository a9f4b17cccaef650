"""Q-Hitter keeps what loops over keys say it should."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import PreTrainedModel

from sinkscope import quantization
from sinkscope.caches import EvictionCall, Policy, evicting
from sinkscope.caches.notes import Received
from sinkscope.caches.policies import H2O, POLICIES, QHitter
from sinkscope.caches.policies.q_hitter import RoundingErrors, rounding_error
from sinkscope.caches.registering import policy as register
from sinkscope.errors import InputError
from tests.caches import reference
from tests.caches.naive_scores import newest, summed
from tests.caches.policies.test_reference import BUDGET, IDS, PADS, PROMPT, kept_sets, run
from tests.families.registry import FAMILIES

ALWAYS = ["prefill", "always"]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("eager")


def published(x: list[float], bits: int) -> list[float]:
    """The quantizer of the method's code, a number at a time."""
    top = 2**bits - 1
    scale = max(max(x) - min(x), 1e-5) / top
    zero = max(0, min(top, -round(min(x) / scale)))
    return [(max(0, min(top, round(value / scale) + zero)) - zero) * scale for value in x]


@pytest.mark.parametrize("bits", [2, 4])
def test_the_error_is_that_of_the_published_quantizer(bits: int) -> None:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1] += 5  # 0 is outside of its range
    x[2] = 1.5
    for row, found in zip(x.tolist(), rounding_error(x, bits).tolist(), strict=True):
        assert found == pytest.approx(math.dist(row, published(row, bits)), rel=1e-6)


def loops(attention: float, bits: int, recent: int, first: int) -> reference.Score:
    def of_row(of: reference.History, row: int) -> dict[tuple[int, int], float]:
        stored = [(head, k) for (r, head), kept in of.kept.items() if r == row for k in kept]
        hits = {one: summed(of, row, *one) for one in stored}
        errors = [
            {
                (head, k): math.dist(x[row, head, k].tolist(), published(x[row, head, k].tolist(), bits))
                for head, k in stored
            }
            for x in (of.key, of.value)
        ]

        def scaled(x: dict[tuple[int, int], float], one: tuple[int, int]) -> float:
            return (x[one] - min(x.values())) / (max(x.values()) - min(x.values()))

        found = {}
        for head, k in stored:
            one = head, k
            q = 1 - (scaled(errors[0], one) + scaled(errors[1], one)) / 2
            found[one] = attention * scaled(hits, one) + (1 - attention) * q
        for head in {head for head, _ in stored}:
            old = sorted(
                (k for h, k in stored if h == head and not newest(of, k, recent)), key=lambda k: (hits[head, k], k)
            )
            for k in old[len(old) - first :] if first else []:
                found[head, k] += 2
        return found

    def score(of: reference.History, row: int, head: int, k: int) -> float:
        name = ("qhitter", row, of.total)
        if name not in of.notes:
            of.notes[name] = of_row(of, row)
        return math.inf if newest(of, k, recent) else of.notes[name][head, k]

    return score


@pytest.mark.parametrize("when", ALWAYS)
@pytest.mark.parametrize("attention", [0.5, 0.0])
def test_kept_sets_and_logits_are_those_of_the_loops(model: PreTrainedModel, when: str, attention: float) -> None:
    policy = QHitter(attention)
    score = loops(attention, 4, BUDGET // 4, int(BUDGET * 0.35))
    wanted, wanted_sets = reference.run(model, IDS, PADS, PROMPT, score, BUDGET, when == "always")
    logits, sets = run(model, IDS, policy, when)
    assert sets == wanted_sets
    torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_attention_alone_is_h2o_and_rounding_alone_forgets_outliers(model: PreTrainedModel) -> None:
    ids = IDS[:1]

    def kept(policy: Policy) -> list[dict[reference.Head, set[int]]]:
        with evicting(model, policy, BUDGET) as cache:
            model(ids, past_key_values=cache)
        return kept_sets(cache)

    assert kept(QHitter(1.0)) == kept(H2O(recent=0.25))
    assert kept(QHitter(0.0, first=0.0)) != kept(QHitter(1.0))


def test_of_equal_hitters_the_newest_stay_wherever_they_are_stored() -> None:
    """Decoded tokens replace evicted keys in place, so slots are not in the order of places."""
    places = torch.tensor([[[7, 0, 9, 4, 2, 1]]])
    x = torch.zeros(1, 1, 6, 4)
    call = EvictionCall(
        query=x[:, :, :1],
        key=x,
        value=x,
        places=places,
        total=10,
        scaling=1.0,
        cache_heads=1,
        budget=torch.tensor([8]),
        module=torch.nn.Identity(),
        notes={Received(): torch.ones(1, 1, 6), RoundingErrors(4): torch.zeros(1, 1, 6, 2)},
    )
    scores = QHitter(recent=1 / 8, first=2 / 8).score(call)
    assert places[scores == torch.inf].tolist() == [9]
    assert sorted(places[scores > 1].tolist()) == [4, 7, 9]


@torch.no_grad()
@pytest.mark.parametrize("when", ALWAYS)
def test_what_stays_is_rounded_once_as_the_published_quantizer_does(model: PreTrainedModel, when: str) -> None:
    """A prompt sees itself whole, so that the first pass keeps what it keeps without rounding."""
    ids, plain = IDS[:1], model(IDS[:1]).logits
    with evicting(model, QHitter(), BUDGET, when=when) as whole:
        model(ids, past_key_values=whole)
    with evicting(model, QHitter(rounds=True), BUDGET, when=when) as coarse:
        torch.testing.assert_close(model(ids, past_key_values=coarse).logits, plain)
        assert kept_sets(coarse) == kept_sets(whole)
        held = []
        for mine, theirs in zip(coarse.layers, whole.layers, strict=True):
            for name in ("keys", "values"):
                rows = theirs.slots[name].flatten(0, -2)
                wanted = torch.tensor([published(row.tolist(), 4) for row in rows]).view_as(theirs.slots[name])
                torch.testing.assert_close(mine.slots[name], wanted, atol=1e-6, rtol=1e-5)
            held.append((mine.places.clone(), mine.slots["keys"].clone()))
        model(ids[:, :1], past_key_values=coarse)
        for layer, (places, keys) in zip(coarse.layers, held, strict=True):
            newest = layer.places == layer.seen - 1
            assert newest.any(-1).all()
            for row, head, slot in (~newest).nonzero().tolist():
                before = (places[row, head] == layer.places[row, head, slot]).nonzero()[0, 0]
                assert torch.equal(layer.slots["keys"][row, head, slot], keys[row, head, before])  # never again
            new = layer.slots["keys"][newest]
            assert all(len(set(row.tolist())) <= 16 for row in new)
    assert whole.layers[0].slots["keys"].unique().numel() > coarse.layers[0].slots["keys"].unique().numel()


def test_outlying_channels_are_what_rounds_badly() -> None:
    x = torch.randn(2, 3, 9, 16, generator=torch.Generator().manual_seed(0))
    x[:, :, 4, 7] = 60
    assert (rounding_error(x, 4).argmax(-1) == 4).all()


def test_its_name_and_its_room_of_before_are_read() -> None:
    assert POLICIES["qhitter"] is quantization.QHitter is QHitter
    assert register(QHitter) is QHitter  # what an installation of before names under its entry points


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"attention": 1.5}, "attention is 1.5"),
        ({"recent": 0.7}, "leave nothing"),
        ({"bits": 0}, "bits is 0"),
        ({"first": -0.1}, "first is -0.1"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        QHitter(**options)  # type: ignore[arg-type]
