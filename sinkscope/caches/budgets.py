"""How many keys each layer and head may keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.measurement import Measurement


class Budget(ABC):
    """Stored keys per head: a number for each layer, distributed over its heads."""

    @abstractmethod
    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Keys that a head of a layer may keep on average, per row with so many real `tokens`; at least 1.

        `layer` counts the `layers` that evict.
        """

    def of_heads(
        self, scores: Float[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"], layer: int
    ) -> Int[Tensor, "batch kv_heads"]:
        """The number for each head if a layer's heads may keep `count` on average; by default the same for all."""
        return count[:, None].expand(scores.shape[:2]).clone()

    @property
    def number(self) -> int | None:
        """The smallest budget of a head, if it does not depend on the text."""
        return None

    def around(self, outside: int) -> Budget:
        """The same budget for a policy that always keeps `outside` keys per head, which are not distributed."""
        return self

    def fits(self, layers: int, heads: int) -> str | None:
        """Why it does not fit a model with so many evicting layers and key-value heads; None if it does."""
        return None


@dataclass(frozen=True)
class Uniform(Budget):
    """The same everywhere: a number of keys, or a share (0, 1.0] of the text's tokens, rounded down."""

    keys: int | float

    def __post_init__(self) -> None:
        keys = self.keys
        if isinstance(keys, bool) or not isinstance(keys, int | float) or (isinstance(keys, int) and keys < 1):
            raise InputError(f"budget is {keys!r}, expected a number of keys (1, 2, …) or a share (0 < share ≤ 1.0)")
        if isinstance(keys, float) and not 0 < keys <= 1:
            raise InputError(f"budget is {keys!r}: a share is above 0 and at most 1.0; a number of keys has no point")

    @property
    def number(self) -> int | None:
        return self.keys if isinstance(self.keys, int) else None

    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        if isinstance(self.keys, int):
            return torch.full_like(tokens, self.keys)
        return (tokens.double() * self.keys + 1e-9).long().clamp(min=1)  # 0.29 · 100 is 28.999…


@dataclass(frozen=True)
class Pyramid(Budget):
    """More keys in early layers than in late ones, `mean` on average.

    `outside` of the `mean` keys are the same in all layers (those that the policy keeps in every head, such as SnapKV's
    window). The rest n falls linearly from 2·n − n/β to n/β. If the first layers would get more keys than the text has,
    they get all of it and the last layers get more. Source: Cai et al. 2024, with β = 20.
    """

    mean: Budget | int | float
    beta: float = 20.0
    outside: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", budget_of(self.mean))
        if not self.beta >= 1:
            raise InputError(f"Pyramid: beta is {self.beta!r}, expected at least 1")

    @property
    def number(self) -> int | None:
        inner = self._inner.number
        return None if inner is None else _smallest(inner, self.outside, 1 / self.beta)

    def around(self, outside: int) -> Budget:
        return replace(self, outside=outside)

    @property
    def _inner(self) -> Budget:
        return budget_of(self.mean)

    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        whole = self._inner.of_layer(layer, layers, tokens).double()
        if layers == 1:
            return whole.long()
        outside = whole.clamp(max=self.outside)
        mean = whole - outside
        most = torch.minimum(2 * mean - mean / self.beta, torch.maximum(tokens.double() - outside, mean))
        # The mean of a linear slope is (most + least) / 2, so it stays `mean` if `most` was capped.
        least = 2 * mean - most
        return (outside + most - (most - least) * layer / (layers - 1)).round().long().clamp(min=1)


@dataclass(frozen=True)
class AdaptiveHeads(Budget):
    """A layer's keys go to the heads with the highest scores; each head is guaranteed the share `alpha`.

    Keys that a head must keep (score +inf, such as SnapKV's window) are not distributed; `outside` is their least
    number. If the text is shorter than the budget, the remaining budget is shared evenly, for later tokens. Source:
    Feng et al. 2024 (Ada-KV), with α = 0.2. It compares scores across heads, so it suits policies whose scores are
    attention.
    """

    mean: Budget | int | float
    alpha: float = 0.2
    outside: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", budget_of(self.mean))
        if not 0 <= self.alpha <= 1:
            raise InputError(f"AdaptiveHeads: alpha is {self.alpha!r}, expected a share between 0 and 1")

    @property
    def number(self) -> int | None:
        inner = budget_of(self.mean).number
        return None if inner is None else _smallest(inner, self.outside, self.alpha)

    def around(self, outside: int) -> Budget:
        return replace(self, outside=outside)

    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        return budget_of(self.mean).of_layer(layer, layers, tokens)

    def of_heads(
        self, scores: Float[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"], layer: int
    ) -> Int[Tensor, "batch kv_heads"]:
        heads, keys = scores.shape[1:]
        must = (scores == torch.inf).sum(-1)
        shared = (count[:, None] - must).clamp(min=0).double()
        guaranteed = (must + (shared * self.alpha + 1e-9).long()).clamp(min=1)
        # Sorted, so the first `guaranteed` ranks are a head's own; all later ones compete across heads.
        ranked = scores.sort(-1, descending=True).values
        sure = torch.arange(keys, device=scores.device) < guaranteed[..., None]
        counts = (ranked > -torch.inf).masked_fill(sure, value=True) & (ranked > -torch.inf)
        # (batch, head · key)
        open_ = torch.where(sure, -torch.inf, ranked).flatten(1)
        left = (count * heads)[:, None] - (sure & counts).sum((1, 2))[:, None]
        order = open_.argsort(dim=-1, descending=True, stable=True)
        taken = torch.zeros_like(open_, dtype=torch.bool)
        taken.scatter_(1, order, torch.arange(heads * keys, device=scores.device) < left)
        taken &= open_ > -torch.inf
        kept = ((sure & counts) | taken.view_as(counts)).sum(-1)
        unused = (count * heads - kept.sum(-1)).clamp(min=0)[:, None]  # more than the text has keys: for later tokens
        extra = torch.arange(heads, device=scores.device) < unused % heads
        return (kept + unused // heads + extra).clamp(min=1)


@dataclass(frozen=True, eq=False)
class HeadClasses(Budget):
    """Retrieval heads keep every token; the others, streaming heads, keep `small` (a budget).

    `retrieves`: (evicting layer, head), True for heads that keep everything; a key-value head does if any query head of
    its group does. Source: Xiao et al. 2025 (DuoAttention), who learn the classes.
    """

    retrieves: np.ndarray
    small: Budget | int | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "small", budget_of(self.small))
        retrieves = np.asarray(self.retrieves)
        if retrieves.ndim != 2 or retrieves.dtype != bool:
            raise InputError(f"HeadClasses: expected booleans (layer, head), not {retrieves.dtype} {retrieves.shape}")

    @classmethod
    def of(
        cls, measurement: Measurement, small: Budget | int | float, quantile: float = 0.01, threshold: float = 0.85
    ) -> HeadClasses:
        """A head retrieves unless sinks and window hold `threshold` of the attention of all but a `quantile` of
        queries.

        The measurement must have observed `WindowMass`, on texts that require distant tokens. A mean over queries would
        classify heads as streaming that retrieve occasionally, and what they retrieve would be lost.
        """
        for name, share in (("quantile", quantile), ("threshold", threshold)):
            if not 0 <= share <= 1:
                raise InputError(f"HeadClasses.of: {name} is {share!r}, expected a share between 0 and 1")
        data = measurement.data
        if "window_mass" not in data:
            raise InputError(
                "HeadClasses.of: the measurement has no window_mass: observe sinkscope.measurement.WindowMass"
            )
        mass = data["window_mass"].transpose("layer", "head", "sample", "position").values
        mass = mass[data["stack"].values == "decoder"]
        mass = mass.reshape(*mass.shape[:2], -1)
        if unread := np.argwhere(np.isnan(mass).all(-1)).tolist():
            raise InputError(
                f"HeadClasses.of: head {unread[0][0]}.{unread[0][1]} has no window_mass, so its class is unknown: "
                "measure every layer"
            )
        low = np.nanquantile(mass, quantile, axis=-1)
        return cls(low < threshold, small)

    @property
    def number(self) -> int | None:
        return budget_of(self.small).number

    def fits(self, layers: int, heads: int) -> str | None:
        rows, columns = self.retrieves.shape
        if rows == layers and columns % heads == 0:
            return None
        return (
            f"HeadClasses: {columns} heads in {rows} layers are classified, but the model evicts from {layers} layers "
            f"with {heads} key-value heads"
        )

    def of_layer(self, layer: int, layers: int, tokens: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        return budget_of(self.small).of_layer(layer, layers, tokens)

    def of_heads(
        self, scores: Float[Tensor, "batch kv_heads key"], count: Int[Tensor, " batch"], layer: int
    ) -> Int[Tensor, "batch kv_heads"]:
        groups = self.retrieves[layer].reshape(scores.shape[1], -1).any(-1)
        return torch.where(torch.from_numpy(groups).to(scores.device), EVERYTHING, count[:, None])


def _smallest(keys: int, outside: int, share: float) -> int:
    """The budget of the last head or layer out of so many `keys`, `outside` of which are not distributed."""
    return max(1, min(keys, outside + max(0, int((keys - outside) * share + 1e-9))))


EVERYTHING = 2**62  # more keys than any text has


def budget_of(budget: Budget | int | float) -> Budget:
    """The budget itself, or that number or share everywhere. Raises `InputError` for anything else."""
    return budget if isinstance(budget, Budget) else Uniform(budget)
