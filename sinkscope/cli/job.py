"""One model to be measured in one way, on whatever text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.progress import Progress

from sinkscope.cli.options import Bos, InputKind
from sinkscope.report.terminal import note, stderr

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sinkscope.data import Inputs
    from sinkscope.measurements import Measurement

Observers = Literal["all", "few"]


@dataclass(frozen=True)
class Job:
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
        from sinkscope.cli.inputs import inputs_for

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
