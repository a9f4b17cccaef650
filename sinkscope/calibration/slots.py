"""What learned sinks and other slots take of a call's weight, with its digits where tokens take nearly all."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import operation_of
from sinkscope.calibration.calls import SINKS, Call, columns_of, keys_at, wide
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import family, hosted

LARGE = 1e-3  # a weight from which the slots' own follows with all its digits


def slot_mass(
    call: Call,
    chosen: Bool[Tensor, "batch key"],
    mass: Float[Tensor, "batch heads query"],
    remaining: Float[Tensor, "batch heads query"],
) -> Float[Tensor, "batch heads query"]:
    """The weight on slots, where `mass` is that on a set of keys and `remaining` that on the other tokens.

    1 − m − r has no digit where m is near 1. There a key k of the set has a large weight a_k = exp(s_k − L), and the
    slots of logit b have exp(b − L) = a_k exp(b − s_k). Raises `UnsupportedModelError` where scores are more than
    scaled products.
    """
    given: dict[str, Any] = {**call.run.arguments, **hosted(call.module)}
    logit = _slot_logit(call, given)
    columns, there = columns_of(chosen)
    weights = call.weights(columns) * there[:, None, None]
    largest = weights.max(-1)
    scaling = call.query.shape[-1] ** -0.5 if given.get("scaling") is None else float(given["scaling"])
    keys = keys_at(call.key, columns)
    grouped = wide(call.query).reshape(len(keys), keys.shape[1], -1, keys.shape[-1])
    scores = (scaling * torch.matmul(grouped, wide(keys).mT)).view(weights.shape)
    score = scores.gather(-1, largest.indices[..., None])[..., 0]
    by_score = largest.values * (logit - score).clamp(max=80.0).exp()
    return torch.where(largest.values > LARGE, by_score, (1 - mass - remaining).clamp(min=0))


def _slot_logit(call: Call, given: dict[str, Any]) -> Float[Tensor, "batch heads query"]:
    """log Σ exp of the logits of all slots."""
    operation, shape = operation_of(call.module), call.query.shape[:3]
    plain = all(given.get(name) is None for name in ("softcap", "position_bias", "bias"))
    if not plain or (operation is not None and not operation.spec.is_plain_softmax):
        raise UnsupportedModelError(
            f"family '{family(call.module)}', {type(call.module).__name__}: it has slots, and scores that are more "
            "than scaled products, so what slots would take without these tokens has no exact digits: take gamma of "
            "at least 0.125"
        )
    if operation is not None:
        names = ("attention_mask", "hidden_states", "scaling", "carried", "bias")
        context = operation.context(call.query, call.key, *(given.get(name) for name in names))
        return wide(torch.logsumexp(operation.slot_logits(call.query, context), -1)).expand(shape)
    sink = next(given[name] for name in SINKS if given.get(name) is not None)
    return wide(sink[None, :, None] if sink.ndim == 1 else sink[..., 0]).expand(shape)
