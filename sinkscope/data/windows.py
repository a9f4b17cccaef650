"""Windows: a stream of tokens cut into pieces of equal length, in which single tokens may be overwritten."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.utils.data import Dataset

from sinkscope.errors import InputError

UNSCORED = -100  # the label that transformers' loss ignores

Window = dict[str, Tensor]


@dataclass(frozen=True)
class TokenStream:
    """Tokens (n,) of documents one after the other.

    `starts`: where each document begins, ascending; None where that is not needed. `scored` (n,): 1 for tokens of
    responses, which alone count in the loss on conversations; None where every token counts.
    """

    tokens: np.ndarray
    starts: np.ndarray | None = None
    scored: np.ndarray | None = None


def framed(
    stream: TokenStream,
    eos_id: int,
    *,
    bos_id: int | None = None,
    keep_eos: bool = True,
    find_starts: bool = False,
    score_first: bool = True,
) -> TokenStream:
    """The same stream of documents, each framed by other special tokens than the EOS at its end.

    An EOS belongs to the document that it ends, a BOS to the one it begins, and neither is scored anew: a BOS is no
    response, an EOS is what it was. Without changes the tokens stay in their file; otherwise they are held in memory.

    Args:
        stream: Documents, one after the other.
        eos_id: The token that ends each of them.
        bos_id: A token to put before every document; None: none.
        keep_eos: False takes the EOS away.
        find_starts: Whether the result knows where its documents begin.
        score_first: False: no document's first token (its BOS, where it has one) is scored, because only the end of
            another document could predict it.
    """
    if bos_id is None and keep_eos and not find_starts and score_first:
        return stream
    ends = np.flatnonzero(np.asarray(stream.tokens) == eos_id)
    starts = np.concatenate([[0], ends + 1])
    # After an EOS that ends the stream no document begins.
    starts = starts[starts < len(stream.tokens)]
    tokens, scored = stream.tokens, stream.scored
    if bos_id is not None:
        tokens = np.insert(tokens, starts, bos_id)
        scored = None if scored is None else np.insert(scored, starts, 0)
        # Before EOS i there are the BOS of documents 0 … i, before BOS j those of documents 0 … j − 1.
        ends, starts = ends + np.arange(1, len(ends) + 1), starts + np.arange(len(starts))
    if not keep_eos:
        tokens = np.delete(tokens, ends)
        scored = None if scored is None else np.delete(scored, ends)
        # Every start moves by the number of EOS that were before it.
        starts = starts - np.searchsorted(ends, starts)
    # A document that was nothing but its EOS is gone: its start coincides with the next one's.
    starts = np.unique(starts[starts < len(tokens)])
    if not score_first:
        # np.array copies: what is stored is a read-only map of a file.
        scored = np.ones(len(tokens), np.uint8) if scored is None else np.array(scored)
        scored[starts] = 0
    return TokenStream(tokens, starts if find_starts else None, scored)


class FixedToken(BaseModel):
    """The same `token` at the 0-based `position` of every window; the paper's x_k is position k − 1.

    It overwrites the window's own, the labels keep the text, as in the paper's code. A fixed BOS differs: it precedes
    the text and shifts it, so no token is lost (`Windows`). Source: Gu et al. 2025, Table 10.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fixed_token"] = "fixed_token"
    position: int = Field(ge=0)
    token: int = Field(ge=0)

    @property
    def stop(self) -> int:
        """First position after those it writes to."""
        return self.position + 1

    def apply(self, window: Tensor, vocabulary: int, generator: torch.Generator) -> None:
        """Write to `window` (context) in place."""
        window[self.position] = self.token


