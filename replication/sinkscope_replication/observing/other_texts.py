"""A trained model on other texts than its own: one domain, after a BOS, as a chat message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.data import DataConfig, Inputs, adds_first_token, as_chat, is_chat, load_corpus, natural_windows
from sinkscope.errors import InputError
from sinkscope.experiments import Metrics
from sinkscope.experiments.readings import TOKENS, Windows, at_first, by_name, columns, mean_loss

PER_DOMAIN, MOST_DOMAINS, MESSAGES = 50, 20, 100


def other_texts(model: PreTrainedModel, tokenizer: Any, data: DataConfig, windows: Tensor | Windows) -> Metrics:
    """Metrics of `Observed` for a model trained on `data`, whose validation windows are given as `readings` takes them.

    Trained without a fixed BOS: `sink_0/with_bos`, `loss/with_bos` (the windows after one). On conversations:
    `sink_0/plain_text`, `loss/plain_text` (validation text of the corpus `python`), `sink_0/as_chat` (that text as a
    user's message in the chat template), `sink_0/document` and `sink_0/document_after_bos` (the beginning of one
    conversation alone, so that masks between documents hide nothing). Otherwise, where the corpus has domains:
    `sink_0/domain=torch` … on validation text of each of up to 20 (Gu et al. 2025, appendix). Texts have 64 tokens, or
    as many as the windows where these are shorter. Beside each `sink_0/…` its `sink_mass/…`.
    """
    context = by_name(windows)["input_ids"].shape[1]
    if data.bos == "none" and tokenizer.bos_token_id is not None:
        shifted = _after_bos(tokenizer.bos_token_id, by_name(windows))
        yield from at_first("with_bos", model, columns(shifted, slice(TOKENS)))
        yield "loss/with_bos", mean_loss(model, shifted)
    if is_chat(data.corpus):
        yield from _on_plain_text(model, tokenizer, context)
        yield from _on_one_document(model, tokenizer, data, context)
    else:
        for domain, text in _domains(tokenizer, data, context):
            yield from at_first(f"domain={domain}", model, text)


def _after_bos(bos: int, windows: Windows) -> Windows:
    """The windows, as long as before, after a BOS that belongs to the document in which they begin."""
    shifted = {name: torch.cat([values[:, :1], values[:, :-1]], 1) for name, values in windows.items()}
    shifted["input_ids"][:, 0] = bos
    return shifted


def _on_plain_text(model: PreTrainedModel, tokenizer: Any, context: int) -> Metrics:
    plain = _text(tokenizer, DataConfig(), MESSAGES, context)
    yield from at_first("plain_text", model, plain)
    yield "loss/plain_text", mean_loss(model, plain)
    bare = Inputs(plain[:, int(adds_first_token(tokenizer)) :], "", "")
    yield from at_first("as_chat", model, as_chat(bare, tokenizer).input_ids)


def _on_one_document(model: PreTrainedModel, tokenizer: Any, data: DataConfig, context: int) -> Metrics:
    length = min(TOKENS, context) - 1
    document = natural_windows(tokenizer, length, MESSAGES, 0, corpus=data, windows="starts").input_ids
    yield from at_first("document", model, document)
    if tokenizer.bos_token_id is not None:
        bos = torch.full((len(document), 1), tokenizer.bos_token_id)
        yield from at_first("document_after_bos", model, torch.cat([bos, document], 1))


def _domains(tokenizer: Any, data: DataConfig, context: int) -> Iterator[tuple[str, Tensor]]:
    for domain in list(load_corpus(data.corpus, data.max_characters).domains())[:MOST_DOMAINS]:
        try:
            yield domain, _text(tokenizer, data, PER_DOMAIN, context, domain)
        except InputError:  # none of its validation documents is long enough: a metric that this run does not have
            continue


def _text(tokenizer: Any, data: DataConfig, samples: int, context: int, domain: str | None = None) -> Tensor:
    """Stretches of validation text, preceded by what the tokenizer puts before every text."""
    first = int(adds_first_token(tokenizer))
    ids = natural_windows(tokenizer, min(TOKENS, context) - first, samples, 0, corpus=data, domain=domain).input_ids
    return torch.cat([torch.full((len(ids), 1), tokenizer.bos_token_id), ids], 1) if first else ids
