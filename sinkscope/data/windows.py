"""Windows: a stream of tokens cut into pieces of one length, and the order in which training sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sinkscope.data.interventions import FixedToken, RandomTokens
from sinkscope.errors import InputError

Window = dict[str, Tensor]


class Windows(Dataset[Window]):
    """Consecutive windows of `context` tokens: `{"input_ids": (context,), "labels": (context,)}`, both int64.

    Without `bos_id` window i holds the tokens [i·context, (i+1)·context). With it every window is the BOS and then
    context − 1 tokens of the text: the text is shifted, none of it is lost. Either way the windows' text parts put
    together are a prefix of `tokens`; what does not fill a window at the end is left out. Documents cross windows (K1).

    With `ends_document` (the id of the EOS) windows also hold `document_ids` (context,): 0 for the document that the
    window begins in, one more after every EOS; an EOS belongs to the document it ends, a leading BOS to the first.

    `labels` are the window's own tokens: the loss of transformers shifts them. `interventions` write over `input_ids`
    alone, at positions of the whole window; random ones depend on `seed` and the window's index and on nothing else.

    Raises `InputError` if the text is shorter than one window, or an intervention lies outside the window or the
    vocabulary. `what` names the text in that error.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        context: int,
        bos_id: int | None = None,
        *,
        interventions: Sequence[FixedToken | RandomTokens] = (),
        vocabulary: int | None = None,
        seed: int = 0,
        ends_document: int | None = None,
        what: str = "the text",
    ) -> None:
        if context < 2:
            raise InputError(f"context {context} is too short: a window needs at least two tokens to predict one")
        self.tokens, self.context, self.bos_id = tokens, context, bos_id
        self.interventions, self.vocabulary, self.seed = tuple(interventions), vocabulary, seed
        self.ends_document = ends_document
        self.text_tokens = context - (bos_id is not None)
        if len(tokens) < self.text_tokens:
            raise InputError(
                f"{what} has {len(tokens)} tokens, fewer than the {self.text_tokens} that one window of context "
                f"{context} takes"
            )
        for intervention in self.interventions:
            _check(intervention, context, vocabulary)

    def __len__(self) -> int:
        return len(self.tokens) // self.text_tokens

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        text = self.tokens[index * self.text_tokens : (index + 1) * self.text_tokens]
        labels = torch.empty(self.context, dtype=torch.long)
        labels[self.context - self.text_tokens :] = torch.from_numpy(text.astype(np.int64))
        if self.bos_id is not None:
            labels[0] = self.bos_id
        input_ids = labels.clone()
        if self.interventions:
            self._intervene(input_ids, index)
        window = {"input_ids": input_ids, "labels": labels}
        if self.ends_document is not None:
            ends = (labels == self.ends_document).long()
            ends[0] = ends[0] if self.bos_id is None else 0  # a BOS may be the same token
            window["document_ids"] = ends.cumsum(0) - ends
        return window

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


class TrainingOrder(Dataset[Window]):
    """The `steps` · `batch_size` windows that training sees, in order: item i belongs to step i // batch_size.

    Every pass over the windows is a permutation of its own, drawn from `seed` and the number of the pass. Item i
    depends on (seed, i) and on nothing before it, so a resumed run goes on at any item without a stored state. It is to
    be read in sequence, by a sampler that does not shuffle again.
    """

    def __init__(self, windows: Windows | SomeWindows, batch_size: int, steps: int, seed: int) -> None:
        if batch_size < 1 or steps < 1:
            raise InputError(f"batch_size {batch_size} and steps {steps} must be at least 1")
        self.windows, self.seed = windows, seed
        self.total = steps * batch_size

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, item: int) -> Window:
        return self.windows[self.index(item)]

    def index(self, item: int) -> int:
        """Which window item i is."""
        if not 0 <= item < self.total:
            raise IndexError(f"item {item} of {self.total}")
        count = len(self.windows)
        return int(_permutation(count, self.seed, item // count)[item % count])


def seeded(*parts: object) -> torch.Generator:
    """A generator whose state only `parts` decide, well mixed, so that neighbouring seeds have nothing in common."""
    mixed = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)


@lru_cache(maxsize=2)
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=seeded("epoch", seed, epoch))


def _check(intervention: FixedToken | RandomTokens, context: int, vocabulary: int | None) -> None:
    if intervention.stop > context:
        raise InputError(f"{intervention.kind}: position {intervention.stop - 1} lies outside a window of {context}")
    if vocabulary is None:
        raise InputError(f"{intervention.kind}: the size of the vocabulary is not given")
    if isinstance(intervention, FixedToken) and intervention.token >= vocabulary:
        raise InputError(f"fixed_token: token {intervention.token} is outside the vocabulary of {vocabulary}")
