"""What a model itself writes about an image or a recording, for its decoder to read."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.data.model_inputs import start_token
from sinkscope.errors import InputError, UnsupportedModelError

AT_ONCE = 8  # samples that are written about together


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
    device = next(weight.device for weight in model.parameters() if not weight.is_meta)
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
