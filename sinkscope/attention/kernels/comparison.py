"""The fused kernels against the naive formulas: values and gradients, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.attention.kernels.plan import plan_of
from sinkscope.attention.masks import Causal, Full, Mask, Window, describe
from sinkscope.attention.normalizers import Elu, Normalizer, Relu, Sigmoid, Softpick
from sinkscope.attention.oracle.comparing import ParityRow, relative_error
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

FAMILY: tuple[Normalizer, ...] = (
    *(Sigmoid(normalized=normalized, minus_log_n=bias) for normalized in (False, True) for bias in (False, True)),
    *(Relu(normalized=normalized, over_n=over_n) for normalized in (False, True) for over_n in (False, True)),
    *(Elu(normalized=normalized) for normalized in (False, True)),
    Softpick(),
)
UNLIKE: tuple[Normalizer, ...] = (Sigmoid(), Elu(normalized=True), Softpick())
CAUSAL = Causal()
TENSORS = ("output", "dquery", "dkey", "dvalue")  # what is compared
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """One problem: sizes, dtype, weights and mask; `sharpness` multiplies the queries."""

    normalizer: Normalizer
    mask: Mask = CAUSAL
    queries: int = 63
    keys: int | None = None
    batch: int = 1
    heads: int = 4
    kv_heads: int = 2
    dim: int = 24
    value_dim: int = 20
    dtype: torch.dtype = torch.float32
    sharpness: float = 1.0

    def __str__(self) -> str:
        """All but the dtype."""
        tokens = f"B={self.batch} T={self.queries}/{self.keys or self.queries}"
        shape = f"{tokens} H={self.heads}/{self.kv_heads} D={self.dim}/{self.value_dim} x{self.sharpness:g}"
        return f"{in_words(self.normalizer)}; {describe(self.mask)}; {shape}"


@dataclass(frozen=True)
class Specialization:
    """What Triton compiles code of its own for: weights, mask, dtype and head widths. Each is compared when it is first
    met, which takes seconds, since a call needs its code anyway; compiling all of them takes minutes."""

    normalizer: Normalizer
    bidirectional: bool
    dtype: torch.dtype
    dim: int
    value_dim: int

    def __str__(self) -> str:
        mask = "full" if self.bidirectional else "causal"
        return f"{in_words(self.normalizer)}; {mask}; D={self.dim}/{self.value_dim}; {plain(self.dtype)}"

    def cases(self) -> Iterator[KernelCase]:
        """One token; odd lengths, samples, grouped heads; the last of many keys, with one key head; several tiles each
        way, windowed where causal, with scores far from zero."""
        case = partial(KernelCase, normalizer=self.normalizer, dtype=self.dtype, dim=self.dim, value_dim=self.value_dim)
        mask: Mask = Full() if self.bidirectional else CAUSAL
        yield case(mask=mask, queries=1)
        yield case(mask=mask, queries=63, batch=2)
        yield case(mask=mask, queries=33, keys=130, kv_heads=1)
        windowed = mask if self.bidirectional else CAUSAL & Window(250)
        yield case(mask=windowed, queries=517, heads=2, kv_heads=1, sharpness=3.0)


def compared(cases: Iterable[KernelCase], device: torch.device | str) -> list[ParityRow]:
    """`compare` for each case, with what it raises as part of the answer.

    Runs in a thread of its own: autograd, inference, autocast, dispatch and functorch modes, hooks on saved tensors
    and the CUDA stream of the caller belong to the caller's thread, and so neither disturb this nor are disturbed.
    """

    def attempt(case: KernelCase) -> ParityRow:
        try:
            return compare(case, device)
        except Exception as error:  # a compiler or a driver raises what it likes: any of it refuses the kernels
            return ParityRow.of_error(str(case), plain(case.dtype), error, LIMITS[case.dtype])

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(lambda: [attempt(case) for case in cases]).result()


def compare(case: KernelCase, device: torch.device | str) -> ParityRow:
    """Kernels in the case's dtype against the naive formulas in fp64, on the CPU, on the same numbers.

    Errors are relative to the reference's largest entry, or to 1 if that is larger.
    Inputs lie in memory as projections leave them; memory that the kernels are given is NaN until they write it. The
    numbers come from a generator of their own. The backward pass is called as a function: autograd has one thread for
    a device, which may be the one that waits for this comparison.
    """
    from sinkscope.attention.kernels.launch import backward, forward

    plan = plan_of(case.normalizer, case.mask)
    if plan is None:
        raise InputError(f"no fused kernel for {case}")
    query, key, value, upstream = _problem(case, device)
    scaling = case.dim**-0.5
    with torch.cuda.device_of(query), _FreshMemoryIsNan():
        output, *state = forward(query, key, value, plan, scaling)
        computed = (output, *backward(upstream, query, key, value, state, plan, scaling))
    wanted = _exact(case, query, key, value, upstream)
    pairs = zip(TENSORS, computed, wanted, strict=True)
    errors = {name: relative_error(found.cpu(), expected, least=1.0) for name, found, expected in pairs}
    return ParityRow.judged(str(case), plain(case.dtype), errors, LIMITS[case.dtype])


def every() -> Iterator[Specialization]:
    """What `make kernels` compares: all weights in the two usual dtypes, the rest with unlike weights."""
    for normalizer in FAMILY:
        for dtype in (torch.float32, torch.bfloat16):
            yield Specialization(normalizer, False, dtype, 64, 64)
    for normalizer in UNLIKE:
        yield Specialization(normalizer, True, torch.bfloat16, 64, 64)
        yield Specialization(normalizer, False, torch.float16, 64, 64)
        yield Specialization(normalizer, False, torch.bfloat16, 128, 128)
        yield Specialization(normalizer, False, torch.float32, 24, 20)


def in_words(normalizer: Normalizer) -> str:
    """`sigmoid, normalized`."""
    return ", ".join([normalizer.kind, *(name for name, value in vars(normalizer).items() if value is True)])


def plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _problem(case: KernelCase, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)

    def draw(heads: int, tokens: int, dim: int, factor: float = 1.0) -> Tensor:
        drawn = factor * torch.randn(case.batch, tokens, heads, dim, generator=random, dtype=torch.float32)
        return drawn.to(device, case.dtype).transpose(1, 2)

    keys = case.keys or case.queries
    query, key = draw(case.heads, case.queries, case.dim, case.sharpness), draw(case.kv_heads, keys, case.dim)
    return query, key, draw(case.kv_heads, keys, case.value_dim), draw(case.heads, case.queries, case.value_dim)


def _exact(case: KernelCase, query: Tensor, key: Tensor, value: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients of q, k and v by the formulas themselves, with the whole map in memory."""
    query, key, value = (tensor.cpu().double().requires_grad_() for tensor in (query, key, value))
    group = case.heads // case.kv_heads
    scores = case.dim**-0.5 * (query @ key.repeat_interleave(group, 1).mT)
    visible = Visibility.of(case.mask, query.shape[2], key.shape[2], device=query.device).dense()
    count = visible.sum(-1, keepdim=True).clamp(min=1).double()
    output = case.normalizer.weights(scores, visible, count) @ value.repeat_interleave(group, 1)
    return output.detach(), *torch.autograd.grad(output, (query, key, value), upstream.cpu().double())


class _FreshMemoryIsNan(TorchDispatchMode):
    """What a kernel leaves unwritten shows, where it might else hold the right numbers of an earlier call."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        fresh = func in (torch.ops.aten.new_empty.default, torch.ops.aten.empty_like.default)
        return made.fill_(torch.nan) if fresh and made.is_floating_point() else made
