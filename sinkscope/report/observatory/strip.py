"""The token strip: a sample's tokens in reading order, colored by the attention they receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.measurement import PER_HEAD, TokenTexts, comparable_places, layer_labels, layers_of, sample_lengths
from sinkscope.measurement.metrics import layer_rates, nanmean, token_rates
from sinkscope.measurement.selection import token_stack
from sinkscope.report.observatory.numbers import short
from sinkscope.report.page import Section, Widget
from sinkscope.theme import SEQUENTIAL

DATA = "strip-data"
SAMPLES = 8
MOST_NUMBERS = 400_000
MOST_TOKENS = 1024
VISIBLE = str.maketrans({"\n": "⏎", "\t": "⇥"})
DRAWN = VISIBLE | str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "⏎", "ĉ": "⇥"})
CONTINUES = "◂"  # the token consists of further bytes of the previous character


def strip_section(data: xr.Dataset, epsilon: float, record: dict[str, Any]) -> Section:
    """Needs `attention_received` and the coordinate `token_id`; texts come from the record if it has them."""
    payload = strip_payload(data, epsilon, record)
    remarks = ""
    if any(CONTINUES in sample["split"].values() for sample in payload["samples"]):
        remarks += f" {CONTINUES}: a token with further bytes of the previous character."
    if payload["tokens"] > payload["shown"]:
        remarks += f" {payload['shown']} of {payload['tokens']} tokens are shown."
    return Section(
        "Token by token",
        "The text as the model read it. The stronger the color of a token, the more attention it receives, averaged "
        f"over heads and the tokens that see it. Framed with ◆: a sink, over ε = {epsilon:g} in a head. Pale letters: "
        "in causal models, at most half of the tokens see it, so it is not marked. Hover, or move with the arrow keys, "
        f"for the numbers; the layer can follow the head selected above.{remarks}",
        table=token_table(payload),
        widget=Widget("strip.html", {DATA: payload}),
    )


def strip_payload(data: xr.Dataset, epsilon: float, record: dict[str, Any]) -> dict[str, Any]:
    """Columns per sample; `received` and `share` have one row for all layers, then one per layer of the stack."""
    stack = token_stack(data)
    rows = np.flatnonzero(layers_of(data, stack))
    lengths = sample_lengths(data, stack)[:SAMPLES]
    most = min(MOST_TOKENS, max(64, MOST_NUMBERS // (2 * SAMPLES * (len(rows) + 1))))
    part = data.isel(sample=slice(0, SAMPLES), layer=rows, position=slice(0, most))
    received = part["attention_received"].transpose(*PER_HEAD).values
    by_layer = nanmean(received, 2)
    mean = np.concatenate([nanmean(by_layer, 1)[:, None], by_layer], 1)
    share = np.concatenate([token_rates(received, epsilon)[:, None], layer_rates(received, epsilon)], 1)
    counted = np.asarray(comparable_places(part).any(1))
    ids = part["token_id"].transpose("sample", "position").values
    norms = _largest_norms(part, stack)
    samples = [_sample(number, ids, mean, share, counted, norms, part) for number in range(len(ids))]
    texts = TokenTexts.of(record)
    shown = sorted({token for sample in samples for token in sample["ids"]})
    alone = {token: text for token, text in texts.alone().items() if token in set(shown)}
    by_id = {token: drawn(token, alone.get(token)) for token in shown}
    labels = layer_labels(data)
    return {
        "samples": [sample | {"split": split(sample, texts, by_id)} for sample in samples],
        "layers": [{"row": int(row), "label": labels[row]} for row in rows],
        "texts": {str(token): text for token, text in alone.items()},
        "drawn": {str(token): text for token, text in by_id.items()},
        "special": sorted(set(record.get("special_tokens", [])) & set(shown)),
        "epsilon": epsilon,
        "tokens": int(lengths.max()),
        "shown": part.sizes["position"],
        "colors": [[index / (len(SEQUENTIAL) - 1), color] for index, color in enumerate(SEQUENTIAL)],
    }


def drawn(token: int, text: str | None) -> str:
    """A token's text as the strip shows it, with visible spaces and line ends; its id if it has no text."""
    return f"#{token}" if text is None else text.translate(DRAWN) or "∅"


def split(sample: Mapping[str, Any], texts: TokenTexts, by_id: Mapping[int, str]) -> dict[str, str]:
    """By index: the text shown for a token that is a part of a character, or shares one with its neighbors."""
    line = texts.line(sample["ids"], sample["positions"])
    marked = [None if text is None else text.translate(VISIBLE) or CONTINUES for text in line]
    shown = zip(sample["ids"], marked, strict=True)
    return {
        str(index): text
        for index, (token, text) in enumerate(shown)
        if token in texts.written and text is not None and text != by_id[token]
    }


def token_table(payload: dict[str, Any], most: int = 40) -> pd.DataFrame:
    """The tokens of the shown samples that receive most, averaged over all heads."""
    rows = [
        (
            payload["texts"].get(str(token), f"#{token}"),
            token,
            number,
            position,
            received,
            share,
        )
        for number, sample in enumerate(payload["samples"])
        for token, position, received, share, counted in zip(
            sample["ids"],
            sample["positions"],
            sample["received"][0],
            sample["share"][0],
            sample["counted"],
            strict=True,
        )
        if counted and received is not None
    ]
    columns = ["token", "id", "sample", "position", "attention received, mean", "heads over ε (%)"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values(columns[4], ascending=False, ignore_index=True).head(most)


def _sample(
    number: int,
    ids: np.ndarray,
    mean: np.ndarray,
    share: np.ndarray,
    counted: np.ndarray,
    norms: np.ndarray | None,
    part: xr.Dataset,
) -> dict[str, Any]:
    real = ids[number] >= 0
    sample = {
        "ids": ids[number][real].tolist(),
        "positions": part["position"].values[real].tolist(),
        "received": short(mean[number][:, real], 3),
        "share": short(share[number][:, real], 3),
        "counted": counted[number][real].tolist(),
    }
    return sample if norms is None else {**sample, "norm": short(norms[number][real], 3)}


def _largest_norms(part: xr.Dataset, stack: str) -> np.ndarray | None:
    """Each token's largest hidden norm over the depths of its stack."""
    if "hidden_norm" not in part:
        return None
    depths = np.flatnonzero(part["depth_stack"].values == stack)
    return part["hidden_norm"].isel(depth=depths).max("depth").transpose("sample", "position").values
