"""Rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sinkscope.errors import InputError, unknown
from sinkscope.model.positions.scheme import Rotation, Scheme, TokenPositions

# Options of each rope type: those it needs, and those it may have.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
}
_BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Which channels turn, and how fast.

    The first `fraction` of a head's `head_dim` channels turn, the others keep still. `scaling` is transformers' rope
    dict: {"rope_type": "linear" | "llama3" | "yarn", "factor": …}; `length` is the context, from which the last two
    compute unless they name `original_max_position_embeddings`. Types whose frequencies change with the length of the
    text (dynamic, longrope) are refused: keys in a cache would have been turned by other angles than later queries.
    Raises `InputError`.
    """

    head_dim: int
    length: int
    theta: float = 10000.0
    fraction: float = 1.0
    scaling: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise InputError(f"rope_theta = {self.theta}: must be positive")
        if not 0 < self.fraction <= 1:
            raise InputError(f"rope_fraction = {self.fraction}: must be above 0 and at most 1")
        turned = self.head_dim * self.fraction
        if turned != int(turned) or int(turned) % 2 or turned < 2:
            raise InputError(
                f"rotary positions turn pairs of channels: rope_fraction = {self.fraction:g} of a head width of "
                f"{self.head_dim} is {turned:g}, not an even number"
            )
        if self.scaling is not None:
            _check(self.scaling)

    @property
    def channels(self) -> int:
        """How many channels of a head turn."""
        return int(self.head_dim * self.fraction)

    @property
    def parameters(self) -> dict[str, Any]:
        """The same in transformers' words, but for the fraction."""
        return {"rope_type": "default", **(self.scaling or {}), "rope_theta": self.theta}

    def frequencies(self) -> tuple[Float[Tensor, "half"], float]:
        """Angles per position, theta^(−2i/channels) or as scaled, and the factor on cos and sin (yarn's is not 1)."""
        if self.scaling is None:
            exponent = torch.arange(0, self.channels, 2, dtype=torch.float32, device="cpu") / self.channels
            return self.theta**-exponent, 1.0
        like = LlamaConfig(
            hidden_size=self.channels,
            num_attention_heads=1,
            head_dim=self.channels,
            max_position_embeddings=self.length,
            rope_parameters=self.parameters,
        )
        with torch.device("cpu"):  # also while a model is laid out on the meta device, where there are no numbers
            return ROPE_INIT_FUNCTIONS[self.scaling["rope_type"]](like)


class Rotary(Scheme):
    """Pair (i, i + d/2) of the d turning channels turns by position · theta^(−2i/d), in Llama's layout.

    Source: Su et al. 2021; partial rotation as in GPT-NeoX; scaled frequencies are transformers' own.
    """

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        frequencies, self.factor = rope.frequencies()
        self.frequencies: tuple[float, ...] = tuple(frequencies.tolist())  # no buffer: nothing to load or to lose

    def rotation(self, positions: TokenPositions) -> Rotation:
        frequency = torch.tensor(self.frequencies, device=positions.query.device)
        # fp32 whatever the model's dtype: bf16 has no odd integers above 256, so neighbors would share an angle.
        angle = positions.query[..., None].float() * frequency
        return angle.cos() * self.factor, angle.sin() * self.factor


def rotate(
    x: Float[Tensor, "batch heads position dim"], rotation: Rotation
) -> Float[Tensor, "batch heads position dim"]:
    """Turn each pair of channels by its angle; dot products then depend only on the difference of positions.

    A rotation of fewer channels leaves the last ones as they are.
    """
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rotation)
    turning, still = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], -1)
    first, second = turning.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, still], -1)


def _check(scaling: Any) -> None:
    """Raises `InputError` for a rope dict that transformers would misread or take with a mere warning."""
    if not isinstance(scaling, Mapping) or "rope_type" not in scaling:
        raise InputError(f"rope_scale = {scaling!r}: expected a dict with 'rope_type', one of {', '.join(SCALINGS)}")
    kind = scaling["rope_type"]
    if kind in _BY_LENGTH:
        raise InputError(
            f"rope_scale: '{kind}' changes its frequencies with the length of the text, so that cached keys no "
            f"longer fit: choose from {', '.join(SCALINGS)}"
        )
    if kind not in SCALINGS:
        raise unknown("rope_type", str(kind), SCALINGS)
    needed, further = SCALINGS[kind]
    for name in scaling:
        if name not in ("rope_type", *needed, *further):
            raise unknown(f"option of rope_scale '{kind}'", str(name), (*needed, *further))
    for name in needed:
        if name not in scaling:
            raise InputError(f"rope_scale '{kind}' needs '{name}'")
    for name, value in scaling.items():
        if name != "rope_type" and (not isinstance(value, Real) or isinstance(value, bool) or not float(value) > 0):
            raise InputError(f"rope_scale.{name} = {value!r}: expected a positive number")
    if scaling["factor"] < 1:
        raise InputError(f"rope_scale.factor = {scaling['factor']}: at least 1")
