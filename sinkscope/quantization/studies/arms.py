"""The arms of a study: each choice of tokens, and what it must be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.errors import InputError
from sinkscope.model.columns import columns_of
from sinkscope.quantization.prefix import Prefix
from sinkscope.quantization.prefix.serving import own_tokens
from sinkscope.quantization.spared import FirstTokens, Known, RandomTokens, Spared

Choice = Spared | Prefix
Role = Literal["full", "nothing", "spared", "first", "control"]
FULL, NOTHING = "full", "nothing"


@dataclass(frozen=True, eq=False)
class Arm:
    """A side of a study. `spared`: as it was asked for, to calibrate with; `known`: its tokens in the study's inputs.

    `choice`: the choice whose control it is, or which it is; empty for the full model and for nothing spared. Behind a
    `prefix` nothing of the text is spared; `known` are then the tokens that the prefix stands in for.
    """

    name: str
    role: Role
    choice: str = ""
    spared: Spared | None = None
    known: Known | None = None
    prefix: Prefix | None = None

    def budget(self, rows: int) -> Int[Tensor, " row"]:
        """How many tokens of each row are in full precision, those of a prefix among them."""
        if self.prefix is not None:
            return torch.full((rows,), len(self.prefix.ids))
        return torch.zeros(rows, dtype=torch.long) if self.known is None else self.known.count.cpu()


def arms_of(
    model: nn.Module,
    given: Mapping[str, Any],
    choices: Mapping[str, Choice],
    controls: int,
    seed: int,
    spares: bool = True,
) -> list[Arm]:
    """The full model, nothing spared, and for each choice: itself, the first n of its budget, random controls.

    The budget of a choice is how many tokens it spares in each row, of a prefix how many it has; the first tokens have
    it row by row. The controls of a prefix are prefixes of as many random tokens. `spares`: False where tokens of the
    texts cannot be spared, so that a prefix stands beside its controls alone. Raises `InputError` for a choice that
    spares nothing, without a control, and where so many different ones do not exist.
    """
    if controls < 1:
        raise InputError(f"controls = {controls}: what is spared says nothing without a control, so at least 1")
    found = [Arm(FULL, "full"), Arm(NOTHING, "nothing")]
    for name, choice in choices.items():
        if name in (FULL, NOTHING):
            raise InputError(f"a choice is named '{name}', which every study has by itself: name it otherwise")
        of = "" if len(choices) == 1 else f" for {name}"
        if isinstance(choice, Prefix):
            own, first, *random = _behind(model, given, name, choice, controls, seed, of)
            new = spares and all(arm.name != first.name for arm in found)
            found += [own, *([first] if new else []), *random]
            continue
        known = choice.known(model, given)
        if not bool(known.count.any()):
            raise InputError(f"'{name}' spares no token of these inputs, so there is nothing to study")
        found.append(Arm(name, "spared", name, choice, known))
        first = _first_arm(known, known.count, name)
        if all(arm.name != first.name for arm in found):
            found.append(first)
        found += _controls(model, given, name, choice, controls, seed, of)
    return found


def first_of(budget: float) -> str:
    """The name of the arm of the first tokens, by how many these are on average in a row."""
    return f"first {budget:.3g}"


def _first_arm(known: Known, counts: Int[Tensor, " row"], choice: str, real: Tensor | None = None) -> Arm:
    """So many first tokens of each of the known rows; as a choice for other inputs, their largest number."""
    counted = torch.arange(known.chosen.shape[1], device=known.chosen.device)
    chosen = counted < counts.to(counted.device)[:, None]
    chosen = chosen if real is None else chosen & real
    first = Known(chosen, known.text, known.given, {"name": "as many first tokens"})
    return Arm(first_of(float(counts.float().mean())), "first", choice, FirstTokens(int(counts.max())), first)


def _behind(
    model: nn.Module, given: Mapping[str, Any], name: str, prefix: Prefix, controls: int, seed: int, of: str
) -> list[Arm]:
    """A prefix, the first tokens of its budget, then prefixes of random tokens."""
    columns = columns_of(model, given)
    counts = torch.full((len(columns.real),), len(prefix.ids))
    rows = Known.of(columns.real, columns, {})

    def arm(called: str, role: Role, one: Prefix) -> Arm:
        own = own_tokens(one, given)
        own = functional.pad(own, (columns.real.shape[1] - own.shape[1], 0))  # learned tokens before a sequence
        return Arm(called, role, name, None, Known.of(own, columns, one.describe()), one)

    found = [arm(name, "spared", prefix), _first_arm(rows, counts, name, rows.chosen)]
    generator = torch.Generator().manual_seed(seed)
    random: dict[tuple[int, ...], Prefix] = {}
    for _ in range(20 * controls):
        drawn = prefix.control(generator, model, given)
        random.setdefault(drawn.ids, drawn)
        if len(random) == controls:
            return found + [arm(f"random {at + 1}{of}", "control", one) for at, one in enumerate(random.values())]
    raise _too_few(controls, len(random), "give texts of more different tokens")


def _controls(
    model: nn.Module, given: Mapping[str, Any], name: str, choice: Spared, count: int, seed: int, of: str
) -> list[Arm]:
    found: list[Arm] = []
    fixed = choice.known(model, given)
    for draw in range(20 * count):
        random = RandomTokens(fixed, seed + draw)
        known = random.known(model, given)
        if all(not torch.equal(known.chosen, arm.known.chosen) for arm in found if arm.known is not None):
            spared = RandomTokens(choice, seed + draw)
            found.append(Arm(f"random {len(found) + 1}{of}", "control", name, spared, known))
        if len(found) == count:
            return found
    raise _too_few(count, len(found), "spare fewer tokens, so that more are left to draw from")


def _too_few(asked: int, found: int, otherwise: str) -> InputError:
    return InputError(
        f"{asked} controls were asked for, but only {found} different ones exist: ask for controls={found} "
        f"(--controls), or {otherwise}"
    )