class RandomTokens(BaseModel):
    """Uniformly random tokens at the 0-based positions [start, stop), drawn once for each window.

    They are the window's text from then on, in the labels too: the paper writes them into its data (random_data.py).
    Windows of training, of validation and of each part of a mixture draw their own. Source: Gu et al. 2025, section 5.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["random_tokens"] = "random_tokens"
    start: int = Field(ge=0)
    stop: int = Field(ge=1)

    @model_validator(mode="after")
    def _some_positions(self) -> RandomTokens:
        if self.start >= self.stop:
            raise InputError(f"random_tokens: start {self.start} is not below stop {self.stop}")
        return self

    def apply(self, window: Tensor, vocabulary: int, generator: torch.Generator) -> None:
        """Write to `window` (context) in place."""
        window[self.start : self.stop] = torch.randint(0, vocabulary, (self.stop - self.start,), generator=generator)


class Windows(Dataset[Window]):
    """Consecutive windows of `context` tokens: `{"input_ids": (context,), "labels": (context,)}`, both int64.

    Without `bos_id` window i holds the tokens [i·context, (i+1)·context). With it every window is the BOS and then
    context − 1 tokens of the text: the text is shifted, none of it is lost. Either way the windows' text parts put
    together are a prefix of `tokens`; what does not fill a window at the end is left out. Documents cross windows
    (slides of Gu et al. 2025).

    Where the stream knows its documents' starts, windows also hold `document_ids` (context,): 0 for the document that
    the window begins in, one more at every start of another; a leading BOS belongs to the first.

    `labels` are the window's own tokens: the loss of transformers shifts them. Where the stream says which tokens are
    scored, the others' labels are −100. `interventions` write over `input_ids`, at positions of the whole window, and
    random tokens over `labels` as well; those depend on `seed`, `part` and the window's index and on nothing else.

    Raises `InputError` if the text is shorter than one window, or an intervention lies outside the window or the
    vocabulary. `what` names the text in that error.
    """

    def __init__(
        self,
        text: np.ndarray | TokenStream,
        context: int,
        bos_id: int | None = None,
        *,
        interventions: Sequence[FixedToken | RandomTokens] = (),
        vocabulary: int | None = None,
        seed: int = 0,
        part: str = "train",
        what: str = "the text",
    ) -> None:
        """Windows of a text.

        Args:
            text: Token ids, or a stream of documents.
            context: Tokens of a window.
            bos_id: The token that every window begins with; None: none.
            interventions: What is written over positions of each window.
            vocabulary: Number of ids, among which random tokens are drawn.
            seed, part: Decide random tokens.
            what: Names the text in errors.
        """
        if context < 2:
            raise InputError(f"context {context} is too short: a window needs at least two tokens to predict one")
        stream = text if isinstance(text, TokenStream) else TokenStream(text)
        self.tokens, self.scored, self.starts = stream.tokens, stream.scored, stream.starts
        self.context, self.bos_id = context, bos_id
        self.interventions, self.vocabulary = tuple(interventions), vocabulary
        self.seed, self.part = seed, part
        self.text_tokens = context - (bos_id is not None)
        if len(self.tokens) < self.text_tokens:
            raise InputError(
                f"{what} has {len(self.tokens)} tokens, fewer than the {self.text_tokens} that one window of context "
                f"{context} takes"
            )
        for intervention in self.interventions:
            _require_inside(intervention, context, vocabulary)

    def __len__(self) -> int:
        return len(self.tokens) // self.text_tokens

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        span = slice(index * self.text_tokens, (index + 1) * self.text_tokens)  # in the stream
        text = slice(self.context - self.text_tokens, None)  # in the window: after the BOS
        labels = torch.empty(self.context, dtype=torch.long)
        labels[text] = torch.from_numpy(self.tokens[span].astype(np.int64))
        if self.bos_id is not None:
            labels[0] = self.bos_id
        input_ids = labels.clone()
        if self.interventions:
            generator = seeded("window", self.seed, self.part, index)
            for intervention in self.interventions:
                intervention.apply(input_ids, self.vocabulary or 0, generator)
                if isinstance(intervention, RandomTokens):
                    labels[intervention.start : intervention.stop] = input_ids[intervention.start : intervention.stop]
        if self.scored is not None:
            counts = torch.zeros(self.context, dtype=torch.bool)
            counts[text] = torch.from_numpy(self.scored[span].astype(bool))
            labels = labels.masked_fill(~counts, UNSCORED)
        window = {"input_ids": input_ids, "labels": labels}
        if self.starts is not None:
            # Documents that have begun at each token; less those at the first one, numbers count from 0 in the window.
            numbers = np.searchsorted(self.starts, np.arange(span.start, span.stop), side="right")
            window["document_ids"] = torch.zeros(self.context, dtype=torch.long)
            window["document_ids"][text] = torch.from_numpy(numbers - numbers[0])
        return window


class SomeWindows(Dataset[Window]):
    """A share of the windows, at least one: which ones is drawn from `seed`, and a larger share holds a smaller.

    The paper keeps a share of its shuffled files instead (pretrain/tinyllama.py). Source: Gu et al. 2025, section 5.
    """

    def __init__(self, windows: Windows, share: float, seed: int) -> None:
        self.windows = windows
        order = torch.randperm(len(windows), generator=seeded("share", seed))
        self.chosen = order[: max(1, int(share * len(windows)))]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Window:
        return self.windows[int(self.chosen[index])]


def seeded(*parts: object) -> torch.Generator:
    """A generator whose state only `parts` decide, well mixed, so that neighboring seeds have nothing in common."""
    mixed = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)


def _require_inside(intervention: FixedToken | RandomTokens, context: int, vocabulary: int | None) -> None:
    if intervention.stop > context:
        raise InputError(f"{intervention.kind}: position {intervention.stop - 1} lies outside a window of {context}")
    if vocabulary is None:
        raise InputError(f"{intervention.kind}: the size of the vocabulary is not given")
    if isinstance(intervention, FixedToken) and intervention.token >= vocabulary:
        raise InputError(f"fixed_token: token {intervention.token} is outside the vocabulary of {vocabulary}")
