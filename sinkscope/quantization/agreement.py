"""Whether calibration matches serving: frozen scales do not fit tokens that calibration never saw."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from sinkscope.interventions import All, Intervention
from sinkscope.measurement.peaks import peaks, sites
from sinkscope.model.columns import columns_of
from sinkscope.quantization.protected import Protect, described

APART = 2.0  # ratio of ranges that warrants a warning: one bit


def warn_of_choice(name: str, intervention: Intervention | None, protect: Protect | None) -> None:
    """A `UserWarning` if scales were calibrated with other tokens left out than those that the arm `name` protects.

    Scales calibrated without a token that is then quantized are useless: they clip it or, if smoothed by channel, leave
    it larger than before. Scales calibrated with a token that is then protected are wider than any other token needs.
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
    """A `UserWarning` if frozen scales are used after a prefix that calibration did not have."""
    for what, _ in _calibrated(intervention):
        warnings.warn(
            f"{what} was calibrated without the prefix of '{name}', on texts with their own sink: give a scheme by its "
            "name, which is calibrated after the prefix",
            UserWarning,
            stacklevel=4,
        )


def warn_of_inputs(model: nn.Module, calibration: Mapping[str, Any], scored: Mapping[str, Any]) -> None:
    """A `UserWarning` if a site's inputs are at least twice as large, or at most half as large, as in calibration."""
    places = sites(model)
    served, seen = (peaks(model, inputs, places).values for inputs in (scored, calibration))
    left, kept = (columns_of(model, inputs).real.cpu() for inputs in (scored, calibration))
    block = {one.name: f"block {one.block}, into {', '.join(one.kinds)}" for one in places}
    ratios = {
        name: float(served[name][left].nan_to_num(0).max() / seen[name][kept].nan_to_num(0).max().clamp(min=1e-30))
        for name in served.keys() & seen.keys()
    }
    wide = [name for name, ratio in ratios.items() if ratio >= APART]
    narrow = [name for name, ratio in ratios.items() if ratio <= 1 / APART]
    messages = []
    if wide:
        worst = max(wide, key=ratios.__getitem__)
        column = int(served[worst].masked_fill(~left, -1).max(0).values.argmax())
        messages.append(
            f"the scored texts reach {ratios[worst]:.0f} times as far as the calibration texts ({block[worst]}, "
            f"column {column}): scales frozen there clip them"
        )
    if narrow:
        worst = min(narrow, key=ratios.__getitem__)
        times = f"{1 / ratios[worst]:.0f}" if ratios[worst] else "∞"  # the scored texts may reach 0
        messages.append(
            f"the calibration texts reach {times} times as far as the scored texts ({block[worst]}): "
            "scales frozen there are too wide"
        )
    if messages:
        messages.append("calibrate on what is served, special tokens included")
        warnings.warn("; ".join(messages), UserWarning, stacklevel=4)


def _calibrated(intervention: Intervention | None) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The calibrated parts of an intervention, and the tokens that calibration left out."""
    if isinstance(intervention, All):
        for one in intervention.parts:
            yield from _calibrated(one)
        return
    for name in ("static", "transform"):
        fitted = getattr(intervention, name, None)
        if fitted is not None and hasattr(fitted, "protect"):
            yield type(fitted).__name__, fitted.protect


def _words(protect: Mapping[str, Any] | None) -> str:
    return "no token" if protect is None else str(protect["chosen_by"])
