"""Tokenizers: byte-level BPE trained on the corpus, or any fast tokenizer of the hub or a local folder."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.data.corpora import responses
from sinkscope.errors import InputError, unknown
from sinkscope.errors.invalid import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
MASK = "<mask>"
CLS, SEP = "[CLS]", "[SEP]"
AS_IT_STANDS = {  # options of encoding: nothing added, and the spelling of a special token is text
    "add_special_tokens": False,
    "split_special_tokens": True,
    "return_attention_mask": False,
    "return_token_type_ids": False,
    "verbose": False,
}
SMALLEST_VOCABULARY = 256 + 3  # every byte, and the three special tokens


def parse_tokenizer(name: str) -> int | None:
    """The vocabulary size of `bpe:SIZE`, or None for a hub id or a folder. `InputError` for anything else."""
    kind, colon, size = name.partition(":")
    if not colon or Path(name).exists():
        return None
    if kind != "bpe":
        raise unknown("tokenizer", name, ["bpe:2048", "a hub id", "a local folder"])
    if not size.isdecimal() or int(size) < SMALLEST_VOCABULARY:
        raise InputError(f"tokenizer '{name}' is not of the form bpe:SIZE with SIZE at least {SMALLEST_VOCABULARY}")
    return int(size)


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id, which in a vocabulary with holes is more than there are tokens."""
    return 1 + max(tokenizer.get_vocab().values())


def train_bpe(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train byte-level BPE: ids 0, 1, 2 are `<bos>`, `<eos>`, `<pad>`, then every byte, then merges.

    Lossless on any text, and the same for the same texts on every machine. A small text yields fewer merges than asked
    for, hence a vocabulary below `vocabulary`, never above it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD)


