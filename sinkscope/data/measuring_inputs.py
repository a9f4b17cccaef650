"""What a model is measured on: natural text, random tokens, one repeated token, any token as the first.

Source: Gu et al. 2025, Table 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import digest, load_corpus, parse_corpus, shuffled, split_names, texts
from sinkscope.data.tokenizer import (
    adds_first_token,
    bos_remark,
    encode,
    first_token_id,
    in_chat,
    last_token_id,
    tokenized,
)
from sinkscope.data.windows import seeded
from sinkscope.errors import InputError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


WindowKind = Literal["starts", "packed", "within"]


@dataclass(frozen=True)
class Cut:
    """Rows of token ids, and in words what their first token is and what they are."""

    rows: list[list[int]]
    first: str
    description: str


def cut(
    tokenizer: Any, texts: Iterable[str], tokens: int, windows: WindowKind | str, samples: int | None = None
) -> Cut:
    """Rows of token ids from texts, in order.

    Args:
        tokenizer: Encodes the texts and adds its special tokens.
        texts: Read one by one until there are enough rows.
        tokens: Maximum length of a row, special tokens included.
        windows: "starts": the first `tokens` of each text, special tokens of the tokenizer among them; shorter texts
            are shorter rows. "packed": all texts with their special tokens, concatenated and cut into windows of
            `tokens`; the rest at the end is dropped. "within": consecutive stretches of `tokens` of each text, of which
            the last tokens give way to the tokenizer's leading special tokens (its BOS); the rest of a text is dropped.
        samples: Maximum number of rows; None: all.

    Raises `InputError` for an unknown kind of windows, fewer than 2 tokens, and texts that give no row.
    """
    if windows not in get_args(WindowKind):
        raise unknown("windows", str(windows), get_args(WindowKind))
    if tokens < 2:
        raise InputError(f"tokens = {tokens}: at least 2")
    read = _Read(texts)
    rows = list(islice(_CUTS[windows](tokenizer, read, tokens), samples))
    if not rows:
        raise InputError(f"the {read.count} text(s) give no window of {tokens} tokens: use fewer tokens")
    description = f"{read.count} text{'' if read.count == 1 else 's'}"
    if windows == "starts":
        short = sum(len(row) < tokens for row in rows)
        description = f"the first {tokens} tokens of each of {description}" + (
            f", {short} of them shorter" if short else ""
        )
        return Cut(rows, "what the tokenizer puts first, or the text's first token", description)
    across = "packed one after the other" if windows == "packed" else "cut from the beginning of each"
    description = f"{len(rows)} windows of {tokens} tokens of {description}, {across}"
    first = "whatever token the text has there"
    return Cut(rows, first if windows == "packed" else f"what the tokenizer puts first, or {first}", description)


class _Read:
    """Texts, counted as they are read."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.count = texts, 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.count += 1
            yield text


def _starts(tokenizer: Any, texts: Iterable[str], tokens: int) -> Iterator[list[int]]:
    for text in texts:
        if ids := list(tokenized(tokenizer, text, truncation=True, max_length=tokens)["input_ids"]):
            yield ids


def _packed(tokenizer: Any, texts: Iterable[str], tokens: int) -> Iterator[list[int]]:
    rest: list[int] = []
    for text in texts:
        # Not verbose: the tokenizer would warn of texts longer than the model takes, which are cut only here.
        rest += tokenized(tokenizer, text, verbose=False)["input_ids"]
        while len(rest) >= tokens:
            yield rest[:tokens]
            rest = rest[tokens:]


def _within(tokenizer: Any, texts: Iterable[str], tokens: int) -> Iterator[list[int]]:
    for text in texts:
        encoded = tokenized(tokenizer, text, return_special_tokens_mask=True, verbose=False)
        # By the mask, not by id: a text may spell special tokens itself.
        whole, added = encoded["input_ids"], encoded["special_tokens_mask"]
        ids = [token for token, special in zip(whole, added, strict=True) if not special]
        lead = whole[: [*added, 0].index(0)]
        for start in range(0, len(ids) - tokens + 1, tokens):
            yield [*lead, *ids[start : start + tokens]][:tokens]


