"""The arms of a study: each choice of tokens, and what it must be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.quantization.spared import FirstTokens, Known, RandomTokens, Spared

Role = Literal["full", "nothing", "spared", "first", "control"]
FULL, NOTHING = "full", "nothing"


@dataclass(frozen=True, eq=False)
class Arm:
    """A side of a study. `spared`: as it was asked for, to calibrate with; `known`: its tokens in the study's inputs.

    `choice`: the choice whose control it is, or which it is; empty for the full model and for nothing spared.
    """

    name: str
    role: Role
    choice: str = ""
    spared: Spared | None = None
    known: Known | None = None


def arms_of(
    model: nn.Module, given: Mapping[str, Any], choices: Mapping[str, Spared], controls: int, seed: int
) -> list[Arm]:
    """The full model, nothing spared, and for each choice: itself, the first n of its budget, random controls.

    The budget of a choice is how many tokens it spares in each row; the first tokens have it row by row. Raises
    `InputError` for a choice that spares nothing, without a control, and where so many different ones do not exist.
    """
    if controls < 1:
        raise InputError(f"controls = {controls}: what is spared says nothing without a control, so at least 1")
    found = [Arm(FULL, "full"), Arm(NOTHING, "nothing")]
    for name, choice in choices.items():
        if name in (FULL, NOTHING):
            raise InputError(f"a choice is named '{name}', which every study has by itself: name it otherwise")
        known = choice.known(model, given)
        if not bool(known.count.any()):
            raise InputError(f"'{name}' spares no token of these inputs, so there is nothing to study")
        found.append(Arm(name, "spared", name, choice, known))
        first = first_of(float(known.count.float().mean()))
        if all(arm.name != first for arm in found):
            found.append(Arm(first, "first", name, *_first(known)))
        of = "" if len(choices) == 1 else f" for {name}"
        found += _controls(model, given, name, choice, controls, seed, of)
    return found


def first_of(budget: float) -> str:
    """The name of the arm of the first tokens, by how many these are on average in a row."""
    return f"first {budget:.3g}"


def _first(known: Known) -> tuple[Spared, Known]:
    """As many first tokens of each row as a choice spares there; as a choice for other inputs, their largest number."""
    counted = torch.arange(known.chosen.shape[1], device=known.chosen.device)
    first = Known(counted < known.count[:, None], known.text, known.given, {"name": "as many first tokens"})
    return FirstTokens(int(known.count.max())), first


def excluded(arms: list[Arm], like: Bool[Tensor, "row token"]) -> Bool[Tensor, "row token"]:
    """Tokens that some arm spares: what is predicted there is scored in none."""
    masks = [arm.known.chosen for arm in arms if arm.known is not None]
    return torch.stack(masks).any(0) if masks else torch.zeros_like(like)


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
    raise InputError(
        f"{count} controls were asked for, but only {len(found)} different ones exist: ask for controls={len(found)} "
        "(--controls), or spare fewer tokens, so that more are left to draw from"
    )
