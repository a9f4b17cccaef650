"""Key–value pairs hidden in noise and asked for at its end: what a cache must not forget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinkscope.data.tokenizer import in_chat, tokenized
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

    `context`: (row, position); `keys`: what is asked for, in turn, (row, question), none twice, or a question's tokens,
    (row, question, token); `answers`: the value that follows each; `places`: where its key is in the context.
    """

    context: Int[Tensor, "row position"]
    keys: Int[Tensor, "row question *token"]
    answers: Int[Tensor, "row question"]
    places: Int[Tensor, "row question"]

    def __len__(self) -> int:
        return len(self.context)

    def split(self, rows: int) -> list[Asked]:
        """The same in parts of at most `rows` texts."""
        parts = (self.context, self.keys, self.answers, self.places)
        return [Asked(*part) for part in zip(*(tensor.split(rows) for tensor in parts), strict=True)]


@dataclass(frozen=True)
class Needles:
    """`pairs` needles, each a key and its value, in a text of `length` tokens with the BOS; `asked` of them are asked.

    Fewer are asked than there are, so that elimination does not help: with all of them asked once, a model that
    only crosses off the values it has given would be right half of the time. Noise is a chain: each of its 64 tokens is
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
        """Texts and questions from a generator, whose state advances."""
        keys = _without_repetition(rows, self.pairs, self.alphabet.keys, generator)
        first, end = self.alphabet.values
        values = torch.randint(first, end, (rows, self.pairs), generator=generator)
        context = torch.full((rows, self.length), self.alphabet.bos)
        context[:, 1:] = noise(rows, self.length - 1, generator, self.alphabet)
        return _placed(context, keys, values, self, generator)


def hidden_in(
    texts: Int[Tensor, "row position"], tokens: Int[Tensor, " vocabulary"], *, pairs: int, asked: int, seed: int
) -> Asked:
    """Needles hidden in texts of any model: key-value pairs replace tokens of the texts.

    No key occurs anywhere else in its text, and position 0 stays as it is. Models that were never trained to answer
    may answer few questions even with the full cache, which is the ceiling.

    Args:
        texts: The texts to hide them in.
        tokens: The ids from which keys and values are drawn.
        pairs: Needles per text.
        asked: Questions per text; at least two, and fewer than `pairs`.
        seed: Seed of keys, values, places and questions.

    Raises `InputError` if the texts are too short, or the tokens too few.
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


NAMES = "London Paris Rome Boston Chicago Tokyo Berlin Dublin Moscow Athens Madrid Vienna Prague Sydney Oxford Dallas"
WORDS = "apple river window silver orange bread garden winter horse paper music summer bridge stone forest coffee"


def asked_in_chat(
    tokenizer: Any, texts: Int[Tensor, "row position"], lengths: Sequence[int], *, asked: int, seed: int, each: int = 1
) -> Asked:
    """Facts in passages of a chat, asked for in later turns: "The secret word of Paris is apple."

    The context is a user's message with the passages, and the assistant's reply that it has read them. A passage has
    `lengths[i]` tokens of a text, `each` of its stretches replaced by facts; the first also holds what the template
    puts before a message. Questions are turns of their own, up to the word that is the answer. Keys and answers are
    single tokens, so that questions have one length; a guess among the words is right once in as many as there are.

    Args:
        tokenizer: One with a chat template.
        texts: Ids of prose, without special tokens, as long as the passages at least.
        lengths: Tokens of each passage.
        asked: Questions per text, fewer than there are facts.
        seed: For names, words and places.
        each: Facts in each passage.

    Raises `InputError` where there is no chat template, or where facts, names or words do not fit.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("questions in a chat need a tokenizer with a chat template: use hidden_in for plain text")
    before, reply, turn = _turns(tokenizer)
    names, words = (_single(tokenizer, spelled.split()) for spelled in (NAMES, WORDS))
    pairs = each * len(lengths)
    if not 0 < asked < pairs or pairs > min(len(names), len(words)):
        raise InputError(f"{asked} of {pairs} facts asked: fewer than there are, and at most {len(names)} facts")

    def ids(text: str) -> list[int]:
        return list(tokenized(tokenizer, text, add_special_tokens=False)["input_ids"])

    head, tail = ids(before), ids(reply + "I have read the passages.")
    generator = torch.Generator().manual_seed(seed)
    contexts, keys, answers, places = [], [], [], []
    for row in texts:
        name, word = (torch.randperm(len(kind), generator=generator)[:pairs].tolist() for kind in (names, words))
        facts = [ids(f" The secret word of{names[n]} is{words[w]}.") for n, w in zip(name, word, strict=True)]
        context, left = list(head), row.tolist()
        for number, length in enumerate(lengths):
            mine = facts[number * each : (number + 1) * each]
            room = length - sum(map(len, mine)) - (len(head) if number == 0 else 0)
            if room < each or len(left) < room:
                raise InputError(f"a passage of {length} tokens has no room for {each} facts, or the text is too short")
            prose, left = left[:room], left[room:]
            cuts = sorted(torch.randperm(room, generator=generator)[:each].tolist())
            for start, stop, fact in zip([0, *cuts], [*cuts, room], [*mine, []], strict=True):
                context += prose[start:stop] + fact
        chosen = torch.randperm(pairs, generator=generator)[:asked].tolist()
        questions = [f"{turn}What is the secret word of{names[name[c]]}?{reply}" for c in chosen]
        keys.append(
            [ids(f"{text}The secret word of{names[name[c]]} is") for text, c in zip(questions, chosen, strict=True)]
        )
        answers.append([ids(words[word[c]])[0] for c in chosen])
        places.append([context.index(ids(names[name[c]])[0]) for c in chosen])
        contexts.append(context + tail)
    return Asked(*(torch.tensor(part) for part in (contexts, keys, answers, places)))


def _turns(tokenizer: Any) -> tuple[str, str, str]:
    """What the template puts before a first message, between it and a reply, and between a reply and a message."""
    marks = ("MARK-ONE", "MARK-TWO", "MARK-THREE")
    turns = [{"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)]
    text = in_chat(tokenizer, turns, tokenize=False)
    if any(text.count(mark) != 1 for mark in marks):
        raise InputError("the chat template repeats or leaves out messages, so nothing can be told and asked for in it")
    before, rest = text.split(marks[0])
    reply, rest = rest.split(marks[1])
    return before, reply, rest.split(marks[2])[0]


def _single(tokenizer: Any, words: Sequence[str]) -> list[str]:
    """The words that are one token after a space, with that space."""
    return [f" {word}" for word in words if len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1]


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
        # Each map is a permutation of the 64 states, so all of them stay equally likely.
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
    # Sorting random numbers gives a random permutation of each row.
    return start + torch.rand(rows, end - start, generator=generator).argsort(-1)[:, :count]
