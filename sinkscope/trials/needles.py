"""Pairs of a key and a value, hidden in noise and asked for at its end: what a cache must not forget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from sinkscope.errors import InputError

SUCCESSORS = 4  # of each noise token, equally likely: the floor of the noise's perplexity
_FACTORS, _SHIFTS = (5, 13, 21, 29), (1, 6, 11, 20)  # four permutations of 64 that agree nowhere


@dataclass(frozen=True)
class Alphabet:
    """Which ids are what: `bos`, then the first and the last id of keys, of values and of noise."""

    bos: int = 0
    pad: int = 1
    unknown: int = 2
    keys: tuple[int, int] = (3, 65)
    values: tuple[int, int] = (65, 128)
    noise: tuple[int, int] = (128, 192)

    @property
    def size(self) -> int:
        return self.noise[1]

    def words(self) -> list[str]:
        """The spelling of every id: `k3` is a key, `v70` a value, `n130` noise."""
        spelled = {self.bos: "<bos>", self.pad: "<pad>", self.unknown: "<unk>"}
        for letter, (first, end) in (("k", self.keys), ("v", self.values), ("n", self.noise)):
            spelled |= {identity: f"{letter}{identity}" for identity in range(first, end)}
        return [spelled[identity] for identity in range(self.size)]


@dataclass(frozen=True, eq=False)
class Asked:
    """Texts with needles, and questions about them.

    `context`: (row, position); `keys`: what is asked for, in turn, (row, question), none twice; `answers`: the value
    that stands behind each; `places`: where its key stands in the context.
    """

    context: Int[Tensor, "row position"]
    keys: Int[Tensor, "row question"]
    answers: Int[Tensor, "row question"]
    places: Int[Tensor, "row question"]

    def __len__(self) -> int:
        return len(self.context)

    def split(self, rows: int) -> list[Asked]:
        """The same, so many texts at a time."""
        parts = (self.context, self.keys, self.answers, self.places)
        return [Asked(*part) for part in zip(*(tensor.split(rows) for tensor in parts), strict=True)]


@dataclass(frozen=True)
class Needles:
    """`pairs` needles, each a key and its value, in a text of `length` tokens with the BOS; `asked` of them are asked.

    Fewer are asked than there are, so that what is left over tells nothing: with all of them asked once, a model that
    only crosses off the values it has given is right half of the time. Noise is a chain: each of its 64 tokens is
    followed by one of four, equally likely, so that its perplexity cannot fall below 4. Raises `InputError` where
    needles do not fit.
    """

    length: int = 192
    pairs: int = 8
    asked: int = 4
    alphabet: Alphabet = Alphabet()

    def __post_init__(self) -> None:
        if not 1 < self.asked < self.pairs:
            raise InputError(f"{self.asked} of {self.pairs} needles asked: ask for at least two, and not for all")
        if self.length < 1 + 2 * self.pairs:
            raise InputError(f"{self.pairs} needles and a BOS need {1 + 2 * self.pairs} tokens, not {self.length}")

    def draw(self, rows: int, *, seed: int) -> Asked:
        """Texts and questions. The same for the same seed."""
        return self.drawn(rows, torch.Generator().manual_seed(seed))

    def drawn(self, rows: int, generator: torch.Generator) -> Asked:
        """Texts and questions from a generator, which goes on."""
        keys = _without_repetition(rows, self.pairs, self.alphabet.keys, generator)
        first, end = self.alphabet.values
        values = torch.randint(first, end, (rows, self.pairs), generator=generator)
        context = torch.full((rows, self.length), self.alphabet.bos)
        context[:, 1:] = noise(rows, self.length - 1, generator, self.alphabet)
        return _placed(context, keys, values, self, generator)


def hidden_in(
    texts: Int[Tensor, "row position"], tokens: Int[Tensor, " vocabulary"], *, pairs: int, asked: int, seed: int
) -> Asked:
    """Needles of any model's tokens in texts of its own: pairs stand in the place of what the texts had there.

    Keys and values are drawn from `tokens`; no key stands anywhere else in its text, and place 0 stays as it is. For
    models that were never taught to answer: what the full cache answers is the ceiling, and may be low. Raises
    `InputError` where the texts are too short, or the tokens too few.
    """
    rows, length = texts.shape
    shape = Needles(length, pairs, asked)  # checks that they fit
    generator = torch.Generator().manual_seed(seed)
    context = texts.clone()
    keys = torch.empty(rows, pairs, dtype=torch.long)
    values = torch.empty(rows, pairs, dtype=torch.long)
    for row in range(rows):
        free = tokens[~torch.isin(tokens, texts[row])]
        if len(free) < 2 * pairs:
            raise InputError(
                f"{pairs} needles need {2 * pairs} tokens that a text does not have: there are {len(free)}"
            )
        drawn = free[torch.randperm(len(free), generator=generator)[: 2 * pairs]]
        keys[row], values[row] = drawn.split(pairs)
    return _placed(context, keys, values, shape, generator)


def noise(
    rows: int, length: int, generator: torch.Generator, alphabet: Alphabet | None = None
) -> Int[Tensor, "row position"]:
    """Chains of noise: s₊ = (a · s + b) mod 64 for one of four pairs (a, b), drawn anew at each step."""
    first, end = (alphabet or Alphabet()).noise
    size = end - first
    choice = torch.randint(SUCCESSORS, (rows, length), generator=generator)
    state = torch.randint(size, (rows,), generator=generator)
    chain = torch.empty(rows, length, dtype=torch.long)
    factors, shifts = torch.tensor(_FACTORS), torch.tensor(_SHIFTS)
    for step in range(length):
        chain[:, step] = state
        state = (factors[choice[:, step]] * state + shifts[choice[:, step]]) % size
    return first + chain


def _placed(context: Tensor, keys: Tensor, values: Tensor, needles: Needles, generator: torch.Generator) -> Asked:
    """Write the pairs into the context, which is changed, and choose what is asked."""
    rows, pairs = keys.shape
    # Each needle covers two places: draw places in a text from which one place per needle is cut out.
    slots = _without_repetition(rows, pairs, (0, needles.length - 1 - pairs), generator).sort(-1).values
    places = 1 + slots + torch.arange(pairs)
    context.scatter_(1, places, keys).scatter_(1, places + 1, values)
    chosen = _without_repetition(rows, needles.asked, (0, pairs), generator)
    return Asked(context, keys.gather(1, chosen), values.gather(1, chosen), places.gather(1, chosen))


def _without_repetition(
    rows: int, count: int, span: tuple[int, int], generator: torch.Generator
) -> Int[Tensor, "row drawn"]:
    """`count` different numbers of [start, end) for each row."""
    start, end = span
    return start + torch.rand(rows, end - start, generator=generator).argsort(-1)[:, :count]
