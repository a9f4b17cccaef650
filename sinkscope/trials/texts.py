"""Nothing is scored on what it was calibrated on: which texts are for what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from sinkscope.errors import InputError
from sinkscope.trials.arm import Texts

Uses = Literal["nothing", "chooses", "fits"]
LEAST = 8  # texts on which tokens or heads are chosen


@dataclass(frozen=True, eq=False)
class Split:
    """Texts to calibrate on, texts to score, and the record of the split."""

    calibration: Texts | None
    scored: Texts
    record: Mapping[str, Any] | None

    @property
    def fitted_on(self) -> Texts:
        """The texts to calibrate on; those that are scored where nothing needs others."""
        return self.calibration or self.scored


def needed(count: int, uses: Uses) -> int:
    """How many texts to load so that `count` of them are scored.

    What fits weights or ranges takes as many again; what only chooses tokens or heads a quarter more, at least eight.
    """
    return {"nothing": count, "chooses": count + max(LEAST, math.ceil(count / 4)), "fits": 2 * count}[uses]


def split(
    model: nn.Module, inputs: Any, uses: Uses, *, calibrate_on: Any = None, in_sample: bool = False, source: str = ""
) -> Split:
    """The texts of `inputs` that are calibrated on, and those that are scored.

    Args:
        model: The model that reads them.
        inputs: All texts, as `measure` takes them.
        uses: Whether something fits weights or ranges (half of the texts go there), only chooses tokens or heads (a
            fifth, at least eight), or needs no texts.
        calibrate_on: Texts of one's own to calibrate on; all of `inputs` are scored then.
        in_sample: Calibrate and score on all of them; the verdict says so.
        source: What the calibration texts are called in the record.

    Raises `InputError` where too few texts are left to score.
    """
    texts = Texts.of(model, inputs)
    if uses == "nothing":
        return Split(None, texts, None)
    if calibrate_on is not None:
        calibration = Texts.of(model, calibrate_on)
        return Split(
            calibration,
            texts,
            _described(calibration, source or "texts of one's own", in_sample=calibration.digest() == texts.digest()),
        )
    if in_sample:
        return Split(texts, texts, _described(texts, source, in_sample=True))
    first = texts.count // 2 if uses == "fits" else max(LEAST, math.ceil(texts.count / 5))
    if first < 1 or texts.count - first < 2:
        raise InputError(
            f"{texts.count} texts: {first} would be calibrated on, leaving {max(0, texts.count - first)} to score: "
            f"give {max(4, first + 2)} or more, or texts to calibrate on"
        )
    parts = texts.part(slice(0, first)), texts.part(slice(first, texts.count))
    # Numbered from 0 again: draws, tokens and stored rows count the scored texts.
    scored = Texts(parts[1].inputs, parts[1].count, slice(0, parts[1].count), texts.mask_name, texts.predicts_next)
    return Split(parts[0], scored, _described(parts[0], source, in_sample=False))


def _described(texts: Texts, source: str, *, in_sample: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"texts": texts.count, "sha256": texts.digest(), "in_sample": in_sample}
    return {**about, "source": source} if source else about
