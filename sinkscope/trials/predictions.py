"""How well, and how confidently, each text is predicted under a calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Stream, batches, checked_inputs, evaluating, family, unwrapped, without_cache
from sinkscope.interventions import Intervention
from sinkscope.interventions.reweigh import image_token


@dataclass(frozen=True, eq=False)
class TextScores:
    """Per text, means over its predicted tokens.

    `loss`: −log p of the actual token, in nats; `entropy` of the prediction, in nats, which needs no targets; `right`:
    the share of tokens that were most likely.
    """

    loss: Float[np.ndarray, " text"]
    entropy: Float[np.ndarray, " text"]
    right: Float[np.ndarray, " text"]


def text_scores(
    model: nn.Module, inputs: Any, calibration: Intervention | None = None, batch_size: int = 8
) -> TextScores:
    """The scores of each text, without predictions of or from padding, and of image tokens.

    Raises `UnsupportedModelError` for a model that does not predict next tokens, and `InputError` for texts of one
    token and predictions that are not finite.
    """
    by_name = means(model, inputs, calibration, batch_size, ("loss", "entropy", "error"))
    return TextScores(by_name["loss"], by_name["entropy"], 1 - by_name["error"])


def means(
    model: nn.Module,
    inputs: Any,
    calibration: Intervention | None,
    batch_size: int,
    names: Sequence[str],
    counted: Callable[[int], object] = lambda texts: None,
    from_token: int = 0,
) -> dict[str, Float[np.ndarray, " text"]]:
    """Some objectives of each text, means over its predictions.

    Args:
        model: A model that predicts next tokens.
        inputs: The texts, as `measure` takes them.
        calibration: The intervention under which the model reads them; None for the unchanged model.
        batch_size: Texts per pass.
        names: Of the objectives: "loss" and "entropy" in nats, "error" (1 − accuracy).
        counted: Called with the number of texts after each batch.
        from_token: Only predictions from this token on count.

    Raises as `text_scores` does.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    check_decoder(model, checked)
    parts: list[dict[str, Tensor]] = []
    image = image_token(model)
    changed = nullcontext() if calibration is None else calibration.applied(model)
    with evaluating(model), torch.no_grad(), changed:
        for batch in batches(model, checked, samples, batch_size):
            logs, places = next_tokens(logits_of(model, batch), batch, image, from_token)
            parts.append(objectives(logs, batch["input_ids"], places, names))
            counted(len(logs))
    by_name = {name: torch.cat([batch_means[name] for batch_means in parts]).double().cpu().numpy() for name in names}
    for values in by_name.values():
        if not np.isfinite(values).all():
            raise InputError(f"the predictions of text {int(np.argmin(np.isfinite(values)))} are NaN or infinite")
    return by_name


def check_decoder(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raises `UnsupportedModelError` for a model that does not predict next tokens of ids."""
    if Stream.of(model).stack != "decoder" or not isinstance(inputs.get("input_ids"), Tensor):
        raise UnsupportedModelError(f"family '{family(model)}': calibration is chosen by next-token predictions")


def logits_of(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """The logits after each token of a batch. Raises `UnsupportedModelError` if there are none."""
    logits = getattr(model(**batch, **without_cache(model)), "logits", None)
    if not isinstance(logits, Tensor) or logits.shape[:2] != batch["input_ids"].shape:
        raise UnsupportedModelError(f"family '{family(model)}': it has no logits for each of its tokens")
    return logits


def next_tokens(
    logits: Tensor, batch: Mapping[str, Any], image: int | None, from_token: int = 0
) -> tuple[Float[Tensor, "text place vocabulary"], Bool[Tensor, "text place"]]:
    """log p of the next token at each place, and which places count. Raises `InputError` for texts of one token."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    counted = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        # Both the token that predicts and the one that is predicted must be real.
        counted = (mask[:, 1:] & mask[:, :-1]).bool()
    counted = counted if image is None else counted & (ids[:, 1:] != image)
    counted[:, :from_token] = False
    if not bool(counted.any(-1).all()):
        raise InputError("texts of one token have no next token: give at least two tokens")
    return logits[:, :-1].float().log_softmax(-1), counted


def shared_tokens(inputs: Mapping[str, Any]) -> int:
    """How many tokens all texts begin with: a BOS, a chat template; 0 if other inputs than ids distinguish them.

    Any calibration could be chosen for predicting them, at no use.
    """
    ids = inputs.get("input_ids")
    others = [name for name, value in inputs.items() if isinstance(value, Tensor) and name != "input_ids"]
    padded = isinstance(mask := inputs.get("attention_mask"), Tensor) and not bool(mask.all())
    if not isinstance(ids, Tensor) or len(ids) < 2 or padded or {*others} - {"attention_mask"}:
        return 0
    # cumprod then counts columns up to the first in which texts differ.
    same = (ids == ids[0]).all(0)
    return 0 if bool(same.all()) else int(same.int().cumprod(0).sum())


def objectives(
    logs: Float[Tensor, "text place vocabulary"],
    ids: Int[Tensor, "text token"],
    counted: Bool[Tensor, "text place"],
    names: Sequence[str],
) -> dict[str, Float[Tensor, " text"]]:
    """Means over the places of each text that count."""
    formulas: dict[str, Callable[[], Tensor]] = {
        "loss": lambda: -logs.gather(-1, ids[:, 1:, None])[..., 0],
        # p log p is 0 · −inf = NaN at p = 0, where its limit is 0.
        "entropy": lambda: -(logs.exp() * logs).nan_to_num(0.0).sum(-1),
        "error": lambda: (logs.argmax(-1) != ids[:, 1:]).float(),
    }
    return {name: (formulas[name]() * counted).sum(-1) / counted.sum(-1) for name in names}