_CUTS = {"starts": _starts, "packed": _packed, "within": _within}


KINDS = ("natural", "random", "repeated", "first-token")
BOS_COUNTS = {"add": 1, "double": 2}  # how many BOS the rules put first that always put some
SPLITS = ("validation", "all")
BOS_RULES = ("auto", "add", "double", "none")


@dataclass(frozen=True)
class Inputs:
    """Token ids (N, T), int64, and in words what is at position 0 and what the rows are."""

    input_ids: Tensor
    first: str
    description: str


def build_inputs(
    kind: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None,
    vocab_size: int,
    tokens: int,
    samples: int,
    seed: int,
    text: str | Path | None = None,
    bos: str = "auto",
    corpus: str | DataConfig = "python",
    split: str = "validation",
    field: str | None = None,
    windows: WindowKind | str = "within",
) -> Inputs:
    """Build rows of token ids; the same arguments give the same rows.

    - `natural`: windows of the file at `text`, else of the documents of `corpus`.
      Where the text has fewer windows than `samples` there are as many rows as it has, and the description says so.
    - `random`: every id drawn uniformly from the vocabulary without special tokens.
    - `repeated`: one id, drawn likewise for each row, at every position of it.
    - `first-token`: a different id for each row at position 0, special tokens among them, the same natural text after
      it in all; every id of the vocabulary where `samples` is at least their number.

    Args:
        kind: One of these.
        tokenizer: None is enough for `random` and `repeated`.
        vocab_size: Ids are below it.
        tokens: Length of a row.
        samples: Number of rows.
        seed: Decides what is drawn.
        text: A file, or a folder of files, each of which is cut on its own; None: the corpus.
        bos: "auto" puts around natural text what the tokenizer itself puts around every text: the BOS of a model that
            was trained with one (`with_bos`), an encoder's [CLS] and [SEP], for many models nothing; the other kinds
            get none. "add" puts the BOS (or [CLS]) before every kind but `first-token`, whose first token is the point,
            "double" puts it twice, as happens where a template's BOS meets a tokenizer that adds its own; "none" puts
            nothing. The text then ends a token or two earlier, so that it is the same text with and without.
        corpus, split, field, windows: As in `natural_windows`.

    Raises `InputError` for a text shorter than one window or of unknown words alone, an id outside the vocabulary, and
    arguments without meaning.
    """
    _check(kind, bos, tokens, samples)
    generator = seeded("inputs", kind, seed)
    if kind == "random":
        inputs = _random(ordinary_tokens(tokenizer, vocab_size), tokens, samples, generator)
    elif kind == "repeated":
        inputs = _repeated(ordinary_tokens(tokenizer, vocab_size), tokens, samples, generator)
    else:
        count = samples if kind == "natural" else 1
        reader = _needed(tokenizer, f"{kind} input")
        inputs = natural_windows(
            reader,
            tokens,
            count,
            seed,
            text,
            corpus,
            split=split,
            field=field,
            windows=windows,
        )
        nothing = reader.unk_token_id
        if nothing is not None and bool((inputs.input_ids == nothing).all()):
            raise InputError(
                f"the tokenizer knows no word of {inputs.description}: each is {reader.unk_token} (id "
                f"{nothing}); give texts that the model was made for, or random input"
            )
        if kind == "first-token":
            inputs = _first_token(inputs, known_tokens(tokenizer, vocab_size), samples, generator)
    if bos in BOS_COUNTS or (bos == "auto" and kind == "natural" and adds_first_token(_needed(tokenizer, "text"))):
        inputs = _after_bos(inputs, _needed(tokenizer, "a BOS"), BOS_COUNTS.get(bos, 1))
        if bos == "auto":
            inputs = _before_sep(inputs, _needed(tokenizer, "a [SEP]"))
    if tokenizer is not None and kind == "natural":
        inputs = replace(inputs, first=inputs.first + bos_remark(tokenizer, inputs.input_ids.tolist(), bos == "double"))
    largest = int(inputs.input_ids.max())
    if largest >= vocab_size:
        raise InputError(f"token id {largest} is outside the model's vocabulary of {vocab_size}: is it its tokenizer?")
    return replace(inputs, input_ids=inputs.input_ids.contiguous())  # some models take them for labels, as a `view`


