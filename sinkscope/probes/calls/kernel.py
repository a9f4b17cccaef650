"""The log-sum-exp that the attention kernel computes anyway, read as it passes by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_COMPOSITE = torch.ops.aten.scaled_dot_product_attention.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class KernelLse(TorchDispatchMode):
    """Runs every operator as it is, and keeps the second result of the CPU flash kernel: lse, fp32 (batch, heads,
    query).

    Nothing is replaced, so outputs are bit-identical. `lse` stays None where another kernel ran (it keeps no
    log-sum-exp) or more than one flash call was seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Tensor] = []

    @property
    def lse(self) -> Tensor | None:
        return self._seen[0] if len(self._seen) == 1 else None

    def __torch_dispatch__(
        self, operator: Any, types: Sequence[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operator is _COMPOSITE:  # arrives whole in inference mode; its parts are what we look for
            with self:
                return operator.decompose(*args, **kwargs)
        result = operator(*args, **kwargs)
        if operator is _FLASH:
            self._seen.append(result[1].detach())
        return result


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Tensor | None]:
    """The function's result, and the kernel's log-sum-exp where there was one."""
    with KernelLse() as mode:
        result = function(*args, **kwargs)
    return result, mode.lse
