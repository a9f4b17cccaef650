"""Random attention problems for any operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import sinkscope.attention as zoo

HEADS, DIM = 4, 8  # a head's width is a multiple of 4, which differential attention needs
MASKS: dict[str, zoo.Mask] = {
    "causal": zoo.Causal(),
    "window": zoo.Causal() & zoo.Window(5),
    "document": zoo.Causal() & zoo.Document(),
    "prefix": zoo.Causal() | zoo.VisiblePrefix(3),
}
MASKS_AND_HEADS = tuple(zip(MASKS, (4, 2, 2, 4), strict=True))
"""Each mask, with grouped key-value heads under half of them: no mask knows of heads."""
BORDERS = [(2, 5, 40, 170), (1, 6, 64, 65)]  # where documents begin, row by row


@dataclass(frozen=True)
class Problem:
    """Queries, keys and values, the block's input at every key, and parameters drawn far from their starting values."""

    spec: zoo.AttentionSpec
    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor
    parameters: dict[str, Tensor]

    @property
    def inputs(self) -> list[Tensor]:
        """Everything that this operation reads."""
        hidden = [self.hidden] if self.spec.needs_hidden else []
        return [self.query, self.key, self.value, *hidden, *self.parameters.values()]

    @property
    def names(self) -> list[str]:
        """The output, and what has a gradient."""
        hidden = ["hidden"] if self.spec.needs_hidden else []
        return ["output", "query", "key", "value", *hidden, *self.parameters]

    def attend(self, **options) -> zoo.Attended:
        return zoo.attend(
            self.query, self.key, self.value, self.spec, self.parameters or None, hidden=self._read, **options
        )

    def gradients(self, **options) -> tuple[Tensor, list[Tensor]]:
        """The output, and the gradient of a fixed random combination of it with respect to all inputs."""
        output = self.attend(**options).output
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
        return output, list(torch.autograd.grad((output * direction).sum(), self.inputs))

    def part(self, tokens: slice, rows: slice = slice(None)) -> Problem:
        """These tokens alone."""
        cut = {name: getattr(self, name)[rows, :, tokens] for name in ("query", "key", "value")}
        return replace(self, **cut, hidden=self.hidden[rows, tokens])

    def last(self, queries: int) -> Problem:
        """The last queries, on all keys."""
        return replace(self, query=self.query[:, :, -queries:])

    def with_inputs(self, tensors: tuple[Tensor, ...]) -> Problem:
        """The same problem on other numbers, in the order of `inputs`."""
        given: Iterator[Tensor] = iter(tensors)
        changed = {name: next(given) for name in ("query", "key", "value")}
        if self.spec.needs_hidden:
            changed["hidden"] = next(given)
        return replace(self, **changed, parameters=dict(zip(self.parameters, given, strict=True)))

    def built(self) -> zoo.Operation:
        """The module, with these parameters."""
        operation = build(self.spec, self.key.shape[1]).to(self.query.dtype)
        operation.load_state_dict(self.parameters)
        return operation

    @property
    def _read(self) -> Tensor | None:
        if not self.spec.needs_hidden:
            return None
        return self.hidden if "cache" in self.spec.acts_before else self.hidden[:, -self.query.shape[2] :]


def build(spec: zoo.AttentionSpec, kv_heads: int = 2) -> zoo.Operation:
    return spec.build(heads=HEADS, kv_heads=kv_heads, head_dim=DIM, hidden_size=HEADS * DIM)


def problem(
    spec: zoo.AttentionSpec,
    *,
    tokens: int,
    kv_heads: int = 2,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Problem:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        return (std * torch.randn(*shape, generator=random)).to(dtype).requires_grad_()

    parameters = {name: draw(*tensor.shape, std=0.5) for name, tensor in build(spec, kv_heads).state_dict().items()}
    query, key, value = (draw(batch, n, tokens, DIM) for n in (HEADS, kv_heads, kv_heads))
    hidden = draw(batch, tokens, HEADS * DIM, std=0.5)
    return Problem(spec, query, key, value, hidden, parameters)


def documents(tokens: int) -> Tensor:
    """Which document each token belongs to, (2, tokens)."""
    return torch.stack([torch.bucketize(torch.arange(tokens), torch.tensor(row), right=True) for row in BORDERS])


def bound(mask: str, tokens: int, queries: int | None = None) -> zoo.Visibility:
    """A mask of `MASKS` on two rows of tokens."""
    numbers = documents(tokens) if mask == "document" else None
    return zoo.Visibility.of(MASKS[mask], queries or tokens, tokens, documents=numbers)


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the scale of what is expected (at least 1)."""
    if not expected.numel():
        return 0.0
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Equal up to `tolerance`, relative to the scale of what is expected (at least 1)."""
    assert found.shape == expected.shape
    assert error(found, expected) <= tolerance  # false for NaN as well


def assert_all_close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, tolerance)


def assert_paths_agree(case: Problem, paths: Iterable[str], tolerance: float = 1e-5, **options) -> None:
    """Values and all gradients equal those of the reference.

    Where that is more than fp32 can promise (long sums, denominators near zero), a path may be at most three times as
    far from the reference in float64 as the reference itself is in fp32.
    """

    def outcome(of: Problem, path: str) -> list[Tensor]:
        output, gradients = of.gradients(path=path, **options)
        return [output.detach(), *gradients]

    reference, exact = outcome(case, "reference"), None
    for path in paths:
        found = outcome(case, path)
        if all(error(one, other) <= tolerance for one, other in zip(found, reference, strict=True)):
            continue
        if exact is None:
            wide = case.with_inputs(tuple(x.detach().double().requires_grad_() for x in case.inputs))
            wide = replace(wide, hidden=wide.hidden.double())
            exact = outcome(wide, "reference")
        for name, one, other, true in zip(case.names, found, reference, exact, strict=True):
            assert error(one, true) <= tolerance + 3 * error(other, true), f"{path}: {name}"


def weights_of(spec: zoo.AttentionSpec | str, scores: list[float] | Tensor, parameters: dict | None = None) -> Tensor:
    """The last row of weights where the logits of one query are exactly `scores`; float64, differentiable in them."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    query = torch.ones(1, 1, len(scores), 1, dtype=torch.float64)
    key = scores.view(1, 1, -1, 1)
    return zoo.attend(query, key, key, spec, parameters, scaling=1.0, path="reference").weights[0, 0, -1]
