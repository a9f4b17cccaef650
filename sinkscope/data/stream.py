"""A part of a corpus as one stream of tokens, and what stands between its documents [K1, K2]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stream:
    """Tokens (n,) of documents one after the other.

    `starts`: where each document begins, ascending; None where nobody asks. `scored` (n,): 1 for tokens of responses,
    which alone count where a corpus of conversations is trained on; None where every token does.
    """

    tokens: np.ndarray
    starts: np.ndarray | None = None
    scored: np.ndarray | None = None


def framed(
    stream: Stream, eos_id: int, *, bos_id: int | None = None, keep_eos: bool = True, find_starts: bool = False
) -> Stream:
    """A stream whose documents end with an EOS as a stream of documents framed in another way.

    `bos_id`: that token before every document; `keep_eos=False` takes the EOS away; with `find_starts` the result knows
    where its documents begin. An EOS belongs to the document that it ends, a BOS to the one it begins, and neither is
    scored anew: a BOS is no response, an EOS is what it was. What is not asked for costs nothing: without changes the
    tokens stay in their file; otherwise they are held in memory.
    """
    if bos_id is None and keep_eos and not find_starts:
        return stream
    ends = np.flatnonzero(np.asarray(stream.tokens) == eos_id)
    starts = np.concatenate([[0], ends + 1])
    starts = starts[starts < len(stream.tokens)]
    tokens, scored = stream.tokens, stream.scored
    if bos_id is not None:
        tokens = np.insert(tokens, starts, bos_id)
        scored = None if scored is None else np.insert(scored, starts, 0)
        ends, starts = ends + np.arange(1, len(ends) + 1), starts + np.arange(len(starts))
    if not keep_eos:
        tokens = np.delete(tokens, ends)
        scored = None if scored is None else np.delete(scored, ends)
        starts = starts - np.searchsorted(ends, starts)
    return Stream(tokens, np.unique(starts[starts < len(tokens)]) if find_starts else None, scored)