def load_fast_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer by hub id, folder, or the model (shipped, or in a run's folder) that it belongs to.

    Code from the hub is never run.

    Raises `InputError` if there is none, it is not a fast one, or it has no EOS to end documents with.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from sinkscope.model import SHIPPED
    from sinkscope.names import names_a_path, no_such_folder

    if names_a_path(name) and not Path(name).exists():
        raise no_such_folder(name)
    run = Path(name) / "model"
    path = SHIPPED[name] if name in SHIPPED else run if (run / "tokenizer.json").exists() else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # as in `hub.load_tokenizer`
        raise InputError(f"cannot load the tokenizer '{name}': {first_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"the tokenizer '{name}' is not a fast tokenizer; a corpus needs one (a tokenizer.json)")
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer '{name}' has no EOS token, which ends every document of a corpus")
    return tokenizer


def with_bos(tokenizer: PreTrainedTokenizerFast, add: bool) -> PreTrainedTokenizerFast:
    """The same tokenizer, adding its BOS to every text it encodes, or nothing.

    A model is saved with the tokenizer that does what it was trained on, so what `tokenizer(text)` returns is what the
    model knows, however it was trained. transformers keeps this in `tokenizer.json` alone, where only
    its generic class leaves it as it is: hence a new object. Raises `InputError` if there is no BOS to add.
    """
    from transformers import PreTrainedTokenizerFast

    if add and tokenizer.bos_token_id is None:
        raise InputError("the tokenizer has no BOS token to fix at position 0: choose bos=none or another tokenizer")
    roles = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        add_bos_token=add,
        **{role: token for role in roles if (token := getattr(tokenizer, role)) is not None},
    )


def with_mask(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A tokenizer with a mask token: the same one where it has one; one trained as bpe:SIZE gets `<mask>`, its last id.

    All other ids stay, so that token files stay valid. Raises `InputError` for another tokenizer without one.
    """
    from tokenizers import Tokenizer

    if tokenizer.mask_token_id is not None:
        return tokenizer
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    if special != (BOS, EOS, PAD):
        raise InputError(
            f"loss.masked: the tokenizer has no mask token (it has {', '.join(tokenizer.all_special_tokens)}); choose "
            "data.tokenizer = bpe:SIZE, which gets one, or a tokenizer that has one"
        )
    # A copy, so that the caller's tokenizer does not get the token too.
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.add_special_tokens([MASK])
    return type(tokenizer)(
        tokenizer_object=backend,
        add_bos_token=bool(getattr(tokenizer, "add_bos_token", False)),
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        mask_token=MASK,
        chat_template=tokenizer.chat_template,
    )


def as_encoder(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same tokenizer with an encoder's special tokens, which puts every text into `[CLS] … [SEP]`.

    The ids of `<bos>`, `<eos>` and `<pad>` become those of [CLS], [SEP] and [PAD], so that token files stay valid and
    hold a [SEP] after each document; [MASK] is a new last id. Raises `InputError` for a tokenizer without those three.
    """
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    if special != (BOS, EOS, PAD):
        raise InputError(f"an encoder's tokenizer is made of one trained as bpe:SIZE, not of one with tokens {special}")
    renamed = dict(zip(special, (CLS, SEP, "[PAD]"), strict=True))
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # It may name tokens that are renamed below, and is replaced there.
    state["post_processor"] = None
    vocabulary = state["model"]["vocab"]
    state["model"]["vocab"] = {renamed.get(token, token): number for token, number in vocabulary.items()}
    for added in state["added_tokens"]:
        added["content"] = renamed.get(added["content"], added["content"])
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_special_tokens(["[MASK]"])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B {SEP}",
        special_tokens=[(token, backend.token_to_id(token)) for token in (CLS, SEP)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token=CLS, sep_token=SEP, pad_token="[PAD]", mask_token="[MASK]"
    )


def tokenized(tokenizer: PreTrainedTokenizerBase, texts: str | list[str], **options: Any) -> Any:
    """`tokenizer(texts, **options)`.

    Raises `InputError` for half a character (a lone surrogate), and for words that a tokenizer without an unknown token
    lacks.
    """
    try:
        return tokenizer(texts, **options)
    except Exception as error:  # the class that the library raises
        for text in [texts] if isinstance(texts, str) else texts:
            if half := re.search("[\ud800-\udfff]", text):
                near = ascii(text[max(half.start() - 20, 0) : half.end() + 20])
                raise InputError(f"a text holds half a character (a lone surrogate): {near}; replace it") from error
        raise InputError(f"the tokenizer cannot encode the text: {first_line(error)}") from error


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Token ids of each text as it stands: nothing added, nothing cut, and a text that spells `<eos>` holds no EOS."""
    ids: list[list[int]] = tokenized(tokenizer, texts, **AS_IT_STANDS)["input_ids"]
    return ids


def encode_conversations(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> tuple[list[list[int]], list[list[bool]]]:
    """Token ids of rendered conversations, and which tokens are of responses: those that begin inside one."""
    encoded = tokenized(tokenizer, texts, return_offsets_mapping=True, **AS_IT_STANDS)
    in_response = [
        [any(start <= begin < stop for start, stop in responses(text)) for begin, _ in offsets]
        for text, offsets in zip(texts, encoded["offset_mapping"], strict=True)
    ]
    return encoded["input_ids"], in_response


def in_chat(tokenizer: Any, turns: Sequence[Any], **options: Any) -> Any:
    """`tokenizer.apply_chat_template(turns, **options)`; of a processor too.

    Raises `InputError` where the template cannot be filled: it refuses these roles, is damaged, or leaves out what a
    message says, as one does that reads parts (`[{"type": "text", …}]`) alone.
    """
    fill = tokenizer.apply_chat_template
    *before, last = turns if isinstance(turns[-1], Mapping) else turns[-1]
    try:
        filled = fill(turns, **options)
        other = isinstance(last["content"], str) and [*before, {**last, "content": f"{last['content']} b"}]
        lost = other and fill([*before, last], tokenize=False) == fill(other, tokenize=False)
    except Exception as error:  # a template may do anything, and what it meets raises anything
        raise InputError(f"the chat template cannot be filled: {first_line(error)}") from error
    if lost:
        raise InputError("the chat template cannot be filled: it leaves out what a message says")
    return filled


def first_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of the tokenizer's BOS, else of its [CLS], else None."""
    return tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def encoded_letter(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of "a" with what the tokenizer adds around it; of nothing, where its words do not include "a"."""
    try:
        return list(tokenized(tokenizer, "a")["input_ids"])
    except InputError:
        return list(tokenizer.encode(""))


def adds_first_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself puts that token before a text, as it does for most models trained with one."""
    start = first_token_id(tokenizer)
    return start is not None and encoded_letter(tokenizer)[:1] == [start]


def last_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of the [SEP] that the tokenizer itself puts after a text, as encoders' do; None where it puts none."""
    end = tokenizer.sep_token_id
    return end if end is not None and encoded_letter(tokenizer)[-1:] == [end] else None


def tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """sha256 of everything that decides how the tokenizer encodes."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def bos_remark(tokenizer: Any, rows: Sequence[Sequence[int]], twice: bool = False) -> str:
    """What to say of rows that begin without the tokenizer's BOS, with its id; empty where they begin with one.

    Warns, with both ids, where a row begins with two, unless `twice` says that this is meant.
    """
    bos = tokenizer.bos_token_id
    if bos is None or not rows:
        return ""
    doubled = sum(list(row[:2]) == [bos, bos] for row in rows)
    if doubled and not twice:
        warnings.warn(
            f"{doubled} of {len(rows)} rows begin with two BOS (ids [{bos}, {bos}]): one is in the text and one is "
            "added; models are trained with one",
            stacklevel=2,
        )
    if any(row[0] == bos for row in rows):
        return ""
    return (
        f", without the BOS {tokenizer.bos_token} (id {bos}) that the tokenizer has; the first row begins with id "
        f"{rows[0][0]}"
    )
