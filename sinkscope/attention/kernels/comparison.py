"""The fused kernels against the reference: values and gradients, case by case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.functional import attend
from sinkscope.attention.kernels.entry import fused
from sinkscope.attention.kernels.plan import plan_of
from sinkscope.attention.masks import Causal, Full, Mask, Window, describe
from sinkscope.attention.normalizers import Elu, Normalizer, Relu, Sigmoid, Softpick
from sinkscope.attention.spec import AttentionSpec
from sinkscope.errors import InputError

FAMILY: tuple[Normalizer, ...] = (
    *(Sigmoid(normalized=normalized, minus_log_n=bias) for normalized in (False, True) for bias in (False, True)),
    *(Relu(normalized=normalized, over_n=over_n) for normalized in (False, True) for over_n in (False, True)),
    *(Elu(normalized=normalized) for normalized in (False, True)),
    Softpick(),
)
CAUSAL = Causal()
MASKS: tuple[Mask, ...] = (CAUSAL, CAUSAL & Window(5), CAUSAL & Window(100), Full())
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
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
        weights = ", ".join(f"{name}={value}" for name, value in vars(self.normalizer).items())
        tokens = f"B={self.batch} T={self.queries}/{self.keys or self.queries}"
        heads = f"H={self.heads}/{self.kv_heads}"
        sizes = f"{tokens} {heads} D={self.dim}/{self.value_dim} {str(self.dtype).removeprefix('torch.')}"
        return f"{weights}; {describe(self.mask)}; {sizes} x{self.sharpness:g}"


@dataclass(frozen=True)
class Agreement:
    """Largest differences of output and gradients, each relative to the reference's largest entry or 1."""

    case: Case
    residuals: dict[str, float]

    @property
    def worst(self) -> float:
        """The largest residual; NaN where anything was NaN."""
        return torch.tensor(list(self.residuals.values())).max().item()

    @property
    def agrees(self) -> bool:
        return self.worst <= TOLERANCES[self.case.dtype]


def compare(case: Case, device: str) -> Agreement:
    """Kernels in the case's dtype against the naive reference in fp64 on the same numbers.

    Inputs lie in memory as projections leave them; memory that the kernels are given is NaN until they write it.
    """
    plan = plan_of(case.normalizer, case.mask)
    if plan is None:
        raise InputError(f"no fused kernel for {case}")
    query, key, value, upstream = _problem(case, device)
    with _fresh_memory_is_nan():
        output = fused(query, key, value, plan.activation, plan.normalized, plan.mask, plan.window)
        found = (output, *torch.autograd.grad(output, (query, key, value), upstream))
    query, key, value = (tensor.detach().double().requires_grad_() for tensor in (query, key, value))
    spec = AttentionSpec(normalizer=case.normalizer)
    exact = attend(query, key, value, spec, mask=case.mask, path="reference").output
    wanted = (exact, *torch.autograd.grad(exact, (query, key, value), upstream.double()))
    names = ("output", "query", "key", "value")
    return Agreement(case, {name: _residual(a, b) for name, a, b in zip(names, found, wanted, strict=True)})


def every_case() -> Iterator[Case]:
    """What a device must agree on. Few distinct head widths, since each is compiled anew."""
    for normalizer in FAMILY:
        for tokens in (1, 2, 7, 33, 63, 130):
            yield Case(normalizer=normalizer, queries=tokens)
        for mask in MASKS:
            yield Case(normalizer=normalizer, mask=mask, queries=130, batch=2)
        yield Case(normalizer=normalizer, queries=33, keys=130)
        for mask in MASKS:
            yield Case(normalizer=normalizer, mask=mask, queries=517, dtype=torch.bfloat16, dim=64, value_dim=64)
    for normalizer in (Sigmoid(), Elu(normalized=True), Softpick()):
        for dtype in (torch.bfloat16, torch.float16):
            yield Case(normalizer=normalizer, queries=2048, heads=8, dtype=dtype, dim=128, value_dim=128)
            yield Case(normalizer=normalizer, queries=300, keys=1001, kv_heads=1, dtype=dtype, dim=128, value_dim=128)
        yield Case(normalizer=normalizer, queries=300, dtype=torch.float16, dim=64, value_dim=64, sharpness=4.0)


def _problem(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)

    def draw(heads: int, tokens: int, dim: int) -> Tensor:
        drawn = torch.randn(case.batch, tokens, heads, dim, generator=random)
        return drawn.to(device, case.dtype).transpose(1, 2)

    keys = case.keys or case.queries
    query, key = draw(case.heads, case.queries, case.dim), draw(case.kv_heads, keys, case.dim)
    value, upstream = draw(case.kv_heads, keys, case.value_dim), draw(case.heads, case.queries, case.value_dim)
    query = case.sharpness * query
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), upstream


def _residual(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()


@contextmanager
def _fresh_memory_is_nan() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
