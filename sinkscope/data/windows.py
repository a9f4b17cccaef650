"""Windows: a stream of tokens cut into pieces of one length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sinkscope.data.interventions import FixedToken, RandomTokens
from sinkscope.data.stream import Stream
from sinkscope.errors import InputError

UNSCORED = -100  # what the loss of transformers leaves out

Window = dict[str, Tensor]


class Windows(Dataset[Window]):
    """Consecutive windows of `context` tokens: `{"input_ids": (context,), "labels": (context,)}`, both int64.

    Without `bos_id` window i holds the tokens [i·context, (i+1)·context). With it every window is the BOS and then
    context − 1 tokens of the text: the text is shifted, none of it is lost. Either way the windows' text parts put
    together are a prefix of `tokens`; what does not fill a window at the end is left out. Documents cross windows (K1).

    Where the stream knows its documents' starts, windows also hold `document_ids` (context,): 0 for the document that
    the window begins in, one more at every start of another; a leading BOS belongs to the first.

    `labels` are the window's own tokens: the loss of transformers shifts them. Where the stream says which tokens are
    scored, the others' labels are −100. `interventions` write over `input_ids` alone, at positions of the whole window;
    random ones depend on `seed` and the window's index and on nothing else.

    Raises `InputError` if the text is shorter than one window, or an intervention lies outside the window or the
    vocabulary. `what` names the text in that error.
    """

    def __init__(
        self,
        text: np.ndarray | Stream,
        context: int,
        bos_id: int | None = None,
        *,
        interventions: Sequence[FixedToken | RandomTokens] = (),
        vocabulary: int | None = None,
        seed: int = 0,
        what: str = "the text",
    ) -> None:
        if context < 2:
            raise InputError(f"context {context} is too short: a window needs at least two tokens to predict one")
        stream = text if isinstance(text, Stream) else Stream(text)
        self.tokens, self.scored, self.starts = stream.tokens, stream.scored, stream.starts
        self.context, self.bos_id = context, bos_id
        self.interventions, self.vocabulary, self.seed = tuple(interventions), vocabulary, seed
        self.text_tokens = context - (bos_id is not None)
        if len(self.tokens) < self.text_tokens:
            raise InputError(
                f"{what} has {len(self.tokens)} tokens, fewer than the {self.text_tokens} that one window of context "
                f"{context} takes"
            )
        for intervention in self.interventions:
            _check(intervention, context, vocabulary)

    def __len__(self) -> int:
        return len(self.tokens) // self.text_tokens

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        place = slice(index * self.text_tokens, (index + 1) * self.text_tokens)
        labels = torch.empty(self.context, dtype=torch.long)
        text = slice(self.context - self.text_tokens, None)
        labels[text] = torch.from_numpy(self.tokens[place].astype(np.int64))
        if self.bos_id is not None:
            labels[0] = self.bos_id
        input_ids = labels.clone()
        if self.interventions:
            self._intervene(input_ids, index)
        if self.scored is not None:
            counts = torch.zeros(self.context, dtype=torch.bool)
            counts[text] = torch.from_numpy(self.scored[place].astype(bool))
            labels = labels.masked_fill(~counts, UNSCORED)
        window = {"input_ids": input_ids, "labels": labels}
        if self.starts is not None:
            window["document_ids"] = self._numbers(place, self.starts)
        return window

    def _numbers(self, place: slice, starts: np.ndarray) -> Tensor:
        numbers = np.searchsorted(starts, np.arange(place.start, place.stop), side="right")
        documents = torch.zeros(self.context, dtype=torch.long)
        documents[self.context - self.text_tokens :] = torch.from_numpy(numbers - numbers[0])
        return documents

    def _intervene(self, window: Tensor, index: int) -> None:
        generator = seeded("window", self.seed, index)
        vocabulary = self.vocabulary or 0

        def draw(count: int) -> Tensor:
            return torch.randint(0, vocabulary, (count,), generator=generator)

        for intervention in self.interventions:
            intervention.apply(window, draw)


class SomeWindows(Dataset[Window]):
    """A share of the windows, at least one: which ones is drawn from `seed`, and a larger share holds a smaller (D1).

    The paper keeps a share of its shuffled files instead (pretrain/tinyllama.py).
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
    """A generator whose state only `parts` decide, well mixed, so that neighbouring seeds have nothing in common."""
    mixed = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)


def _check(intervention: FixedToken | RandomTokens, context: int, vocabulary: int | None) -> None:
    if intervention.stop > context:
        raise InputError(f"{intervention.kind}: position {intervention.stop - 1} lies outside a window of {context}")
    if vocabulary is None:
        raise InputError(f"{intervention.kind}: the size of the vocabulary is not given")
    if isinstance(intervention, FixedToken) and intervention.token >= vocabulary:
        raise InputError(f"fixed_token: token {intervention.token} is outside the vocabulary of {vocabulary}")
