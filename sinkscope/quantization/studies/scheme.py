"""A way to quantize, as a named value: what it makes of a model once it is said what is spared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from torch import nn
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.interventions import Intervention
from sinkscope.quantization.spared import Spared

Make = Callable[[nn.Module, Mapping[str, Any], Spared | None], Intervention]
Store = Callable[[nn.Module, Spared | None], Cache]
Spares = Literal["served", "calibration", "nothing"]


@dataclass(frozen=True)
class QuantizationScheme:
    """A scheme by its name, and in a sentence what it does.

    `make(model, calibration, spared)` gives the intervention: whatever it calibrates, it calibrates on these inputs
    with these tokens left out of every range, so that calibration and serving agree. `caches`: whether it is about
    cached keys and values, which show in what is read after they were written. `store(model, spared)` makes the real
    cache of such a scheme, None where there is only the simulation. `spares`: what it is to spare a token. One that is
    "served" is not rounded; where weights alone are rounded, which know no tokens, it can be left out of "calibration",
    or there is "nothing" to leave it out of.
    """

    name: str
    says: str
    make: Make
    caches: bool = False
    store: Store | None = None
    spares: Spares = "served"

    @classmethod
    def of(cls, given: QuantizationScheme | Intervention) -> QuantizationScheme:
        """A scheme as it is; of an intervention with a field `spared`, the scheme that fills that field.

        Raises `InputError` for an intervention that spares nothing.
        """
        if isinstance(given, QuantizationScheme):
            return given
        named = {field.name for field in fields(given)} if is_dataclass(given) else set()
        if not isinstance(given, Intervention) or "spared" not in named:
            raise InputError(
                f"{type(given).__name__} is no scheme: expected a name, a QuantizationScheme, or an intervention with "
                "a field 'spared', such as QuantizeLinear"
            )

        def make(model: nn.Module, calibration: Mapping[str, Any], spared: Spared | None) -> Intervention:
            return replace(given, spared=spared)  # type: ignore[call-arg]

        return cls(type(given).__name__, "as given", make, caches={"keys", "values"} <= named)
