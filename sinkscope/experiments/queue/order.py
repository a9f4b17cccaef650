"""The runs that come first, as a list of values; what it does not name is valued by `plan`.

The order was written down before any of these runs existed. A run that is known already is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

THREE = (0, 1, 2)
FURTHER = (3, 4, 5, 6, 7, 8, 9)


@dataclass(frozen=True)
class Wanted:
    """Runs of one question: those of `labels`, for each of `seeds`; all variations where no label is given."""

    question: str
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    why: str


ORDER = (
    Wanted("learning-rate", ("lr / 4",), (2,), "completes the learning rates"),
    Wanted("emergence", ("softmax",), FURTHER, "the control of most questions deserves more seeds"),
    Wanted("fixed-positions", ("token at 1",), THREE, "where the fixed token stands"),
    Wanted("gated-by-channel", ("gated_elementwise",), (1, 2), "one seed is there"),
    Wanted("tuning", ("before", "tuned"), THREE, "instruction tuning"),
    Wanted("unnormalised", ("elu", "kernel_mlp", "kernel_mlp_normalized"), THREE, "similarities of Table 6"),
    Wanted("normalised-kernel", ("kernel_elu_normalized",), THREE, "a normalized kernel of Table 6"),
    Wanted("moved-positions", ("learned positions",), THREE, "learned positions"),
    Wanted("weight-decay", ("0", "0.5", "2"), THREE, "weight decay"),
    Wanted("post-norm", ("post-norm",), THREE, "where the norm stands"),
    Wanted("data-amount", ("1/20", "1/100", "1/700"), THREE, "how much text there is"),
    Wanted("windows", ("causal", "window of 32", "window of 64"), THREE, "from which window on"),
)
