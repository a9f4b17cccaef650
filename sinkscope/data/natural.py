"""Windows of natural text for measuring: from a file, or from documents that training did not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import load_corpus, parse_corpus
from sinkscope.data.domains import texts
from sinkscope.data.split import shuffled, split_names
from sinkscope.data.tokenizer import encode
from sinkscope.data.windows import seeded
from sinkscope.errors import InputError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class NaturalWindows:
    """Token ids (N, T) of N stretches of text, and where they are from."""

    input_ids: Tensor
    description: str


def natural_windows(
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    samples: int,
    seed: int,
    text: str | Path | None = None,
    corpus: str | DataConfig = "python",
    domain: str | None = None,
) -> NaturalWindows:
    """Up to `samples` stretches of `tokens` consecutive tokens, none of which overlap or cross a document's end.

    Each document is cut into such stretches from its beginning. From `text`, a file or a folder of files, they are
    taken in an order that `seed` decides; from a corpus, one of each validation document first (documents and stretches
    in seeded order), then a second one of each, so that few stretches come from many documents. Only as many documents
    are read and encoded as that takes. A `corpus` by name is split as `DataConfig` does by default: these documents are
    the ones that models trained on it with default settings never saw; pass a model's own `DataConfig` otherwise.
    `domain` takes those that lie in one folder at the corpus's top [D4].

    Raises `InputError` if no document is `tokens` long, and for an unknown domain.
    """
    if text is not None:
        source, documents = f"the text {Path(text).name}", texts(Path(text))
    else:
        config = corpus if isinstance(corpus, DataConfig) else _by_name(corpus)
        source = f"the validation text of the corpus '{config.corpus}'" + (f", domain '{domain}'" if domain else "")
        documents = _validation_documents(config, seed, domain)
    generator = seeded("natural", seed)
    longest = 0

    def groups() -> Iterator[list[list[int]]]:
        nonlocal longest
        for document in documents:
            [ids] = encode(tokenizer, [document])
            longest = max(longest, len(ids))
            yield _stretches(ids, tokens, generator)

    rows = list(islice(_in_turns(groups()), samples))
    if not rows:
        raise InputError(f"{source} has at most {longest} tokens in one document; a window takes {tokens}")
    asked = "" if len(rows) == samples else f" ({samples} were asked for)"
    count = "1 window" if len(rows) == 1 else f"{len(rows)} windows"
    return NaturalWindows(torch.tensor(rows), f"{count} of {tokens} tokens{asked} from {source}")


def _by_name(corpus: str) -> DataConfig:
    parse_corpus(corpus)  # whose error says in one line what a validation says in three
    return DataConfig(corpus=corpus)


def _validation_documents(config: DataConfig, seed: int, domain: str | None) -> Iterator[str]:
    corpus = load_corpus(config.corpus, config.max_characters)
    validation = split_names(corpus.names, config.validation_share, config.split_seed).validation
    if domain is not None:
        domains = corpus.domains()
        if domain not in domains:
            raise unknown(f"domain of the corpus '{config.corpus}'", domain, domains)
        corpus = domains[domain]
    entries = {entry.name: entry for entry in corpus.entries}
    return (entries[name].read() for name in shuffled(validation, seed) if name in entries)


def _stretches(ids: list[int], tokens: int, generator: torch.Generator) -> list[list[int]]:
    order = torch.randperm(len(ids) // tokens, generator=generator).tolist()
    return [ids[place * tokens : (place + 1) * tokens] for place in order]


def _in_turns(groups: Iterable[list[list[int]]]) -> Iterator[list[int]]:
    """The first item of every group, then the second ones, and so on; a group is built when its first item is due."""
    rest = []
    for group in groups:
        yield from group[:1]
        rest.append(group[1:])
    for turn in zip_longest(*rest):
        yield from (item for item in turn if item is not None)
