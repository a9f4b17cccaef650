"""Tokens written over a window's own: which token stands where is a question of the paper (catalogue D2, D3).

An intervention overwrites; the labels keep the text (D3: "labels unchanged"). A fixed BOS is none of these: it stands
before the text and shifts it, so no token is lost (`Windows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from sinkscope.errors import InputError

Draw = Callable[[int], Tensor]


class FixedToken(BaseModel):
    """The same `token` at the 0-based `position` of every window (D3; the paper's x_k is position k − 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fixed_token"] = "fixed_token"
    position: int = Field(ge=0)
    token: int = Field(ge=0)

    @property
    def stop(self) -> int:
        """First position after those it writes to."""
        return self.position + 1

    def apply(self, window: Tensor, draw: Draw) -> None:
        """Write to `window` (context) in place."""
        window[self.position] = self.token


class RandomTokens(BaseModel):
    """Uniformly random tokens at the 0-based positions [start, stop), drawn once for each window (D2)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["random_tokens"] = "random_tokens"
    start: int = Field(ge=0)
    stop: int = Field(ge=1)

    @model_validator(mode="after")
    def _some_positions(self) -> RandomTokens:
        if self.start >= self.stop:
            raise InputError(f"random_tokens: start {self.start} is not below stop {self.stop}")
        return self

    def apply(self, window: Tensor, draw: Draw) -> None:
        """Write to `window` (context) in place; `draw(n)` gives n random ids."""
        window[self.start : self.stop] = draw(self.stop - self.start)
