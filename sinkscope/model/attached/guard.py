"""Whether a family of models takes an operation: with plain softmax in all its layers it must compute what it did.

transformers has hundreds of families, and what a layer adds to its attention shows in no signature. So each host is
tried: its outputs before and with the neutral operation, on whole rows, on padded rows, and continued from a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import cache_of, device_of, evaluating, with_cache
from sinkscope.model.attached.shift import outputs

TOLERANCE = 2e-4
"""Largest difference of an output in fp32, in standard deviations of all outputs."""
ROUGH = 0.05
"""In half precision, of the median token: rounding may send a token to another expert, a lost mask moves most."""
FIRST = 5  # tokens before the cache is continued


def readings(model: PreTrainedModel, probe: dict[str, Any]) -> dict[str, Tensor]:
    """Outputs (token, channel) of a host, by how they were computed: whole, padded, and continued from a cache.

    Rows of tokens are padded on the left in a decoder, on the right elsewhere, by a quarter of their length in every
    second row; padding has no output. The cache is continued after five tokens. Other inputs are only read whole.
    """
    logits = {"whole rows": outputs(model, probe).flatten(0, -2)}
    ids = probe.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or len(probe) > 1 or ids.shape[1] < 4:
        return logits
    mask = torch.ones_like(ids)
    continues = model.can_generate() and ids.shape[1] > FIRST
    absent = slice(0, ids.shape[1] // 4) if continues else slice(-(ids.shape[1] // 4), None)
    mask[1::2, absent] = 0
    if not continues:
        logits["padded rows"] = outputs(model, {"input_ids": ids, "attention_mask": mask})[mask.bool()]
        return logits
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    cache: Cache | None = None
    for part, name in ((slice(0, FIRST), "padded rows"), (slice(FIRST, None), "rows continued from a cache")):
        inputs = {"input_ids": ids[:, part], "attention_mask": mask[:, : part.stop]} | with_cache(model, cache)
        output = _run(model, inputs | {"position_ids": places[:, part], "use_cache": True})
        logits[name] = output.logits.float()[mask[:, part].bool()]
        if (cache := cache_of(output)) is None:
            break
    return logits


def _run(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    device = device_of(model)
    placed = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    if "position_ids" not in inspect.signature(model.forward).parameters:
        del placed["position_ids"]
    with evaluating(model), torch.no_grad():
        return model(**placed)


def check_equal(model: PreTrainedModel, before: dict[str, Tensor], read: Callable[[], dict[str, Tensor]]) -> None:
    """Raises `UnsupportedModelError` if a host with the neutral operation computes something else, or nothing."""
    try:
        after = read()
    except (UnsupportedModelError, InputError) as error:
        raise refusal(model, str(error)) from error
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:  # of the host's own code
        raise refusal(model, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    for name, moved in _differences(before, after, model.dtype):
        raise refusal(model, f"on {name} its outputs move by {moved:.2g} standard deviations")


def _differences(
    before: dict[str, Tensor], after: dict[str, Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, float]]:
    exact = dtype in (torch.float32, torch.float64)
    for name, output in before.items():
        judged = output.isfinite().all(-1)  # some attention functions return NaN where rows are padded
        if not bool(judged.any()):
            continue
        wanted = output[judged]
        spread = wanted.std().clamp(min=torch.finfo(torch.float32).tiny)
        worst = (after[name][judged] - wanted).abs().amax(-1) / spread
        moved = float(worst.max() if exact else worst.median())
        # Negated, so that an output that became NaN counts as moved.
        if not moved <= (TOLERANCE if exact else ROUGH):
            yield name, moved


def refusal(model: PreTrainedModel, reason: str) -> UnsupportedModelError:
    """The error for a host that is not itself with the neutral operation."""
    return UnsupportedModelError(
        f"family '{model.config.model_type}': attached softmax is not the model's own attention ({reason})"
    )
