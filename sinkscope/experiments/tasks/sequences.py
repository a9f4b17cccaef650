"""Bigram-Backcopy sequences as a model reads them."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from sinkscope.data import Window, seeded
from sinkscope.experiments.tasks.law import BOS, Law


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


def tokenizer_of(law: Law) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters whose ids are those of the law; it puts the BOS before every text."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    bos = "<bos>"
    vocabulary = {bos: BOS} | {character: number for number, character in enumerate(law.characters, start=1)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=bos))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, unk_token=bos, add_bos_token=True)
