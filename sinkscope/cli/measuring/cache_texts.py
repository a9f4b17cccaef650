"""What `sinkscope cache` lets a model read: noise with needles for the one that was trained on it, text for others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sinkscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from sinkscope.evaluate import Asked

RECALL_MODEL = "nano-recall"
TOKENS = 128  # of a text, unless said
TOKENS_A_PAIR = 24  # of a context in which needles are hidden

Task = Literal["auto", "perplexity", "recall"]


@dataclass(frozen=True, eq=False)
class Texts:
    """What is read: texts, how much of them is the context, needles where recall is asked for."""

    ids: Tensor
    context: int
    needles: Asked | None
    said: str


@dataclass(frozen=True)
class Wanted:
    model: str
    tokens: int | None
    scored: int
    windows: int
    task: Task
    seed: int

    @property
    def recalls(self) -> bool:
        """Whether the model is the one that was trained to answer."""
        return Path(self.model).name == RECALL_MODEL

    def texts(self, loaded: PreTrainedModel, source: dict[str, Any]) -> Texts:
        """Texts of the model's kind: noise with needles for the recall model, natural text for others."""
        if self.recalls and source["text"] is None:
            return self._of_needles()
        from sinkscope.cli.measuring.job import tokenizer_of
        from sinkscope.data import build_inputs, ordinary_tokens, vocabulary_of
        from sinkscope.evaluate.needles import hidden_in

        length = TOKENS if self.tokens is None else self.tokens
        context = self._context(length)
        if source["text"] is not None and source["split"] != "validation":
            raise InputError(f"--split {source['split']} goes with --corpus: a --text is read as a whole")
        tokenizer = tokenizer_of(self.model, source["revision"], True, source.get("trust_remote_code", False))
        given = {name: value for name, value in source.items() if name not in ("revision", "trust_remote_code")}
        inputs = build_inputs(
            "natural",
            tokenizer=tokenizer,
            vocab_size=vocabulary_of(loaded),
            tokens=length,
            samples=self.windows,
            seed=self.seed,
            **given,
        )
        needles = None
        if self.task == "recall":
            tokens = ordinary_tokens(tokenizer, vocabulary_of(loaded))
            pairs = max(4, context // TOKENS_A_PAIR)
            needles = hidden_in(inputs.input_ids[:, :context], tokens, pairs=pairs, asked=pairs // 2, seed=self.seed)
        return Texts(inputs.input_ids, context, needles, inputs.description)

    def _of_needles(self) -> Texts:
        from sinkscope.evaluate import Needles

        length = Needles().length + 32 if self.tokens is None else self.tokens
        context = self._context(length)
        ids = Needles(length).draw(self.windows, seed=self.seed).context
        asked = None if self.task == "perplexity" else Needles(context).draw(self.windows, seed=self.seed + 1)
        return Texts(ids, context, asked, f"{self.windows} texts of {length} tokens of noise with needles")

    def _context(self, length: int) -> int:
        if self.scored >= length:
            raise InputError(f"--scored {self.scored}: a text has {length} tokens, and some must be the context")
        return length - self.scored