def natural_windows(
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    samples: int,
    seed: int,
    text: str | Path | None = None,
    corpus: str | DataConfig = "python",
    domain: str | None = None,
    *,
    split: str = "validation",
    field: str | None = None,
    windows: WindowKind | str = "within",
) -> Inputs:
    """Stretches of consecutive tokens, none of which overlap; only those of "packed" cross a document's end.

    Each document is cut into such stretches from its beginning. From `text` they are taken in an order that `seed`
    decides; from a corpus, one of each validation document first (documents and stretches in seeded order), then a
    second one of each, so that few stretches come from many documents. Only as many documents are read and encoded as
    that takes.

    Args:
        tokenizer: Encodes the documents.
        tokens: Length of a stretch.
        samples: Maximum number of stretches.
        seed: Decides their order.
        text: A file or a folder of files; None: the corpus.
        corpus: A name: split as `DataConfig` does by default, so that its validation documents are ones that models
            trained with default settings never saw; or a model's own `DataConfig`.
        domain: Only documents in this folder at the corpus's top; None: all.
        split: "validation", or "all" to read every document of the corpus.
        field: The field that holds the text, in files of rows (JSON lines, CSV, Parquet), of which every row is a
            document; None: the field "text".
        windows: "within": all stretches of a document; "starts": the first alone; "packed": documents are concatenated
            before they are cut, so that stretches cross their ends.

    Raises `InputError` if no document is `tokens` long, for an unknown domain, and for a field that is not there.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if windows not in get_args(WindowKind):
        raise unknown("windows", str(windows), get_args(WindowKind))
    if text is not None:
        named = "" if field is None else f", field '{field}'"
        source, documents = f"the text {Path(text).name}{named}", texts(Path(text), field)
    else:
        if isinstance(corpus, str):
            parse_corpus(corpus)  # whose error says in one line what a validation says in three
        config = corpus if isinstance(corpus, DataConfig) else DataConfig(corpus=corpus)
        documents, which = _documents(config, seed, domain, split, field)
        source = f"{which[0]} of the corpus '{config.corpus}'{which[1]}" + (f", domain '{domain}'" if domain else "")
    generator = seeded("natural", seed)
    longest = 0

    def groups() -> Iterator[list[list[int]]]:
        nonlocal longest
        rest: list[int] = []
        for document in documents:
            [ids] = encode(tokenizer, [document])
            longest = max(longest, len(ids))
            if windows == "packed":
                whole = [*rest, *ids]
                rest = whole[len(whole) // tokens * tokens :]
                yield [whole[start : start + tokens] for start in range(0, len(whole) - len(rest), tokens)]
            elif windows == "starts":
                yield [ids[:tokens]] if len(ids) >= tokens else []
            else:
                yield _stretches(ids, tokens, generator)

    rows = list(islice(_in_turns(groups()), samples))
    if not rows:
        raise InputError(f"{source} has at most {longest} tokens in one document; a window takes {tokens}")
    asked = "" if len(rows) == samples else f" ({samples} were asked for)"
    count = "1 window" if len(rows) == 1 else f"{len(rows)} windows"
    how = {"within": "", "starts": ", the first of each document", "packed": ", documents concatenated"}
    description = f"{count} of {tokens} tokens{asked} from {source}{how[windows]}"
    return Inputs(torch.tensor(rows), "whatever token the text has there", description)


def text_digest(text: str | Path, field: str | None = None) -> str:
    """sha256 over the documents that `natural_windows` reads from a text. Raises `InputError` as it does."""
    digest = hashlib.sha256()
    for document in texts(Path(text), field):
        raw = document.encode()
        digest.update(b"%d\n" % len(raw) + raw)
    return digest.hexdigest()


def corpus_digest(corpus: str, field: str | None = None) -> str:
    """sha256 over a corpus's documents and their names, each read once (`python`: about a second)."""
    return digest(load_corpus(corpus, field=field)).hexdigest()


