"""Whether what was calibrated is what is served: frozen scales know nothing of tokens that calibration never saw."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from sinkscope.interventions import All, Intervention
from sinkscope.measurement.peaks import peaks, sites
from sinkscope.model.columns import columns_of
from sinkscope.quantization.protected import Protect, described

APART = 2.0  # times by which ranges differ before a warning: one bit


def warn_of_choice(name: str, intervention: Intervention | None, protect: Protect | None) -> None:
    """A `UserWarning` where scales were calibrated without other tokens than are protected in the arm `name`.

    Scales that were calibrated without a token which is then quantized are as bad as none: they clip it, or, smoothed
    by channel, leave it larger than before. Scales that were calibrated with a token which is then protected are wider
    than any other token needs.
    """
    now = _words(described(protect))
    for what, left_out in _calibrated(intervention):
        if (then := _words(left_out)) != now:
            warnings.warn(
                f"{what} was calibrated with {then} left out, and '{name}' protects {now}: calibrate on what is "
                "served, with the same tokens left out",
                UserWarning,
                stacklevel=4,
            )


def warn_of_prefix(name: str, intervention: Intervention | None) -> None:
    """A `UserWarning` where frozen scales are served behind a prefix that they were not calibrated behind."""
    for what, _ in _calibrated(intervention):
        warnings.warn(
            f"{what} was calibrated without the prefix that '{name}' is read behind, so its scales are of texts with a "
            "sink of their own: give a scheme by its name, which is calibrated behind the prefix",
            UserWarning,
            stacklevel=4,
        )


def warn_of_inputs(model: nn.Module, calibration: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """A `UserWarning` where what is served reaches twice as far as what was calibrated on at a site, or half as far."""
    places = sites(model)
    served, seen = (peaks(model, inputs, places).values for inputs in (given, calibration))
    left, kept = (columns_of(model, inputs).real.cpu() for inputs in (given, calibration))
    block = {place.name: f"block {place.block}, into {', '.join(place.kinds)}" for place in places}
    ratios = {
        name: float(served[name][left].nan_to_num(0).max() / seen[name][kept].nan_to_num(0).max().clamp(min=1e-30))
        for name in served.keys() & seen.keys()
    }
    wide = [name for name, ratio in ratios.items() if ratio >= APART]
    narrow = [name for name, ratio in ratios.items() if ratio <= 1 / APART]
    said = []
    if wide:
        worst = max(wide, key=ratios.__getitem__)
        column = int(served[worst].masked_fill(~left, -1).max(0).values.argmax())
        said.append(
            f"what is served reaches {ratios[worst]:.0f} times as far as what was calibrated on ({block[worst]}, "
            f"column {column}): scales frozen there clip it"
        )
    if narrow:
        worst = min(narrow, key=ratios.__getitem__)
        far = (
            f"{1 / ratios[worst]:.0f} times as far as what is served" if ratios[worst] else "further than 0, as served,"
        )
        said.append(f"what was calibrated on reaches {far} ({block[worst]}): scales frozen there are too wide")
    if said:
        said.append("calibrate on what is served, special tokens included")
        warnings.warn("; ".join(said), UserWarning, stacklevel=4)


def _calibrated(intervention: Intervention | None) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """What was calibrated within an intervention, and without which tokens."""
    if isinstance(intervention, All):
        for one in intervention.parts:
            yield from _calibrated(one)
        return
    for name in ("static", "transform"):
        part = getattr(intervention, name, None)
        if part is not None and hasattr(part, "protect"):
            yield type(part).__name__, part.protect


def _words(protect: Mapping[str, Any] | None) -> str:
    return "no token" if protect is None else str(protect["chosen_by"])
