"""Natural text as a user's message, in the words that a chat model's tokenizer puts around it [C8]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from sinkscope.data.inputs import Inputs
from sinkscope.errors import InputError


def as_chat(inputs: Inputs, tokenizer: Any) -> Inputs:
    """The same windows as a user's message, cut to the same length; what stands first is the template's.

    Raises `InputError` for a tokenizer without a chat template, and where the template is shorter than a window.
    """
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
