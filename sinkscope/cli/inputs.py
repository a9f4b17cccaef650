"""The token ids that `sinkscope measure` puts into a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.cli.options import Bos, InputKind
from sinkscope.data import Inputs, as_chat, build_inputs
from sinkscope.errors import InputError
from sinkscope.model import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    corpus: str = "python",
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
    tokenizer = tokenizer_of(name, revision, needed=kind in NEEDS_TEXT or bos in ("add", "double"))
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=model.config.get_text_config().vocab_size,
        tokens=tokens,
        samples=samples,
        seed=seed,
        text=text,
        corpus=corpus,
        bos="none" if chat else bos,
    )
    return as_chat(inputs, tokenizer) if chat else inputs


def tokenizer_of(name: str, revision: str | None, needed: bool = False) -> Any:
    """The model's tokenizer; None where there is none and it is not needed."""
    try:
        return load_tokenizer(name, revision=revision)
    except InputError:
        if needed:
            raise
        return None
