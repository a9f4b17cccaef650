"""Texts after a prefix: which of their tokens belong to it, and the inputs and outputs of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import Cache

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import arguments, family, given_cache, parameters, with_cache
from sinkscope.model import LabForCausalLM


@runtime_checkable
class Front(Protocol):
    """What precedes a text, see `Prefix`."""

    @property
    def ids(self) -> tuple[int, ...]: ...

    @property
    def logits(self) -> Tensor: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def room(self) -> int | None: ...

    def cache(self, rows: int = 1) -> Cache: ...


def joined_inputs(prefix: Front, passed: dict[str, Any], *, masked: bool = True) -> dict[str, Tensor]:
    """The rows after the prefix's ids, and their mask, unless there is none and `masked` is False."""
    ids, mask = _ids(passed), passed.get("attention_mask")
    real = _real(ids, mask)
    if not bool(real[:, 0].all()):
        raise InputError(
            "rows are padded on the left, which would separate the prefix from the text: pad on the right, or generate "
            "row by row"
        )
    shared = overlap(prefix, ids, real)
    whole = torch.cat([ids.new_tensor(prefix.ids).expand(len(ids), -1), ids[:, shared:]], 1)
    _check_room(prefix, whole.shape[1])
    if mask is None:
        return {"input_ids": whole} | ({"attention_mask": torch.ones_like(whole)} if masked else {})
    return {"input_ids": whole, "attention_mask": _wider(mask[:, shared:], len(prefix.ids))}


def overlap(prefix: Front, ids: Int[Tensor, "row token"], real: Bool[Tensor, "row token"]) -> int:
    """The number of first tokens of every row that are the last tokens of the prefix.

    Raises `InputError` for a row that would begin with a second BOS after the prefix.
    """
    order = (~real).int().argsort(dim=-1, stable=True)
    front = ids.gather(-1, order)
    counts = real.sum(-1)
    shared = 0
    for count in range(1, min(len(prefix.ids), ids.shape[1], int(counts.min())) + 1):
        if bool((front[:, :count] == ids.new_tensor(prefix.ids[-count:])).all()):
            shared = count
    if bool((counts <= shared).any()):
        raise InputError(f"row {int(counts.argmin())} is the prefix alone: give at least one more token")
    # Every row has a token after the shared ones, so the index exists.
    again = (front[:, shared] == prefix.bos) if prefix.bos in prefix.ids else torch.zeros_like(counts, dtype=torch.bool)
    if bool(again.any()):
        raise InputError(
            f"row {int(again.int().argmax())} begins with a BOS ({prefix.bos}), and the prefix has one already: leave "
            "it out (add_special_tokens=False), or start all rows alike"
        )
    return shared


def own_tokens(prefix: Front, passed: Mapping[str, Any]) -> Bool[Tensor, "row position"]:
    """The tokens of each row that belong to the prefix: its first tokens that are the last tokens of the prefix.

    Raises `InputError` as `overlap`.
    """
    ids = _ids(passed)
    real = _real(ids, passed.get("attention_mask"))
    overlap(prefix, ids, real)  # raises what a pass over all rows would raise
    shared = [overlap(prefix, ids[row : row + 1], real[row : row + 1]) for row in range(len(ids))]
    return real & (real.cumsum(-1) <= torch.tensor(shared, device=real.device)[:, None])


