"""What a trained model predicts in a stream longer than its context, with its first tokens kept and without them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.caches import StreamingCache
from sinkscope.data import DataConfig, adds_first_token, natural_windows
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.experiments import Metrics
from sinkscope.trials import cached, stream_nll

ROWS, CONTEXTS, SINKS = 16, 3, (0, 1, 4)


def streamed(model: PreTrainedModel, texts: Tensor | None, context: int) -> Metrics:
    """`stream_loss/sinks=0` (1, 4): loss in nats of a `StreamingCache` of `context` keys.

    Read token by token, over the tokens after the first context. Nothing for models that cannot stream: absolute
    positions, operations that read every key, learned tokens before the text, bidirectional models. `texts`: ids
    (sample, token), longer than the context; None where there are none. Source: Xiao et al. 2024, Table 1.
    """
    if texts is None:
        return
    for sinks in SINKS:
        keeping = cached(f"{sinks} sinks", lambda of, n=sinks: StreamingCache(of, sinks=n, window=context - n))  # type: ignore[misc]
        try:
            lost = stream_nll(model, texts, keeping, context=1)
        except (InputError, UnsupportedModelError):
            return
        yield f"stream_loss/sinks={sinks}", float(lost[:, context:].mean())


def long_texts(tokenizer: Any, data: DataConfig, context: int) -> Tensor | None:
    """Stretches of validation text of three contexts, after a BOS if training had one; None if no text is that long."""
    first = int(adds_first_token(tokenizer))
    try:
        ids = natural_windows(tokenizer, CONTEXTS * context - first, ROWS, 0, corpus=data).input_ids
    except InputError:
        return None
    return torch.cat([torch.full((len(ids), 1), tokenizer.bos_token_id), ids], 1) if first else ids
