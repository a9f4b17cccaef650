"""Which bytes of the text a vocabulary's pieces stand for, where they stand for bytes and not for themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PRINTED = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def byte_alphabet() -> dict[str, int]:
    """The byte for which a byte-level vocabulary writes each character.

    Printable bytes of Latin-1 stand for themselves, the other 68 are written as the characters from U+0100 on, in
    their order: Ġ is a space, Ċ a line end, as in the encoder of GPT-2.
    """
    others = [byte for byte in range(256) if byte not in PRINTED]
    return {chr(byte): byte for byte in PRINTED} | {chr(256 + index): byte for index, byte in enumerate(others)}


def token_bytes(tokenizer: Any, ids: Sequence[int], pieces: Sequence[str | None]) -> dict[str, str]:
    """Bytes in hexadecimal by token id, of those pieces that are written as bytes; the others stand for themselves.

    A byte-level vocabulary writes every piece that way but those that were added as they are (special tokens and
    others); any other vocabulary writes at most the bytes of characters that it lacks, as <0xE2> (SentencePiece).
    """
    added = set(getattr(tokenizer, "added_tokens_encoder", {}).values())
    alphabet = byte_alphabet() if _is_byte_level(tokenizer) else {}
    found = {}
    for token, piece in zip(ids, pieces, strict=True):
        if not piece:
            continue
        if alphabet and token not in added and all(letter in alphabet for letter in piece):
            found[str(token)] = bytes(alphabet[letter] for letter in piece).hex()
        elif not alphabet and (match := FALLBACK.fullmatch(piece)):
            found[str(token)] = match[1].lower()
    return found


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the decoder turns characters into bytes; slow tokenizers that do have a table of their own for it."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return hasattr(tokenizer, "byte_decoder")
    return "ByteLevel" in _kinds(json.loads(decoder.__getstate__()))


def _kinds(decoder: dict[str, Any]) -> set[str]:
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", [])))
