"""Attention in which some pairs of query and key use the rounded key and value, and the others the original ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.attention import AttentionSpec, Visibility, name_of, operation_of
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import family

AGREES = 1e-3  # allowed difference between the layer's output and the one computed here, relative to the largest
ROUNDINGS = 2  # the same in units of the dtype's precision, where that is more
ELEMENTS = 2**22  # scores held at once
HOSTS = ("eager", "sdpa")


@dataclass(frozen=True, eq=False)
class TwoVersions:
    """A call of a softmax layer. `rounds` (batch, query, key): the pairs that use the rounded key and value.

    `mask`: booleans or addends (batch, 1 or heads, query, key), or None if nothing is masked.
    """

    query: Float[Tensor, "batch heads query dim"]
    keys: tuple[Tensor, Tensor]  # original, rounded
    values: tuple[Tensor, Tensor]
    rounds: Bool[Tensor, "_ query key"]
    mask: Tensor | None
    scaling: float
    softcap: float | None = None
    sink: Float[Tensor, " heads"] | None = None

    def output(self) -> Float[Tensor, "batch query heads dim"]:
        """softmax(softcap(q·k · scaling) + mask) with the learned sink in the denominator, times values."""
        return self._attended(self.rounds)

    def all_rounded(self) -> Float[Tensor, "batch query heads dim"]:
        """The same if every pair uses the rounded key and value."""
        return self._attended(torch.ones_like(self.rounds))

    def _attended(self, rounds: Tensor) -> Tensor:
        parts = [self._rows(rows, rounds[:, None, rows]) for rows in self._parts()]
        return torch.cat(parts, 2).transpose(1, 2).to(self.query.dtype)

    def _rows(self, rows: slice, rounds: Tensor) -> Tensor:
        group = self.query.shape[1] // self.keys[0].shape[1]
        # Both versions of all scores, then a choice per pair: a softmax over a row mixes both kinds of keys.
        made, coarse = (self._scores(rows, key, group) for key in self.keys)
        scores = torch.where(rounds, coarse, made)
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        if self.mask is not None:
            mask = self.mask[..., rows, : scores.shape[-1]]
            # Eager masks add the dtype's least number; half of it still lies far below any bias.
            hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
            scores = (scores if mask.dtype == torch.bool else scores + mask).masked_fill(hidden, -torch.inf)
        if self.sink is not None:
            # The learned sink takes its share of each row and has no value, so its column is dropped after the softmax.
            column = self.sink.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
            weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        weights = weights.nan_to_num(0.0)  # padding that sees nothing
        coarse, made = weights * rounds, weights * ~rounds
        return sum(
            torch.matmul(share, value.to(share.dtype).repeat_interleave(group, 1))
            for share, value in ((made, self.values[0]), (coarse, self.values[1]))
        )  # type: ignore[return-value]

    def _scores(self, rows: slice, key: Tensor, group: int) -> Tensor:
        wide = torch.promote_types(key.dtype, torch.float32)
        query = self.query[:, :, rows].to(wide) * self.scaling
        return torch.matmul(query, key.to(wide).repeat_interleave(group, 1).mT)

    def _parts(self) -> Iterator[slice]:
        batch, heads, queries, _ = self.query.shape
        step = max(1, ELEMENTS // (batch * heads * self.keys[0].shape[2]))
        for start in range(0, queries, step):
            yield slice(start, min(queries, start + step))


def two_versions(
    module: nn.Module,
    implementation: str | None,
    arguments: Mapping[str, Any],
    rounded: tuple[Tensor, Tensor],
    rounds: Tensor,
) -> TwoVersions:
    """From the arguments of an attention function.

    Args:
        module: The attention layer.
        implementation: Name of the function; None is eager.
        arguments: By name, with keys and values in full precision.
        rounded: Keys and values as stored, in the same order.
        rounds: (batch, query, key): the pairs that use the rounded key and value.

    Raises `UnsupportedModelError` unless it is a plain softmax.
    """
    query, key, value, mask = (arguments.get(name) for name in ("query", "key", "value", "attention_mask"))
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    assert isinstance(value, Tensor)
    operation = operation_of(module)
    if operation is not None and not (operation.spec.is_plain_softmax and not operation.slots):
        spec = operation.spec
        name = name_of(spec) if isinstance(spec, AttentionSpec) else type(spec).__name__
        raise refuse(module, f"attention '{name}' is not a plain softmax")
    if operation is not None and arguments.get("bias") is not None:
        raise refuse(module, "a bias is added to its scores")
    if arguments.get("position_bias") is not None or arguments.get("sinks") is not None:
        raise refuse(module, "numbers are added to its scores")
    if isinstance(mask, Visibility):
        mask = mask.dense()
    elif operation is not None or implementation not in (None, *HOSTS):
        raise refuse(
            module, f"attn_implementation='{implementation}' does not show which keys are visible: use sdpa or eager"
        )
    elif mask is None and implementation == "sdpa" and query.shape[2] > 1 and _is_causal(module, arguments):
        shape = query.shape[2], key.shape[2]
        # The last query sees all keys: with a cache there are more keys than queries.
        mask = torch.ones(1, 1, *shape, dtype=torch.bool, device=query.device).tril(shape[1] - shape[0])
    elif mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 4):
        raise refuse(module, f"its mask is a {type(mask).__name__}: use attn_implementation='sdpa' or 'eager'")
    scaling = arguments.get("scaling")
    return TwoVersions(
        query,
        (key, rounded[0]),
        (value, rounded[1]),
        rounds,
        mask,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        arguments.get("softcap"),
        arguments.get("s_aux"),
    )


def check_same(module: nn.Module, output: Tensor, computed: Tensor, real: Bool[Tensor, "_ query"]) -> None:
    """Raises `UnsupportedModelError` for a layer whose output differs from the softmax computed here."""
    allowed = max(AGREES, ROUNDINGS * torch.finfo(output.dtype).eps)  # bfloat16 alone is off by more than AGREES
    differs = (output.float() - computed.float()).abs().amax((-2, -1)) * real
    if output.shape != computed.shape or bool(differs.max() > allowed * output.abs().max() + 1e-6):
        raise refuse(module, "its output differs from softmax attention with its scaling, mask, softcap and sink")


def refuse(module: nn.Module, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"family '{family(module)}', {type(module).__name__}: {reason}, so rounding in blocks cannot be simulated: use "
        "grids over a token without a window, or read through quantized_cache"
    )


def _is_causal(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    argument = arguments.get("is_causal")
    return bool(getattr(module, "is_causal", True) if argument is None else argument)
