"""From a configuration to what training needs: tokenizer, windows and fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from sinkscope.data.config import DataConfig
from sinkscope.data.corpora import chat_template, is_chat, is_corpus, load_corpus
from sinkscope.data.encoding import EncodedCorpus, encode_corpus
from sinkscope.data.mixing import Source, apart
from sinkscope.data.tokenizer import with_bos
from sinkscope.data.training_order import MixedWindows
from sinkscope.data.windows import SomeWindows, Stream, Window, Windows, framed
from sinkscope.errors import InputError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class PreparedData:
    """What a training run reads, and the fingerprint (plain JSON) that its record keeps.

    `tokenizer` is the one to save with the model: it puts a BOS before a text exactly if training did.
    """

    tokenizer: PreTrainedTokenizerFast
    train: Dataset[Window]
    validation: Dataset[Window]
    fingerprint: dict[str, Any]


@dataclass(frozen=True)
class EncodedData:
    """The corpus of a configuration, and the parts of its mixture by name, encoded."""

    whole: EncodedCorpus
    parts: dict[str, EncodedCorpus]

    def fingerprint(self, config: DataConfig) -> dict[str, Any]:
        """Plain JSON about text and tokens; a mixture adds its parts, with their weights but without their names."""
        about = dict(self.whole.fingerprint)
        if self.parts:
            kept = ("characters", "text_sha256", "train")
            about["mixture"] = [
                {"weight": config.mixture[name]} | {key: part.fingerprint[key] for key in kept}
                for name, part in self.parts.items()
            ]
        return about


def encode_data(config: DataConfig) -> EncodedData:
    """Read and encode all that a configuration names, or map it from the cache.

    No part of a mixture trains on a text that another part, or the corpus, keeps for validation. Raises `InputError`
    for what is wrong with a corpus or the tokenizer, and for unknown domains.
    """
    corpus = load_corpus(config.corpus, config.max_characters)
    domains = corpus.domains()
    for name in config.mixture:
        if not is_corpus(name) and name not in domains:
            if not domains:
                raise InputError(f"data.mixture: the corpus '{config.corpus}' has no folders, hence no domain '{name}'")
            raise unknown("domain in data.mixture", name, domains)
    source = Source.of(corpus, config)
    whole = encode_corpus(source, config)

    def read(name: str) -> Source:
        if is_corpus(name):
            return Source.of(load_corpus(name, config.max_characters), config)
        return Source.of(domains[name], config, source.split)

    sources = apart(map(read, config.mixture), source)
    parts = {
        name: encode_corpus(part, config, whole.tokenizer) for name, part in zip(config.mixture, sources, strict=True)
    }
    by_text = sorted(parts, key=lambda name: str(parts[name].fingerprint["text_sha256"]))  # names may be local paths
    return EncodedData(whole, {name: parts[name] for name in by_text})


def prepare(config: DataConfig, context: int, seed: int = 0, *, number_documents: bool = False) -> PreparedData:
    """Read, split, encode and cut a corpus into windows of `context` tokens.

    `seed` draws what is random in `config.interventions`; which documents are for validation is `config.split_seed`'s.
    Windows number their documents where packing or `number_documents` needs it.
    The first call on a corpus encodes it (`python`: half a minute on two cores), later ones map the cache.
    Raises `InputError` for whatever is wrong with corpus, tokenizer or context.
    """
    found = encode_data(config)
    tokenizer = with_bos(found.whole.tokenizer, add=config.bos == "fixed")
    if config.document_bos and tokenizer.bos_token_id is None:
        raise InputError("data.document_bos: the tokenizer has no BOS token to put before documents")
    if is_chat(config.corpus):
        tokenizer.chat_template = chat_template(tokenizer.bos_token if config.bos == "fixed" else None)

    def cut(stream: Stream, what: str, part: str) -> Windows:
        text = framed(
            stream if config.labels == "responses" else Stream(stream.tokens),
            int(tokenizer.eos_token_id),
            bos_id=tokenizer.bos_token_id if config.document_bos else None,
            keep_eos=config.document_eos,
            find_starts=number_documents or config.packing == "intra_document",
            score_first=config.first_tokens == "scored",
        )
        return Windows(
            text,
            context,
            tokenizer.bos_token_id if config.bos == "fixed" else None,
            interventions=config.interventions,
            vocabulary=len(tokenizer),
            seed=seed,
            part=part,
            what=what,
        )

    def some(part: EncodedCorpus, what: str, number: int | None = None) -> Windows | SomeWindows:
        windows = cut(part.train, f"the training text of {what}", "train" if number is None else f"train {number}")
        share = config.train_share
        return windows if share == 1 else SomeWindows(windows, share, config.split_seed)

    named = {name: f"the {'corpus' if is_corpus(name) else 'domain'} '{name}'" for name in found.parts}
    parts = [some(part, named[name], number) for number, (name, part) in enumerate(found.parts.items())]
    return PreparedData(
        tokenizer=tokenizer,
        train=MixedWindows(parts, [config.mixture[name] for name in found.parts])
        if parts
        else some(found.whole, f"the corpus '{config.corpus}'"),
        validation=cut(found.whole.validation, f"the validation text of the corpus '{config.corpus}'", "validation"),
        fingerprint=found.fingerprint(config),
    )
