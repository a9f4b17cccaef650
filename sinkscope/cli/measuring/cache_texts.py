"""What `sinkscope cache` lets a model read: noise with needles for the one that was trained on it, text for others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sinkscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from sinkscope.cli.given import Reads, Runs
    from sinkscope.trials import Asked

RECALL_MODEL = "nano-recall"
TOKENS = 128  # of a text, unless said
SCORED = 32  # tokens after a context with needles, which is what is asked about
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
    scored: int | None
    windows: int  # that are scored
    count: int  # that are loaded, those to measure sinks in among them
    task: Task
    seed: int

    @property
    def recalls(self) -> bool:
        """Whether the model is the one that was trained to answer."""
        return Path(self.model).name == RECALL_MODEL

    def texts(self, loaded: PreTrainedModel, reads: Reads, runs: Runs, text: Path | None) -> Texts:
        """Texts of the model's kind: noise with needles for the recall model, natural text for others."""
        if self.recalls and text is None:
            return self._of_needles()
        from sinkscope.cli.measuring.job import inputs_of, tokenizer_of
        from sinkscope.data import ordinary_tokens, vocabulary_of
        from sinkscope.trials.needles import hidden_in

        length = self._length(loaded)
        context = self._context(length)
        inputs = inputs_of(loaded, self.model, "natural", replace(reads, tokens=length, samples=self.count), runs, text)
        needles = None
        if self.task == "recall":
            tokenizer = tokenizer_of(self.model, runs.revision, True, runs.trust_remote_code)
            tokens = ordinary_tokens(tokenizer, vocabulary_of(loaded))
            pairs = max(4, context // TOKENS_A_PAIR)
            scored = inputs.input_ids[self.count - self.windows :, :context]
            needles = hidden_in(scored, tokens, pairs=pairs, asked=pairs // 2, seed=self.seed)
        return Texts(inputs.input_ids, context, needles, f"{inputs.description}; first: {inputs.first}")

    def _of_needles(self) -> Texts:
        from sinkscope.trials import Needles

        length = Needles().length + SCORED if self.tokens is None else self.tokens
        context = self._context(length, min(SCORED, length // 2))
        ids = Needles(length).draw(self.count, seed=self.seed).context
        asked = None if self.task == "perplexity" else Needles(context).draw(self.windows, seed=self.seed + 1)
        return Texts(ids, context, asked, f"{self.count} texts of {length} tokens of noise with needles")

    def _length(self, loaded: PreTrainedModel) -> int:
        """Tokens in a text: no more than the model was trained for."""
        from sinkscope.hooks import text_config

        trained = getattr(text_config(loaded), "max_position_embeddings", None)
        return self.tokens or min(TOKENS, trained if isinstance(trained, int) and trained > 3 else TOKENS)

    def _context(self, length: int, scored: int | None = None) -> int:
        scored = self.scored or scored or length - length // 2
        if scored >= length:
            raise InputError(f"--scored {scored}: a text has {length} tokens, and some must be the context")
        return length - scored
