"""What a trial compares: texts, arms, and the ways to read texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import Cache, QuantizedCache

from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import Stream, checked_inputs, family, part, unwrapped

REFERENCE = "full"
"""The name of the arm that changes nothing; it is part of every trial."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Model inputs of some texts.

    `rows`: which they are among all texts of the trial; `predicts_next`: whether the model predicts the next token.
    """

    inputs: Mapping[str, Any]
    count: int
    rows: slice
    mask_name: str = "attention_mask"
    predicts_next: bool = True

    @classmethod
    def of(cls, model: nn.Module, inputs: Any) -> Texts:
        """Ids (N, T), or a dict of model inputs, as `measure` takes them. Raises `InputError` as it does."""
        model = unwrapped(model)
        inputs_by_name, count = checked_inputs(model, inputs)
        stream = Stream.of(model)
        return cls(inputs_by_name, count, slice(0, count), stream.mask_name, stream.stack == "decoder")

    @classmethod
    def of_ids(cls, ids: Int[Tensor, "text token"], start: int = 0) -> Texts:
        """Rows of ids without padding, the texts from number `start` on."""
        return cls({"input_ids": ids}, len(ids), slice(start, start + len(ids)))

    @property
    def ids(self) -> Int[Tensor, "text token"] | None:
        """Token ids of the stack that is changed; None where the model is given something else."""
        ids = self.inputs.get(self.mask_name.replace("attention_mask", "input_ids"))
        return ids if isinstance(ids, Tensor) else None

    @property
    def real(self) -> Bool[Tensor, "text token"] | None:
        """False for padding; None where all tokens are real."""
        mask = self.inputs.get(self.mask_name)
        return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None

    def part(self, rows: slice) -> Texts:
        """Some of these texts, by their place among them."""
        start, stop, _ = rows.indices(self.count)
        cut = part(self.inputs, slice(start, stop), self.count, torch.device("cpu"))
        return Texts(
            cut,
            stop - start,
            slice(self.rows.start + start, self.rows.start + stop),
            self.mask_name,
            self.predicts_next,
        )

    def batches(self, size: int) -> Iterator[Texts]:
        """`size` texts at a time."""
        return (self.part(slice(start, start + size)) for start in range(0, self.count, size))

    def digest(self) -> str:
        """A hash of every tensor of the inputs, in the order of their names."""
        digest = hashlib.sha256()
        add_tensors(digest, self.inputs)
        return digest.hexdigest()


def add_tensors(digest: Any, inputs: Mapping[str, Any]) -> None:
    """Add the tensors of some model inputs to a hash, in the order of their names."""
    for name, value in sorted(inputs.items()):
        if isinstance(value, Tensor):
            digest.update(name.encode() + str(tuple(value.shape)).encode())
            digest.update(np.ascontiguousarray(value.detach().cpu().float().numpy()).tobytes())


Open = Callable[[nn.Module, Texts], AbstractContextManager[Cache | None]]
Touched = Callable[[Texts], Bool[Tensor, "text token"]]


@dataclass(frozen=True, eq=False)
class Arm:
    """One side of a trial.

    Args:
        name: Its name, which no other arm has.
        open: `open(model, texts)` is a context inside which the model is changed, for these texts; it yields an empty
            cache to read through, or None for the model's own.
        control: `control(draw, texts)` is the arm that must be beaten: it spends the same budget on something random,
            drawn anew for each text, for all texts of the trial at once. None where nothing can be matched.
        touched: Tokens at which no arm is scored, since this one treats them differently: protected ones, those before
            a change.
        against: The arm to which KL and agreement are computed, if not the unchanged model: "full, with the prefix".
        series: Arms of one series differ in their budget and are drawn as one line.
        baseline: Whether this is what the others are to improve on, such as everything rounded.
        first_pass: Whose pass over the context it goes on from. "own": the arm reads it itself. "states": the unchanged
            model's keys and values, for quantized caches, whose prompts see themselves in full precision. "calls": its
            attention calls, for caches that evict after it. A pass that is shared is run once, and `seconds` lack it.
        same: Equal for arms that do the same, so that they run once; None for an arm like no other.
        facts: What it does, as JSON-able data: budgets in keys and bytes, positions, fields as they are used.
    """

    name: str
    open: Open
    control: Callable[[int, Texts], Arm | None] | None = None
    touched: Touched | None = None
    against: str = REFERENCE
    series: str = ""
    baseline: bool = False
    first_pass: Literal["own", "states", "calls"] = "own"
    same: Hashable | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def unchanged(name: str = REFERENCE) -> Arm:
    """The model as it is."""
    return Arm(name, lambda model, texts: nullcontext())


def cached(name: str, make: Callable[[nn.Module], Cache], **options: Any) -> Arm:
    """An arm that reads through the cache that `make(model)` builds."""

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache]:
        yield make(model)

    return Arm(name, opened, **options)


Backend = Literal["quanto", "hqq", "fp8"]


def transformers_quantized(
    backend: Backend,
    bits: int | None = None,
    *,
    group: int | None = None,
    residual: int | None = None,
    axis: int | None = None,
    name: str | None = None,
) -> Arm:
    """transformers' own `QuantizedCache`, for comparison; what is left out has its defaults.

    It rounds a prompt as a whole after its pass, and all of it again whenever `residual` further tokens are there.

    Args:
        backend: quanto stores 2 or 4 bits, hqq 1, 2, 3, 4 or 8, fp8 8 with one frozen scale.
        bits: Bits per number.
        group: Numbers that share a scale.
        residual: Newest tokens that are not rounded.
        axis: Along which a group lies, for keys and values: 0 or −1 (quanto), 0 or 1 (hqq).
        name: The arm's name; default: the backend and its bits.

    Raises `InputError` for an unknown backend; when opened, where its package is missing (extra `quantize`), and
    `UnsupportedModelError` for models that it refuses.
    """
    if backend not in get_args(Backend):
        raise unknown("backend", str(backend), get_args(Backend))
    options = {"nbits": bits, "q_group_size": group, "residual_length": residual, "axis_key": axis, "axis_value": axis}

    def make(model: nn.Module) -> Cache:
        config: Any = model.config
        try:
            return QuantizedCache(backend, config, **options)
        except ImportError as error:
            raise InputError(f"{backend} cannot be imported ({error}): pip install 'sinkscope[quantize]'") from error
        except ValueError as error:
            if "only supported for models" in str(error):
                raise UnsupportedModelError(f"family '{family(model)}': {' '.join(str(error).split())}") from error
            raise InputError(f"{backend}: {error}") from error

    return cached(name or (backend if bits is None else f"{backend} {bits} bits"), make, series=backend)


@dataclass(frozen=True)
class OnePass:
    """Whole texts in one pass; predictions from token `from_token` on are scored."""

    from_token: int = 0

    def check(self, texts: Texts) -> None:
        """Raises `InputError` for a start after the last token."""
        length = None if texts.ids is None else texts.ids.shape[1]
        if self.from_token < 0 or (length is not None and self.from_token >= length):
            raise InputError(f"from_token = {self.from_token}: texts have tokens 0 to {(length or 0) - 1}")

    def describe(self) -> dict[str, Any]:
        return {"read": "in one pass", "from_token": self.from_token}


@dataclass(frozen=True)
class ThroughCache:
    """The first `context` tokens in one pass, the rest through the cache, `chunk` tokens at a time (None: all at once).

    A cache drops or rounds what it does after the context, so that what follows sees the result. Scored are the
    predictions of all tokens after the context.
    """

    context: int
    chunk: int | None = 1

    @classmethod
    def of(cls, texts: Texts, context: int | None, chunk: int | None = 1) -> ThroughCache:
        """For these texts, with half of a text as the context where none is given. Raises as `check` does."""
        length = 0 if texts.ids is None else texts.ids.shape[1]
        reading = cls(length // 2 if context is None else context, chunk)
        reading.check(texts)
        return reading

    def check(self, texts: Texts) -> None:
        """Raises `InputError` for padded texts, inputs other than ids, and a context that leaves no token."""
        others = {name for name, value in texts.inputs.items() if isinstance(value, Tensor)}
        others -= {"input_ids", "attention_mask"}
        if texts.ids is None or others or not (texts.real is None or bool(texts.real.all())):
            raise InputError(
                "texts are read through a cache from their first token on: give token ids in rows of one length, "
                "without padding or other inputs"
            )
        length = texts.ids.shape[1]
        if not 0 < self.context < length:
            raise InputError(f"context = {self.context}: at least 1, and fewer than the texts' {length} tokens")
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk = {self.chunk}: at least 1 token at a time, or None for all at once")

    def describe(self) -> dict[str, Any]:
        return {"read": "through a cache", "context": self.context, "chunk": self.chunk}


@dataclass(frozen=True)
class Written:
    """Texts are read in one pass, and `n` tokens are written after each, greedily; agreement is up to the first other.

    `agreement`: the share of n before the first token that the reference would not have written. No KL, no nats: after
    another token the two read different texts.
    """

    n: int

    def check(self, texts: Texts) -> None:
        """Raises `InputError` as `ThroughCache` does, and for less than one token."""
        if self.n < 1:
            raise InputError(f"n = {self.n}: at least one token is written")
        length = 2 if texts.ids is None else texts.ids.shape[1]
        ThroughCache(max(1, length - 1)).check(texts)

    def describe(self) -> dict[str, Any]:
        return {"read": "written on", "n": self.n}


Reading = OnePass | ThroughCache | Written