def as_chat(inputs: Inputs, tokenizer: Any) -> Inputs:
    """The same windows as a user's message, cut to the same length; the first token is the template's.

    Raises `InputError` for a tokenizer without a chat template, and where a message in the template is shorter than a
    window, or begins behind it.
    """
    if not tokenizer.chat_template:
        raise InputError("the model's tokenizer has no chat template")
    length = inputs.input_ids.shape[1]
    messages = [[{"role": "user", "content": letter}] for letter in "ab"]
    pairs = zip(*in_chat(tokenizer, messages, tokenize=True, return_dict=False), strict=False)
    lead = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
    if lead >= length:
        raise InputError(
            f"the chat template takes {lead} tokens before a message, so windows of {length} tokens are all the same: "
            "use more tokens"
        )
    turns = [[{"role": "user", "content": text}] for text in tokenizer.batch_decode(inputs.input_ids)]
    rows = in_chat(tokenizer, turns, tokenize=True, return_dict=False)
    kept = [row[:length] for row in rows if len(row) >= length]
    if not kept:
        raise InputError(f"in the chat template no window is {length} tokens long")
    first = f"the chat template's first token {tokenizer.convert_ids_to_tokens(kept[0][0])} (id {kept[0][0]})"
    first += bos_remark(tokenizer, kept)
    return replace(
        inputs, input_ids=torch.tensor(kept), first=first, description=f"{inputs.description}, as a user's message"
    )


