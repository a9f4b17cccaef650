"""Random attention problems for every catalogue entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import sinkscope.attention as zoo


@dataclass(frozen=True)
class Problem:
    """Queries, keys and values, and the operation's parameters drawn far from their starting values."""

    spec: zoo.AttentionSpec
    query: Tensor
    key: Tensor
    value: Tensor
    parameters: dict[str, Tensor]

    @property
    def inputs(self) -> list[Tensor]:
        return [self.query, self.key, self.value, *self.parameters.values()]

    def attend(self, **kwargs) -> zoo.Attended:
        return zoo.attend(self.query, self.key, self.value, self.spec, self.parameters or None, **kwargs)


def problem(
    spec: zoo.AttentionSpec,
    *,
    queries: int,
    keys: int | None = None,
    kv_heads: int = 2,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Problem:
    heads, dim = 4, 6
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=dtype).requires_grad_()

    operation = spec.build(heads=heads, kv_heads=kv_heads, head_dim=dim, hidden_size=heads * dim)
    parameters = {name: draw(*tensor.shape) for name, tensor in operation.state_dict().items()}
    keys = queries if keys is None else keys
    query, key, value = (draw(batch, n, t, dim) for n, t in ((heads, queries), (kv_heads, keys), (kv_heads, keys)))
    return Problem(spec, query, key, value, parameters)
