"""Which tokens are spared: kept in full precision, and no part of any range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool
from torch import Tensor, nn


class Spared(ABC):
    """A choice of tokens. To write one: a frozen dataclass with `mask`."""

    @abstractmethod
    def mask(self, model: nn.Module, inputs: Mapping[str, Any]) -> Bool[Tensor, "batch position"]:
        """Which tokens of `inputs` are spared, in the inputs' own columns; padding never is."""
