"""What every part of a recipe has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen, validated piece of configuration: unknown fields, NaN and infinities are refused when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
