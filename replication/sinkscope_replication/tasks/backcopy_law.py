"""The law of the Bigram-Backcopy task: what follows what, and sequences drawn from it (Guo et al. 2024a)."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pydoc_data.topics import topics
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from sinkscope.data import Window, load_corpus, seeded
from sinkscope.errors import InputError
from sinkscope.experiments import Task

BOS = 0
TOPICS = "topics"


@dataclass(frozen=True, eq=False)
class Law:
    """A Markov chain on characters in which a few tokens, the triggers, make the token before them come again:

        P(x_{t+1} | x_t, x_{t−1}) = c · [x_{t+1} = x_{t−1}] + (1 − c) · P(x_{t+1} | x_t)   where x_t is a trigger
                                  = P(x_{t+1} | x_t)                                       elsewhere

    Token 0 is the BOS, which is at position 0 only; token i > 0 is `characters[i − 1]`, the most
    frequent first, and tokens 1 … `triggers` are the triggers. `transition` (tokens, tokens), fp64: rows sum to 1; what
    follows the BOS are single frequencies without the triggers, so that every trigger has a token before it. `copying`:
    c, 1 in the task, 0 for a plain Markov chain. Source: Guo et al. 2024a (2410.13835), section 2.
    """

    characters: tuple[str, ...]
    transition: np.ndarray
    triggers: int = 3
    copying: float = 1.0

    @property
    def tokens(self) -> int:
        """Size of the vocabulary, the BOS included."""
        return len(self.characters) + 1

    def sequence(self, draws: list[float]) -> list[int]:
        """The BOS and a token for each of the `draws`, which are uniform in [0, 1)."""
        ids = [BOS]
        for draw in draws:
            last = ids[-1]
            if 0 < last <= self.triggers:
                if draw < self.copying:
                    ids.append(ids[-2])
                    continue
                draw = (draw - self.copying) / (1 - self.copying)
            ids.append(bisect_right(self._cumulative[last], draw))
        return ids

    def is_trigger(self, ids: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Which tokens are triggers."""
        return (ids > BOS) & (ids <= self.triggers)

    def surprise(self, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch next"]:
        """−log P(x_{t+1} | x_1 … x_t) in nats for every token but the first: what no model can beat on average."""
        table = torch.from_numpy(self.transition).to(ids.device)
        last, follows = ids[:, :-1], ids[:, 1:]
        markov = table[last, follows]
        copied = follows[:, 1:] == ids[:, :-2]
        mixed = self.copying * copied + (1 - self.copying) * markov[:, 1:]
        markov[:, 1:] = torch.where(self.is_trigger(last[:, 1:]), mixed, markov[:, 1:])
        return -markov.log().float()

    def sha256(self) -> str:
        """Hex digest of all that decides what is drawn."""
        parameters = f"{self.characters!r} {self.triggers} {self.copying}".encode()
        return hashlib.sha256(parameters + np.ascontiguousarray(self.transition).tobytes()).hexdigest()

    @cached_property
    def _cumulative(self) -> list[list[float]]:
        sums = self.transition.cumsum(1)
        return (sums / sums[:, -1:]).tolist()


@lru_cache(maxsize=4)
def law_of(source: str = TOPICS, characters: int = 64, triggers: int = 3, copying: float = 1.0) -> Law:
    """The law of a text's most frequent characters.

    `source`: `topics` (Python's help topics: some 700,000 characters of English that come with the interpreter), or a
    corpus by name (`python`, `text:GLOB`). Characters that are not among the most frequent are passed over; a pair
    counts where its two stand side by side in one document. The paper takes the 65 characters of tiny-shakespeare.
    Raises `InputError` for a text with too few characters, and as `load_corpus` does.
    """
    texts = _texts(source)
    counts: Counter[int] = Counter()
    for text in texts():
        counts.update(dict(zip(*(part.tolist() for part in np.unique(text, return_counts=True)), strict=True)))
    kept = [code for code, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:characters]]
    if len(kept) < triggers + 2:
        raise InputError(f"'{source}' has {len(kept)} different characters, too few for {triggers} triggers")
    number = np.zeros(max(counts) + 1, dtype=np.int64)  # 0: not among them
    number[kept] = np.arange(1, len(kept) + 1)
    size = len(kept) + 1
    pairs = np.zeros((size, size), dtype=np.int64)
    for text in texts():
        ids = number[text]
        pairs += np.bincount(ids[:-1] * size + ids[1:], minlength=size * size).reshape(size, size)
    pairs[:, BOS] = 0
    pairs[BOS] = [0, *(counts[code] for code in kept)]
    pairs[BOS, 1 : triggers + 1] = 0
    pairs[pairs.sum(1) == 0] = pairs[BOS]  # what ends every document it is in goes on as after a BOS
    return Law(tuple(map(chr, kept)), pairs / pairs.sum(1, keepdims=True), triggers, copying)


def _texts(source: str) -> Callable[[], Iterator[np.ndarray]]:
    """The documents of a text as code points, to be gone through several times."""
    if source == TOPICS:
        documents = [topics[name] for name in sorted(topics)]
        return lambda: map(_codes, documents)
    corpus = load_corpus(source)
    return lambda: (_codes(document.text) for document in corpus.documents())


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


class Sequences(Dataset[Window]):
    """`count` sequences of `length` tokens, BOS first: `{"input_ids", "labels"}`, both (length,) int64 and equal.

    Item i is drawn from (`part`, `seed`, i) and nothing else, so that a resumed training goes on with the same ones.
    """

    def __init__(self, law: Law, count: int, length: int, part: str, seed: int) -> None:
        self.law, self.count, self.length, self.part, self.seed = law, count, length, part, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, item: int) -> Window:
        if not 0 <= item < self.count:
            raise IndexError(f"sequence {item} of {self.count}")
        generator = seeded("backcopy", self.part, self.seed, item)
        draws = torch.rand(self.length - 1, generator=generator, dtype=torch.float64).tolist()
        ids = torch.tensor(self.law.sequence(draws))
        return {"input_ids": ids, "labels": ids}

    def batch(self, items: range) -> Int[Tensor, "item position"]:
        """The token ids of several items."""
        return torch.stack([self[item]["input_ids"] for item in items])


def tokenizer_of(law: Law) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters whose ids are those of the law; it puts the BOS before every text."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    bos = "<bos>"
    vocabulary = {bos: BOS} | {character: number for number, character in enumerate(law.characters, start=1)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=bos))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, unk_token=bos, add_bos_token=True)


class BigramTask(Task):
    """A task whose sequences are drawn from a law (`law_of`); `law_fields` names the fields that say which."""

    law_fields: ClassVar[tuple[str, ...]] = ("source", "characters", "triggers")

    source: str = TOPICS
    characters: int = Field(default=64, ge=5)
    triggers: PositiveInt = 3

    @model_validator(mode="after")
    def _some_are_no_triggers(self) -> BigramTask:
        if self.triggers > self.characters - 2:
            raise InputError(f"{self.kind} field 'triggers' = {self.triggers}: leave at least 2 other characters")
        return self

    @property
    def law(self) -> Law:
        """What follows what. Raises `InputError` as `law_of` does."""
        return law_of(**{name: getattr(self, name) for name in self.law_fields})
