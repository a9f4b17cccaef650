"""The base of every module in an operation that learns something."""

from __future__ import annotations

from abc import abstractmethod

from torch import nn


class Learned(nn.Module):
    """A module that sets its own parameters to their starting values, so that any model can initialize it.

    `maps` names those that are matrices from activations to activations, as a linear layer's weight is. The others are
    vectors and tables, whatever their shape, and optimizers that treat matrices as maps leave them alone.
    """

    maps: tuple[str, ...] = ()

    @abstractmethod
    def reset_parameters(self) -> None:
        """Write the starting values, only through `torch.nn.init` (loaders guard those functions)."""
