"""One model to be measured in one way, on whatever text, and the token ids that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.progress import Progress

from sinkscope.cli.options import Bos, InputKind, Medium, Split
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, stderr

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sinkscope.data import Inputs, Reading
    from sinkscope.measurements import Measurement

NEEDS_TEXT = ("natural", "first-token")
Observers = Literal["all", "few"]


@dataclass(frozen=True)
class MeasuringJob:
    """A loaded model with its tokenizer (None where it has none), and the options of `sinkscope measure`."""

    name: str
    model: PreTrainedModel
    tokenizer: Any
    kind: InputKind
    tokens: int
    samples: int
    seed: int
    corpus: str
    split: Split
    field: str | None
    bos: Bos
    revision: str | None
    chat: bool
    observers: Observers
    batch_size: int
    epsilon: float
    medium: Medium | None = None
    prompt: str | None = None

    @property
    def input(self) -> str:
        """What the model reads, in a word."""
        return self.kind if self.medium is None else self.medium[0]

    def reading(self, text: Path | None) -> Reading:
        """What the model reads: of a text, of the corpus, or the images or recordings of a folder.

        Raises `InputError` as `inputs_for` and `media_reading` do.
        """
        from sinkscope.data import reading
        from sinkscope.data.media import media_reading

        if self.medium is not None:
            return media_reading(
                *self.medium,
                self.model,
                self.name,
                samples=self.samples,
                tokens=self.tokens,
                revision=self.revision,
                prompt=self.prompt,
            )
        found = inputs_for(
            self.model,
            self.name,
            self.kind,
            tokens=self.tokens,
            samples=self.samples,
            seed=self.seed,
            text=text,
            corpus=self.corpus,
            split=self.split,
            field=self.field,
            bos=self.bos,
            revision=self.revision,
            chat=self.chat,
        )
        return reading(self.model, found)

    def measured(self, given: Reading, label: str) -> Measurement:
        """The measurement, with a bar that shows its progress on a terminal."""
        from sinkscope import probes

        note(f"{label}: {given.description}; first: {given.first}")
        with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
            task = bar.add_task("measuring", total=None)
            return probes.measure(
                self.model,
                given.parts,
                observers="all" if self.observers == "all" else None,
                batch_size=self.batch_size,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
                about={"kind": self.input, "description": given.description, "first": given.first, "seed": self.seed},
                tokenizer=self.tokenizer,
            )


def inputs_for(
    model: PreTrainedModel,
    name: str,
    kind: InputKind,
    *,
    tokens: int,
    samples: int,
    seed: int,
    text: Path | None = None,
    corpus: str = "python",
    split: Split = "validation",
    field: str | None = None,
    bos: Bos = "auto",
    revision: str | None = None,
    chat: bool = False,
) -> Inputs:
    """Inputs of a kind for a model by name. `chat` puts each window of natural text into a user's turn.

    Raises `InputError` for text with a kind that reads none, and as `build_inputs` does.
    """
    from sinkscope.data import as_chat, build_inputs, vocabulary_of

    if kind != "natural" and chat:
        raise InputError(f"--chat-template goes with natural input, not with {kind}")
    if kind not in NEEDS_TEXT and text is not None:
        raise InputError(f"--text goes with natural and first-token input, not with {kind}")
    if kind not in NEEDS_TEXT and field is not None:
        raise InputError(f"--field goes with natural and first-token input, not with {kind}")
    if text is not None and split != "validation":
        raise InputError(f"--split {split} goes with --corpus: a --text is read as a whole")
    vocabulary = vocabulary_of(model)
    tokenizer = tokenizer_of(name, revision, needed=kind in NEEDS_TEXT or bos in ("add", "double"))
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=vocabulary,
        tokens=tokens,
        samples=samples,
        seed=seed,
        text=text,
        corpus=corpus,
        split=split,
        field=field,
        bos="none" if chat else bos,
    )
    return as_chat(inputs, tokenizer) if chat else inputs


def tokenizer_of(name: str, revision: str | None, needed: bool = False) -> Any:
    """The model's tokenizer; None where there is none and it is not needed."""
    from sinkscope.model import load_tokenizer

    try:
        return load_tokenizer(name, revision=revision)
    except InputError:
        if needed:
            raise
        return None
