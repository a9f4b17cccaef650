"""One model to be measured in one way, on whatever text, and the token ids that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.progress import Progress

from sinkscope.cli.options import Bos, InputKind
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, stderr

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sinkscope.data import Inputs
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
    bos: Bos
    revision: str | None
    chat: bool
    observers: Observers
    batch_size: int
    epsilon: float

    def inputs(self, text: Path | None) -> Inputs:
        """What the model reads, of a text or of the corpus. Raises `InputError` as `inputs_for` does."""
        return inputs_for(
            self.model,
            self.name,
            self.kind,
            tokens=self.tokens,
            samples=self.samples,
            seed=self.seed,
            text=text,
            corpus=self.corpus,
            bos=self.bos,
            revision=self.revision,
            chat=self.chat,
        )

    def measured(self, given: Inputs, label: str) -> Measurement:
        """The measurement, with a bar that shows its progress on a terminal."""
        from sinkscope import probes

        note(f"{label}: {given.description}; first: {given.first}")
        with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
            task = bar.add_task("measuring", total=None)
            return probes.measure(
                self.model,
                given.input_ids,
                observers="all" if self.observers == "all" else None,
                batch_size=self.batch_size,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
                about={"kind": self.kind, "description": given.description, "first": given.first, "seed": self.seed},
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
    bos: Bos = "auto",
    revision: str | None = None,
    chat: bool = False,
) -> Inputs:
    """Inputs of a kind for a model by name. `chat` puts each window of natural text into a user's turn.

    Raises `InputError` for text with a kind that reads none, and as `build_inputs` does.
    """
    from sinkscope.data import as_chat, build_inputs

    if kind != "natural" and chat:
        raise InputError(f"--chat-template goes with natural input, not with {kind}")
    if kind not in NEEDS_TEXT and text is not None:
        raise InputError(f"--text goes with natural and first-token input, not with {kind}")
    tokenizer = tokenizer_of(name, revision, needed=kind in NEEDS_TEXT or bos in ("add", "double"))
    inputs = build_inputs(
        kind,
        tokenizer=tokenizer,
        vocab_size=model.config.get_text_config().vocab_size,
        tokens=tokens,
        samples=samples,
        seed=seed,
        text=text,
        corpus=corpus,
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
