"""One model to be measured in one way, on whatever text, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.cli.given import AUTO, Reads, Runs
from sinkscope.cli.options import InputKind, Medium, place
from sinkscope.cli.trials import watching
from sinkscope.errors import InputError
from sinkscope.report.terminal import note

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sinkscope.data import InputReading, Inputs
    from sinkscope.measurement import Measurement

NEEDS_TEXT = ("natural", "first-token")


@dataclass(frozen=True)
class MeasuringJob:
    """A loaded model with its tokenizer (None where it has none), and the options of `sinkscope measure`."""

    name: str
    model: PreTrainedModel
    tokenizer: Any
    kind: InputKind
    reads: Reads
    runs: Runs
    observers: list[str]
    medium: Medium | None = None
    windows: str = "within"

    @property
    def input(self) -> str:
        """What the model reads, in a word."""
        return self.kind if self.medium is None else self.medium[0]

    @property
    def epsilon(self) -> float:
        """The threshold of the sink rate."""
        return self.reads.epsilon

    def reading(self, text: Path | None) -> InputReading:
        """What the model reads. Raises `InputError` as `reading_of` does."""
        return reading_of(self.model, self.name, self.kind, self.reads, self.runs, self.medium, text, self.windows)

    def measured(self, given: InputReading, label: str) -> Measurement:
        """The measurement, with a bar on a terminal, and a line every ten seconds in a pipe."""
        from sinkscope.measurement import measure

        note(f"{label}: {given.description}; first: {given.first}")
        about = {"kind": self.input, "description": given.description, "first": given.first, "seed": self.runs.seed}
        with watching() as watch:
            return measure(
                self.model,
                given.parts,
                observers=self.observers,
                batch_size=self.runs.batch_size,
                progress=lambda done, total: watch(done, total, "measuring"),
                about=about,
                tokenizer=self.tokenizer,
            )


def loaded(name: str, device: str | None, runs: Runs) -> PreTrainedModel:
    """The model of a name, as the options say."""
    from sinkscope.model import load

    return load(
        name,
        dtype=runs.dtype,
        revision=runs.revision,
        attn=runs.attn,
        trust_remote_code=runs.trust_remote_code,
        **place(device, runs.device_map),
    )


def reading_of(
    model: PreTrainedModel,
    name: str,
    kind: InputKind,
    reads: Reads,
    runs: Runs,
    medium: Medium | None,
    text: Path | None,
    windows: str = "within",
) -> InputReading:
    """What a model reads: of a text, of the corpus, or the images or recordings of a folder.

    Raises `InputError` as `inputs_of` and `media_reading` do.
    """
    from sinkscope.data import reading
    from sinkscope.data.media import media_reading

    if medium is None:
        return reading(model, inputs_of(model, name, kind, reads, runs, text, windows))
    return media_reading(
        *medium,
        model,
        name,
        samples=reads.samples,
        tokens=reads.tokens,
        revision=runs.revision,
        prompt=reads.prompt,
    )


def inputs_of(
    model: PreTrainedModel,
    name: str,
    kind: InputKind,
    reads: Reads,
    runs: Runs,
    text: Path | None,
    windows: str = "within",
) -> Inputs:
    """Inputs of a kind for a model by name. A chat template puts each window of natural text into a user's turn.

    Raises `InputError` for text with a kind that reads none, and as `build_inputs` does.
    """
    from sinkscope.data import as_chat, build_inputs, corpus_of, vocabulary_of

    chat = runs.chat_template is True
    if chat and reads.bos != "auto":
        raise InputError(f"--bos {reads.bos} does not go with --chat-template, which decides what stands first")
    vocabulary = vocabulary_of(model)
    needed = kind in NEEDS_TEXT or reads.bos in ("add", "double")
    tokenizer = tokenizer_of(name, runs.revision, needed, runs.trust_remote_code)
    if runs.chat_template is None and kind == "natural" and reads.bos == "auto":
        chat = bool(tokenizer.chat_template)
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=vocabulary,
        tokens=reads.tokens,
        samples=reads.samples,
        seed=runs.seed,
        text=text,
        corpus=corpus_of(model.config) if reads.corpus == AUTO else reads.corpus,
        split=reads.split,
        field=reads.field,
        windows=windows,
        bos="none" if chat else reads.bos,
    )
    return as_chat(inputs, tokenizer) if chat else inputs


def tokenizer_of(name: str, revision: str | None, needed: bool = False, trust_remote_code: bool = False) -> Any:
    """The model's tokenizer; None where there is none and it is not needed."""
    from sinkscope.model import load_tokenizer

    try:
        return load_tokenizer(name, revision=revision, trust_remote_code=trust_remote_code)
    except InputError:
        if needed:
            raise
        return None
