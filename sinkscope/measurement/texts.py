"""The texts of tokens, readable also for byte-level vocabularies and for tokens that split a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement import metrics
from sinkscope.measurement.selection import TokenView, column_of, record_of

MARKS = {
    " ": "Ġ",
    "\n": "Ċ",
    "\t": "ĉ",
}  # as byte-level vocabularies write them: a table's cell shows no bare white space


@dataclass(frozen=True)
class TokenTexts:
    """Pieces of the vocabulary by token id, and the bytes of those that are written as bytes."""

    pieces: Mapping[int, str]
    written: Mapping[int, bytes]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> TokenTexts:
        """From a measurement's record, which has them if `measure` got a tokenizer."""
        pieces = {int(token): text for token, text in record.get("token_text", {}).items() if text is not None}
        written = {int(token): bytes.fromhex(digits) for token, digits in record.get("token_bytes", {}).items()}
        return cls(pieces, written)

    def alone(self) -> dict[int, str]:
        """Each token by itself: spaces and line ends as Ġ and Ċ, bytes that make no character as <0xE2>."""
        marks = str.maketrans(MARKS)
        return {
            token: "".join(characters(self.written[token])).translate(marks) if token in self.written else piece
            for token, piece in self.pieces.items()
        }

    def line(self, ids: Sequence[int], positions: Sequence[int]) -> list[str | None]:
        """What each token of a row adds to the text; None for a token whose text is not known.

        A character split over several tokens belongs to the one with its first byte; the others add "" if they hold
        nothing else. Only tokens at neighboring `positions` share a character.
        """
        added: list[str | None] = []
        run: list[bytes] = []
        for index, token in enumerate(ids):
            if run and (token not in self.written or positions[index] != positions[index - 1] + 1):
                added += shares(run)
                run = []
            if token in self.written:
                run.append(self.written[token])
            else:
                added.append(self.pieces.get(token))
        return [*added, *shares(run)]


def shares(parts: Sequence[bytes]) -> list[str]:
    """The text of consecutive bytes, each character in the part that has its first byte."""
    owners = [index for index, part in enumerate(parts) for _ in part]
    texts = [""] * len(parts)
    offset = 0
    for character, length in _decoded(b"".join(parts)):
        texts[owners[offset]] += character
        offset += length
    return texts


def characters(written: bytes) -> list[str]:
    """The characters of UTF-8 text; bytes outside any character, and unprintable characters, as <0xE2>."""
    return [character for character, _ in _decoded(written)]


def _decoded(written: bytes) -> Iterable[tuple[str, int]]:
    """Characters with their lengths in bytes."""
    offset = 0
    while offset < len(written):
        length = _length(written[offset])
        try:
            character = written[offset : offset + length].decode("utf-8")
        except UnicodeDecodeError:
            character, length = f"<0x{written[offset]:02X}>", 1
        if not (character.isprintable() or character in "\n\t"):
            character = "".join(f"<0x{byte:02X}>" for byte in character.encode())
        yield character, length
        offset += length


def _length(first: int) -> int:
    """Bytes of the character that begins with this one."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PRINTED = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for, as in the encoder of GPT-2.

    Printable bytes of Latin-1 are written as themselves, the other 68 as the characters from U+0100 on, in order: Ġ is
    a space, Ċ a line end.
    """
    others = [byte for byte in range(256) if byte not in PRINTED]
    return {chr(byte): byte for byte in PRINTED} | {chr(256 + index): byte for index, byte in enumerate(others)}


