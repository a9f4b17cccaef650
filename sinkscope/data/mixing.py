"""The parts of a mixture, and which of their documents no part may train on.

Parts may overlap: a corpus with a folder of its own, two globs, two parts of the corpus `python`. One split by content
holds for all of them: a text that is in the validation of one part, or of the corpus itself, is in nobody's training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import Corpus, Split, TextDigest, digest, split_names

PYTHON = "python"  # and its parts: one source, whose documents have the same names in all of them


@dataclass(frozen=True, eq=False)
class Source:
    """A corpus that was read once: its digest, and its split."""

    corpus: Corpus
    text: TextDigest
    split: Split

    @classmethod
    def of(cls, corpus: Corpus, config: DataConfig, split: Split | None = None) -> Source:
        """Read a corpus; `split`: of the corpus that it is a domain of. Raises `InputError` where it has no two
        documents to split.
        """
        own = split or split_names(corpus.names, config.validation_share, config.split_seed)
        return cls(corpus, digest(corpus), own if split is None else _of_domain(own, corpus))

    def validated(self) -> set[bytes | str]:
        """What stands for the validation documents: their contents and, in parts of `python`, where they come from."""
        contents: set[bytes | str] = {
            self.text.contents[name] for name in self.split.validation if name in self.text.contents
        }
        return contents | {_origin(name) for name in self.split.validation} if self._is_python else contents

    def without(self, held: set[bytes | str]) -> Source:
        """The same source, whose training lacks what stands for a document in `held`."""

        def is_held(name: str) -> bool:
            return self.text.contents.get(name) in held or (self._is_python and _origin(name) in held)

        return Source(self.corpus, self.text, self.split.training_without(is_held))

    @property
    def _is_python(self) -> bool:
        return self.corpus.name.partition(":")[0].partition(",")[0] == PYTHON


def apart(parts: Iterable[Source], whole: Source) -> list[Source]:
    """The parts of a mixture over the corpus `whole`, without the texts that are for validation anywhere."""
    listed = list(parts)
    held = whole.validated().union(*(part.validated() for part in listed))
    return [part.without(held) for part in listed]


def _of_domain(split: Split, domain: Corpus) -> Split:
    names = set(domain.names)
    return Split(*(tuple(name for name in part if name in names) for part in (split.train, split.validation)))


def _origin(name: str) -> str:
    """The source file of a document of `python`; its conversations add a number: `torch/fx/graph.py#0007`."""
    return f"python/{name.partition('#')[0]}"
