"""Where the gradient goes in SmolLM2 and in `nano`."""

from __future__ import annotations

import math

from tools.pages.stored import in_words, read

PAGE = "docs/sink_callback.md"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    real, small = read("real/gradient_sinks_smollm2"), read("real/gradient_sinks_nano")
    ratio, compress = (_of(real, "first", name) for name in ("ratio", "compress"))
    longer = [_of(each, "control", "norm_factor") / _of(each, "first", "norm_factor") for each in (small, real)]
    feedforward = [f"{_of(each, 'first', 'ratio', 'feedforward'):.2f}".removeprefix("0") for each in (real, small)]
    return [
        f"of {real['tokens']} tokens with 95 % intervals",
        f"{in_words(round(ratio)).capitalize()} times the others' gradient comes back to SmolLM2's first token through "
        f"attention, and its norm leaves 1/{_two_digits(1 / compress):,} of it",
        f"whose first token is {longer[0]:.1f} times as long as the control rather than {_two_digits(longer[1])} "
        "times, the norm takes away less than attention brings, and the gradient grows by "
        f"{_of(small, 'first', 'change'):.1f}.",
        f"smaller than the others' ({' and '.join(feedforward)} of theirs).",
    ]


def _of(
    stored: dict[str, dict[str, dict[str, dict[str, list[float]]]]], token: str, name: str, branch: str = "mixer"
) -> float:
    """A median over layers."""
    return stored[token][name][branch]["median layer"][0]


def _two_digits(x: float) -> int:
    """`x`, a number above ten, rounded to two digits."""
    return int(round(x, 1 - math.floor(math.log10(x))))