def ordinary_tokens(tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> Tensor:
    """Ids (n,) below `vocab_size` that the tokenizer knows and that are no special tokens; all without a tokenizer."""
    if tokenizer is None:
        return torch.arange(vocab_size)
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    special |= set(tokenizer.all_special_ids)
    ordinary = [token for token in known_tokens(tokenizer, vocab_size).tolist() if token not in special]
    if not ordinary:
        raise InputError(f"the vocabulary of {vocab_size} has only special tokens")
    return torch.tensor(ordinary)


def known_tokens(tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> Tensor:
    """Ids (n,) below `vocab_size` that the tokenizer knows, special ones among them; all without a tokenizer."""
    if tokenizer is None:
        return torch.arange(vocab_size)
    # Not the first len(tokenizer) ids: some vocabularies have holes.
    return torch.tensor(sorted({token for token in tokenizer.get_vocab().values() if token < vocab_size}))


def _random(ordinary: Tensor, tokens: int, samples: int, generator: torch.Generator) -> Inputs:
    ids = ordinary[torch.randint(len(ordinary), (samples, tokens), generator=generator)]
    return Inputs(ids, "a random token", f"{samples} rows of {tokens} tokens drawn uniformly from {len(ordinary)}")


def _repeated(ordinary: Tensor, tokens: int, samples: int, generator: torch.Generator) -> Inputs:
    ids = ordinary[torch.randint(len(ordinary), (samples, 1), generator=generator)]
    return Inputs(
        ids.repeat(1, tokens), "the token that is repeated", f"{samples} rows of one token, {tokens} times each"
    )


def _first_token(text: Inputs, known: Tensor, samples: int, generator: torch.Generator) -> Inputs:
    first = known[torch.randperm(len(known), generator=generator)[:samples]].unsqueeze(1)
    rest = text.input_ids[:1, :-1].repeat(len(first), 1)
    which = f"every one of the {len(first)}" if len(first) == len(known) else f"{len(first)} of {len(known)}"
    return Inputs(
        torch.cat([first, rest], dim=1),
        "a different token of the vocabulary in each row",
        f"{which} first tokens before the same text: {text.description}",
    )


def _after_bos(inputs: Inputs, tokenizer: PreTrainedTokenizerBase, count: int) -> Inputs:
    start = first_token_id(tokenizer)
    if start is None:
        raise InputError("the tokenizer has no BOS token to add: read texts without one (bos none)")
    column = torch.full((len(inputs.input_ids), count), start)
    ids = torch.cat([column, inputs.input_ids], dim=1)[:, : inputs.input_ids.shape[1]]
    times = "" if count == 1 else f", {count} times"
    return replace(inputs, input_ids=ids, first=f"{tokenizer.convert_ids_to_tokens(start)} (id {start}){times}")


def _before_sep(inputs: Inputs, tokenizer: PreTrainedTokenizerBase) -> Inputs:
    """The same rows with the tokenizer's [SEP], if it ends texts with one, instead of the last token."""
    end = last_token_id(tokenizer)
    if end is None:
        return inputs
    ids = inputs.input_ids.clone()
    ids[:, 1:][:, -1:] = end  # a row of one token keeps its [CLS]
    last = f"{tokenizer.convert_ids_to_tokens(end)} (id {end})"
    return replace(inputs, input_ids=ids, description=f"{inputs.description}; last: {last}")


def _check(kind: str, bos: str, tokens: int, samples: int) -> None:
    if kind not in KINDS:
        raise unknown("input", kind, KINDS)
    if bos not in BOS_RULES:
        raise unknown("bos", bos, BOS_RULES)
    if tokens < 1 or samples < 1:
        raise InputError(f"tokens ({tokens}) and samples ({samples}) must be at least 1")
    if kind == "first-token" and bos in BOS_COUNTS:
        raise InputError("first-token input has a first token already: a BOS before it would take its place")


def _needed(tokenizer: PreTrainedTokenizerBase | None, what: str) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise InputError(f"{what} needs a tokenizer, and the model has none; random and repeated input do without")
    return tokenizer


def _documents(
    config: DataConfig, seed: int, domain: str | None, split: str, field: str | None
) -> tuple[Iterator[str], tuple[str, str]]:
    """The chosen documents of a corpus, in an order that `seed` decides; and in words which ones, of how many.

    No model here was trained on "prose", which is short: all of it is read.
    """
    split = "all" if config.corpus == "prose" else split
    corpus = load_corpus(config.corpus, config.max_characters, field)
    chosen, total = list(corpus.names), len(corpus.names)
    if split == "validation":
        chosen = list(split_names(corpus.names, config.validation_share, config.split_seed).validation)
    if domain is not None:
        domains = corpus.domains()
        if domain not in domains:
            raise unknown(f"domain of the corpus '{config.corpus}'", domain, domains)
        corpus = domains[domain]
    entries = {entry.name: entry for entry in corpus.entries}
    which = ("the validation text", f" ({len(chosen)} of {total} documents)")
    which = which if split == "validation" else ("all the text", f" ({total} documents)")
    return (entries[name].read() for name in shuffled(chosen, seed) if name in entries), which


def _stretches(ids: list[int], tokens: int, generator: torch.Generator) -> list[list[int]]:
    order = torch.randperm(len(ids) // tokens, generator=generator).tolist()
    return [ids[number * tokens : (number + 1) * tokens] for number in order]


def _in_turns(groups: Iterable[list[list[int]]]) -> Iterator[list[int]]:
    """The first item of every group, then the second ones, and so on; a group is built when its first item is due."""
    rest = []
    for group in groups:
        yield from group[:1]
        rest.append(group[1:])
    for turn in zip_longest(*rest):
        yield from (item for item in turn if item is not None)
