"""What counts of six and of twelve models can show, and how often Student's t errs where values have a long tail."""

from __future__ import annotations

from sinkscope.statistics.claims import ModelCount, fisher, none_bound
from tools.grades import SIGMA, rates

PAGE = "docs/ask_your_own_question.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    six, twelve = (100 * none_bound(models) for models in (6, 12))
    none, one = (f"{fisher(ModelCount(6, 6), ModelCount(k, 6)):.3f}".removeprefix("0") for k in (0, 1))
    errors = [
        max(each.confirmed, each.not_seen)
        for each in rates()
        if each.claim.startswith("size, lognormal") and each.truth == "at the margin"
    ]
    return [
        f"of lognormal values (σ = {str(SIGMA).removeprefix('0')}) it errs in {errors[0]:.1f} % of cases with six "
        f"models, and in {errors[1]:.1f} % with twelve, where it says 1.",
        f"6 of 6 against 0 of 6 has p = {none}, 6 of 6 against 1 of 6 {one}.",
        f"0 of 6 bounds the share at {six:.0f} %, 0 of 12 at {twelve:.0f} %.",
    ]
