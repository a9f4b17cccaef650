"""Where positions enter: swapping and replacing rows of a table, and what a common shift of all positions does.

The mechanism is `interventions.SwapPositions` and `ReplacePosition`, contexts that work on any model with a table.
Source: Gu et al. 2025, Table 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.interventions import Intervention, ReplacePosition, SwapPositions
from sinkscope.model import LabForCausalLM
from sinkscope.statistics.claims import CaseValue, EachAbove, EachWithin
from sinkscope_replication.theory import closed_forms as closed
from sinkscope_replication.theory.check import EXACT, ROUNDING, STORED, check
from sinkscope_replication.theory.repeated import ABSOLUTE, RELATIVE
from sinkscope_replication.theory.subjects import Build, gap, lab, look, ordinary, repeated

TOKENS = 32
PARTNERS = (5, 10, 15, 20, 25)  # the paper's t, here as positions from 0
SHIFT = 100


def embedded(model: LabForCausalLM, ids: Int[Tensor, "1 position"]) -> Float[Tensor, "position width"]:
    """h^0: token embeddings with their positions."""
    return look(model, ids).hidden[0]


def changed(model: LabForCausalLM, ids: Int[Tensor, "1 position"], change: Intervention) -> Tensor:
    """h^0 under an intervention."""
    with change.applied(model):
        return embedded(model, ids)


def swap_permutes(build: Build = lab) -> Iterator[CaseValue]:
    """On a repeated token: max |h^0 after P_0 ↔ P_t − h^0 with rows 0 and t exchanged|."""
    model = build(position="learned")
    before = embedded(model, repeated(TOKENS))
    for other in PARTNERS:
        order = torch.arange(TOKENS)
        order[[0, other]] = order[[other, 0]]
        yield CaseValue(f"t = {other}", gap(changed(model, repeated(TOKENS), SwapPositions(0, other)), before[order]))


def replace_equals(build: Build = lab) -> Iterator[CaseValue]:
    """On a repeated token: max |h^0_0 − h^0_t| after P_0 = P_t, and how far any other row moved."""
    model = build(position="learned")
    before = embedded(model, repeated(TOKENS))
    for other in PARTNERS:
        after = changed(model, repeated(TOKENS), ReplacePosition(0, other))
        yield CaseValue(f"t = {other}", gap(after[0], after[other]))
        yield CaseValue(f"t = {other}, other rows", gap(after[1:], before[1:]))


def swap_moves_embeddings(build: Build = lab) -> Iterator[CaseValue]:
    """On ordinary tokens: max |h^0 after the swap − (token + position, exchanged)|."""
    model = build(position="learned")
    ids = ordinary(TOKENS)
    words = model.model.embed_tokens.weight.detach()[ids[0]]
    places = embedded(model, ids) - words
    for other in PARTNERS:
        order = torch.arange(TOKENS)
        order[[0, other]] = order[[other, 0]]
        yield CaseValue(f"t = {other}", gap(changed(model, ids, SwapPositions(0, other)), words + places[order]))


def restored(build: Build = lab) -> Iterator[CaseValue]:
    """max |h^0 after the block − before it|."""
    model = build(position="learned")
    before = embedded(model, ordinary(TOKENS))
    for change in (SwapPositions(0, 5), ReplacePosition(0, 5)):
        changed(model, ordinary(TOKENS), change)
        yield CaseValue(type(change).__name__, gap(embedded(model, ordinary(TOKENS)), before))


def shift_changes(build: Build = lab, schemes: Sequence[str] = RELATIVE) -> Iterator[CaseValue]:
    """max |logits at positions s … s + T − 1 − logits at 0 … T − 1| on ordinary tokens."""
    ids = ordinary(TOKENS)
    for scheme in schemes:
        model = build(position=scheme)
        with torch.no_grad():
            logits = [
                model(ids, position_ids=torch.arange(start, start + TOKENS)[None], use_cache=False).logits
                for start in (0, SHIFT)
            ]
        yield CaseValue(scheme, gap(*logits))


def future_is_unseen(build: Build = lab, schemes: Sequence[str] = (*RELATIVE, *ABSOLUTE)) -> Iterator[CaseValue]:
    """max |logits before a token − the same after that token and all later ones were exchanged|."""
    ids = ordinary(TOKENS)
    other = ids.clone()
    other[:, TOKENS // 2 :] = ordinary(TOKENS, seed=2)[:, TOKENS // 2 :]
    for scheme in schemes:
        model = build(position=scheme)
        before, after = (look(model, tokens).logits[: TOKENS // 2] for tokens in (ids, other))
        yield CaseValue(scheme, gap(before, after))


def rotary_row_is() -> Iterator[CaseValue]:
    """|row of weights − reference| for q = k = (1, …, 1), width 8, base 10000."""
    ones = torch.ones(1, 8, dtype=torch.float64)
    expected = torch.tensor([0.102255, 0.156164, 0.310408, 0.431173], dtype=torch.float64)
    yield CaseValue("t = 4", gap(closed.by_distance(closed.rotary_scores(ones, ones, 4))[0, -1], expected))
    far = closed.received(closed.by_distance(closed.rotary_scores(ones, ones, 64)))[0]
    yield CaseValue("T = 64, alpha_1", float(far[0]) - 0.058409)
    yield CaseValue("T = 64, alpha_64", float(far[-1]) - 0.051037)


TABLE = "Gu et al. 2025, Table 7"

CHECKS = (
    check(
        "swapped positions",
        "on a repeated token, swapping P_1 and P_t exchanges two rows of h^0 exactly",
        TABLE,
        EXACT,
        swap_permutes,
    ),
    check(
        "a replaced position",
        "on a repeated token, P_1 replaced by P_t makes h^0_1 = h^0_t exactly and moves no other row",
        TABLE,
        EXACT,
        replace_equals,
    ),
    check(
        "swapped under ordinary tokens",
        "h^0 is token plus position, so a swap moves the positions and leaves the tokens",
        TABLE,
        ROUNDING,
        swap_moves_embeddings,
    ),
    check("positions come back", "after the context the table is what it was, bit for bit", TABLE, EXACT, restored),
    check(
        "a common shift",
        f"logits of relative schemes do not change when all positions grow by {SHIFT}: ⟨R(m) q, R(n) k⟩ depends on "
        "m − n",
        "Su et al. 2021, Press et al. 2022, Raffel et al. 2020",
        EachWithin(1e-4),  # rotary angles of up to 131 radians are made in fp32
        shift_changes,
    ),
    check(
        "a common shift under absolute positions",
        "logits of sinusoidal and learned positions do change when all positions grow",
        "Vaswani et al. 2017",
        EachAbove(0.01),
        partial(shift_changes, schemes=ABSOLUTE),
    ),
    check(
        "rotary in numbers",
        "q = k = (1, …, 1), width 8: row 4 is .102255, .156164, .310408, .431173; alpha_1 = .058409, alpha_64 = "
        ".051037 at T = 64",
        "Su et al. 2021; computed independently",
        STORED,
        rotary_row_is,
    ),
    check(
        "the past does not see the future",
        "logits before a token stay what they are when it and all later ones change, under every scheme",
        "Gu et al. 2025",
        ROUNDING,
        future_is_unseen,
    ),
)