@dataclass(eq=False)
class Serving:
    """Puts a prefix before the passes of a model until a stack closes.

    In a cache made in full precision, or `as_text`, as additional tokens of the pass.
    """

    prefix: Front
    model: nn.Module
    as_text: bool = False

    def attach(self, stack: ExitStack) -> None:
        self._shared: list[Bool[Tensor, "row token"] | int] = []
        # The first hook on the way in and the last on the way out: all other hooks see the pass as it runs.
        begin = self.model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)
        end = self.model.register_forward_hook(self._end, always_call=True)
        stack.callback(begin.remove)
        stack.callback(end.remove)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        passed = arguments(model, args, kwargs)
        self._shared.clear()
        self._check(passed)
        ids, mask = _ids(passed), passed.get("attention_mask")
        real = _real(ids, mask)
        shared, count = overlap(self.prefix, ids, real), len(self.prefix.ids)
        _check_room(self.prefix, count + ids.shape[1] - shared)
        if self.as_text:
            self._added = count - shared
            return (), passed | joined_inputs(
                self.prefix, {"input_ids": ids, "attention_mask": mask}, masked=mask is not None
            )
        if bool(real[:, :1].all()):
            self._shared.append(shared)
            passed |= {"input_ids": ids[:, shared:]}
            if mask is not None:
                passed["attention_mask"] = _wider(mask[:, shared:], count)
            if passed.get("position_ids") is not None:
                # Token `shared` of a text comes right after the prefix, at position `count`.
                passed["position_ids"] = passed["position_ids"][..., shared:] + (count - shared)
        else:
            passed |= self._behind_padding(passed, ids, real, shared)
        passed |= with_cache(self.model, self.prefix.cache(len(ids)))
        if "use_cache" in parameters(self.model).parameters:
            passed["use_cache"] = True
        return (), passed

    def _behind_padding(self, passed: Mapping[str, Any], ids: Tensor, real: Tensor, shared: int) -> dict[str, Tensor]:
        """Rows of unequal lengths keep their columns: tokens that belong to the prefix become padding."""
        if not isinstance(self.model, LabForCausalLM) and "position_ids" not in parameters(self.model).parameters:
            raise UnsupportedModelError(
                f"family '{family(self.model)}': rows are padded on the left, and it takes no position_ids: pad on "
                "the right"
            )
        in_prefix = real & (real.cumsum(-1) <= shared)
        self._shared.append(in_prefix)
        left = real & ~in_prefix
        filler = ids.gather(
            -1, left.int().argmax(-1, keepdim=True)
        )  # a token of the text, which does not become a sink
        mask = passed.get("attention_mask")
        assert mask is not None, "without a mask no row is padded"
        count = len(self.prefix.ids)
        changed = {"input_ids": torch.where(in_prefix, filler, ids), "attention_mask": _wider(mask * left, count)}
        if not isinstance(self.model, LabForCausalLM):  # the lab model counts real tokens itself
            changed["position_ids"] = (left.cumsum(-1) - 1).clamp(min=0) + count
        return changed

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Insert the prefix's own predictions where its tokens were cut off."""
        shared = self._shared.pop() if self._shared else 0
        logits = getattr(output, "logits", None)
        if self.as_text:
            if isinstance(logits, Tensor) and logits.shape[1] > self._added:
                output.logits = logits[:, self._added :]
            return output
        if not isinstance(logits, Tensor) or (isinstance(shared, int) and not shared):
            return None
        prefix_logits = self.prefix.logits.to(logits)
        if isinstance(shared, int):
            if logits.shape[1] > 1:  # a single one: the last, by logits_to_keep
                output.logits = torch.cat([prefix_logits[-shared:].expand(len(logits), -1, -1), logits], 1)
        elif logits.shape[:2] == shared.shape and bool(shared.any()):
            most = int(shared.sum(-1).max())
            # The last `most` predictions of the prefix, in order; elsewhere the index only has to be valid.
            index = (shared.cumsum(-1) - 1).clamp(min=0) + len(prefix_logits) - most
            output.logits = torch.where(
                shared[..., None], prefix_logits[index.clamp(max=len(prefix_logits) - 1)], logits
            )
        return output

    def _check(self, passed: Mapping[str, Any]) -> None:
        """Raises `InputError` for a pass that cannot read after the prefix."""
        if given_cache(passed) is not None:
            raise InputError(
                "a pass with its own cache while a prefix is applied: give generate() the prefix in its cache instead, "
                "generate(**prefix.before(ids), past_key_values=prefix.cache(rows))"
            )
        if passed.get("labels") is not None:
            raise InputError(
                "labels while a prefix is applied: its tokens have no loss; compute the loss from the logits"
            )


def _ids(passed: Mapping[str, Any]) -> Int[Tensor, "row token"]:
    ids = passed.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.shape[1]:
        raise InputError("a prefix precedes token ids (rows, tokens): give input_ids")
    return ids


def _real(ids: Tensor, mask: Any) -> Bool[Tensor, "row token"]:
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"attention_mask {shape}: after a prefix, expected one column per token, {tuple(ids.shape)}")
    if not bool((real := mask.bool()).any(-1).all()):
        raise InputError(f"row {int(real.any(-1).int().argmin())} of attention_mask is all padding")
    return real


def _wider(mask: Tensor, count: int) -> Tensor:
    """The mask with one more column for each token of the prefix."""
    return torch.cat([mask.new_ones(len(mask), count), mask], 1)


def _check_room(prefix: Front, total: int) -> None:
    if prefix.room is not None and total > prefix.room:
        raise InputError(
            f"{total} tokens with a prefix of {len(prefix.ids)}, but the model has {prefix.room} positions: give at "
            f"most {prefix.room - len(prefix.ids)} after it"
        )
