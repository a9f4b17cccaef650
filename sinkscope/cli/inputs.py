"""The token ids that `sinkscope measure` puts into a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from sinkscope.data import Inputs, build_inputs
from sinkscope.errors import InputError
from sinkscope.model import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

InputKind = Literal["natural", "random", "repeated", "first-token"]
Bos = Literal["auto", "add", "none"]
NEEDS_TEXT = ("natural", "first-token")


def inputs_for(
    model: PreTrainedModel,
    name: str,
    kind: InputKind,
    *,
    tokens: int,
    samples: int,
    seed: int,
    text: Path | None = None,
    bos: Bos = "auto",
    revision: str | None = None,
    chat: bool = False,
) -> Inputs:
    """Inputs of a kind for a model by name. `chat` puts each window of natural text into a user's turn.

    Raises `InputError` for text with a kind that reads none, and as `build_inputs` does.
    """
    if kind != "natural" and chat:
        raise InputError(f"--chat-template goes with natural input, not with {kind}")
    if kind not in NEEDS_TEXT and text is not None:
        raise InputError(f"--text goes with natural and first-token input, not with {kind}")
    tokenizer = _tokenizer(name, revision, needed=kind in NEEDS_TEXT or bos == "add")
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=model.config.get_text_config().vocab_size,
        tokens=tokens,
        samples=samples,
        seed=seed,
        text=text,
        bos="none" if chat else bos,
    )
    return _as_chat(inputs, tokenizer) if chat else inputs


def _tokenizer(name: str, revision: str | None, needed: bool) -> Any:
    """The model's tokenizer; None where there is none and the input does without."""
    try:
        return load_tokenizer(name, revision=revision)
    except InputError:
        if needed:
            raise
        return None


def _as_chat(inputs: Inputs, tokenizer: Any) -> Inputs:
    """The same windows as a user's message, cut to the same length; what stands first is the template's."""
    if not tokenizer.chat_template:
        raise InputError("the model's tokenizer has no chat template")
    length = inputs.input_ids.shape[1]
    turns = [[{"role": "user", "content": text}] for text in tokenizer.batch_decode(inputs.input_ids)]
    rows = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    kept = [row[:length] for row in rows if len(row) >= length]
    if not kept:
        raise InputError(f"in the chat template no window is {length} tokens long")
    first = f"the chat template's first token {tokenizer.convert_ids_to_tokens(kept[0][0])}"
    return replace(
        inputs, input_ids=torch.tensor(kept), first=first, description=f"{inputs.description}, as a user's message"
    )
