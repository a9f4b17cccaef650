"""How well each text is predicted, and how surely, under a calibration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.calibration.images import image_token
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Stream, batches, checked_inputs, evaluating, family, unwrapped
from sinkscope.interventions import Intervention

Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Scores:
    """Per text, means over its predicted tokens: `loss` −log p of the token that stood there, in nats; `entropy` of the
    prediction, in nats, which needs no truth; `right`, the share of tokens that were most likely."""

    loss: Float[np.ndarray, " text"]
    entropy: Float[np.ndarray, " text"]
    right: Float[np.ndarray, " text"]

    def of(self, objective: str) -> Float[np.ndarray, " text"]:
        """What to make small: the loss, the entropy, or the share of tokens that were not most likely ("error")."""
        return 1 - self.right if objective == "error" else getattr(self, objective)


def scores(model: nn.Module, inputs: Any, calibration: Intervention | None = None, batch_size: int = 8) -> Scores:
    """The scores of each text, predictions of padding and from padding left out, and of tokens that are an image's.

    Raises `UnsupportedModelError` for a model that predicts no next token, and `InputError` for texts of one token and
    predictions that are not finite.
    """
    model = unwrapped(model)
    given, samples = checked_inputs(model, inputs, batch_size)
    if Stream.of(model).stack != "decoder" or not isinstance(given.get("input_ids"), Tensor):
        raise UnsupportedModelError(f"family '{family(model)}': calibration is chosen by next-token predictions")
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    image = image_token(model)
    changed = nullcontext() if calibration is None else calibration.applied(model)
    with evaluating(model), torch.no_grad(), changed:
        for batch in batches(model, given, samples, batch_size):
            logits = getattr(model(**batch, **options), "logits", None)
            if not isinstance(logits, Tensor) or logits.shape[:2] != batch["input_ids"].shape:
                raise UnsupportedModelError(f"family '{family(model)}': it gives no logits for each of its tokens")
            parts.append(_of_batch(logits, batch, image))
    loss, entropy, right = (torch.cat(part).double().cpu().numpy() for part in zip(*parts, strict=True))
    if not np.isfinite(loss).all():
        raise InputError(f"the predictions of text {int(np.argmin(np.isfinite(loss)))} are NaN or infinite")
    return Scores(loss, entropy, right)


def _of_batch(logits: Tensor, batch: Mapping[str, Any], image: int | None) -> tuple[Tensor, Tensor, Tensor]:
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    counted = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        counted = (mask[:, 1:] & mask[:, :-1]).bool()
    counted = counted if image is None else counted & (ids[:, 1:] != image)
    if not bool(counted.any(-1).all()):
        raise InputError("texts of one token have no next token, so there is nothing to score: give at least two")
    logs = logits[:, :-1].float().log_softmax(-1)
    nll = -logs.gather(-1, ids[:, 1:, None])[..., 0]
    entropy = -(logs.exp() * logs).nan_to_num(0.0).sum(-1)
    right = (logs.argmax(-1) == ids[:, 1:]).float()
    return tuple((each * counted).sum(-1) / counted.sum(-1) for each in (nll, entropy, right))  # type: ignore[return-value]