def token_bytes(tokenizer: Any, ids: Sequence[int], pieces: Sequence[str | None]) -> dict[str, str]:
    """Bytes in hexadecimal by token id, for pieces that are written as bytes.

    A byte-level vocabulary writes every piece as bytes except added tokens (special tokens and others). Other
    vocabularies write only the bytes of characters that they lack, as <0xE2> (SentencePiece).
    """
    added = set(getattr(tokenizer, "added_tokens_encoder", {}).values())
    alphabet = byte_alphabet() if _is_byte_level(tokenizer) else {}
    written = {}
    for token, piece in zip(ids, pieces, strict=True):
        if not piece:
            continue
        if alphabet and token not in added and all(letter in alphabet for letter in piece):
            written[str(token)] = bytes(alphabet[letter] for letter in piece).hex()
        elif not alphabet and (match := FALLBACK.fullmatch(piece)):
            written[str(token)] = match[1].lower()
    return written


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the decoder turns characters into bytes; slow tokenizers that do have a table `byte_decoder`."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return hasattr(tokenizer, "byte_decoder")
    return "ByteLevel" in _kinds(json.loads(decoder.__getstate__()))


def _kinds(decoder: dict[str, Any]) -> set[str]:
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", [])))


def sink_tokens(data: xr.Dataset, epsilon: float, least: float) -> pd.DataFrame:
    """See `Measurement.sink_tokens`."""
    view = _view(data, epsilon)
    received, ids = view.per_head("attention_received"), data["token_id"].values
    return metrics.sinks_by_token(received, ids, view.counted, _texts(data), epsilon, least=least)


def token_kinds(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.token_kinds`."""
    view, texts = _view(data, epsilon), _texts(data)
    if not texts:
        raise InputError("kinds of tokens need their texts: measure with tokenizer=...")
    special = record_of(data).get("special_tokens", [])
    ids = data["token_id"].values
    return metrics.sinks_by_kind(view.per_head("attention_received"), ids, view.counted, texts, special, epsilon)


def first_tokens(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.first_tokens`."""
    view, texts = _view(data, epsilon), _texts(data)
    first = column_of(data, 0)
    ids = data["token_id"].values[:, first]
    rates = metrics.token_rates(view.per_head("attention_received"), epsilon)[:, first]
    table = pd.DataFrame({"token": [texts.get(int(token), "") for token in ids], "id": ids, "heads": rates})
    if "hidden_norm" in data:
        with metrics.quiet():
            table["hidden_norm_ratio"] = np.nanmax(metrics.first_over_rest(view.per_depth("hidden_norm")), 1)
    with metrics.quiet():
        above = (rates > 0.5 * np.nanmedian(rates)).tolist()
    table["becomes_sink"] = pd.array(
        [None if unknown else one for one, unknown in zip(above, np.isnan(rates), strict=True)], "boolean"
    )
    return table.sort_values("heads", ignore_index=True, kind="stable")


def patches(data: xr.Dataset, cutoff: float | None, times: float) -> pd.DataFrame:
    """See `Measurement.patches`."""
    norms, received = _vision(data)
    prefix, suffix = record_of(data).get("vision_prefix", []), record_of(data).get("vision_suffix", {})
    behind = sum(suffix.values())
    artefacts = metrics.artefact_patches(norms, len(prefix), suffix=behind, cutoff=cutoff, times=times)
    return metrics.patch_table(norms, received, prefix, artefacts, suffix)


def _view(data: xr.Dataset, epsilon: float) -> TokenView:
    if "attention_received" not in data or "token_id" not in data.coords:
        raise InputError("this measurement has no attention received per token id: it was not observed")
    metrics.check_epsilon(epsilon)
    view = TokenView(data, epsilon)
    if view.stack in ("vision", "audio"):
        raise InputError(f"the {view.stack} stack has no token ids")
    return view


def _texts(data: xr.Dataset) -> dict[int, str]:
    return TokenTexts.of(record_of(data)).alone()


def _vision(data: xr.Dataset) -> tuple[np.ndarray, np.ndarray | None]:
    """Norms at the last depth, attention received."""
    if "hidden_norm" not in data or "vision" not in data["depth_stack"].values:
        raise InputError("this measurement has no norms of a vision stack (observer HiddenNorms)")
    norms = data["hidden_norm"].values[:, data["depth_stack"].values == "vision"][:, -1]
    norms = norms[:, ~np.isnan(norms).all(0)]
    received = None
    if "attention_received" in data:
        received = data["attention_received"].values[:, data["stack"].values == "vision"][..., : norms.shape[1]]
    return norms, received
