"""Whether a model reads what was prepared, and what it writes about it, for its decoder to read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.data.model_inputs import start_token
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import device_of

AT_ONCE = 8  # samples that are written about together


def try_out(model: PreTrainedModel, parts: Sequence[dict[str, Tensor]], tokens: int, what: str) -> None:
    """One sample of the smallest and of the largest size through the model.

    A processor whose sizes are not the model's is then said before anything is measured. Raises `InputError`.
    """
    by_size = sorted(parts, key=lambda part: sum(value[:1].numel() for value in part.values()))
    for part in (by_size[0], by_size[-1])[: len(parts)]:
        samples = len(next(iter(part.values())))
        one = {name: value[:1] if len(value) == samples else value for name, value in part.items()}
        try:
            if model.config.is_encoder_decoder:
                written(model, one, min(2, tokens))
            else:
                with torch.no_grad():
                    model(**{name: value.to(device_of(model)) for name, value in one.items()})
        except InputError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            sizes = ", ".join(f"{name} {' × '.join(map(str, value.shape))}" for name, value in one.items())
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"{type(model).__name__} cannot read {what} ({sizes}): {reason}") from error


def written(model: PreTrainedModel, given: dict[str, Tensor], tokens: int) -> dict[str, Tensor]:
    """The inputs with `decoder_input_ids` (N, tokens): the start token and the likeliest token after token.

    Tokens that end a text are never taken, so that every row has the same length. Raises `UnsupportedModelError` for a
    model without a head that writes, `InputError` for more tokens than its decoder has positions.
    """
    config = model.config.get_text_config(decoder=True)
    limit = next(
        (
            size
            for name in ("max_target_positions", "max_position_embeddings")
            if isinstance(size := getattr(config, name, None), int)
        ),
        tokens,
    )
    if tokens > limit:
        raise InputError(f"{tokens} tokens, but the decoder has positions for {limit}: use at most {limit}")
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no head that writes what its decoder could read")
    samples = len(next(iter(given.values())))
    rows = [
        _row({name: value[start : start + AT_ONCE] for name, value in given.items()}, model, tokens)
        for start in range(0, samples, AT_ONCE)
    ]
    return {**given, "decoder_input_ids": torch.cat(rows)}


def _row(given: dict[str, Tensor], model: PreTrainedModel, tokens: int) -> Tensor:
    device = device_of(model)
    on_device = {name: value.to(device) for name, value in given.items()}
    count = len(next(iter(given.values())))
    ids = torch.full((count, 1), start_token(model), device=device)
    ends = _ends(model)
    with torch.no_grad():
        encoded = None
        while ids.shape[1] < tokens:
            known = on_device if encoded is None else {**on_device, "encoder_outputs": encoded}
            output = model(**known, decoder_input_ids=ids, use_cache=False)
            encoded = (output.encoder_last_hidden_state,)
            logits = output.logits[:, -1].float()
            logits[:, ends] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids.cpu()


def _ends(model: PreTrainedModel) -> list[int]:
    settings = getattr(model, "generation_config", None)
    found = getattr(settings, "eos_token_id", None)
    if found is None:
        found = model.config.get_text_config(decoder=True).eos_token_id
    rows = [found] if isinstance(found, int) else list(found or [])
    return [token for token in rows if token < model.get_output_embeddings().weight.shape[0]]
