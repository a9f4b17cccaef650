"""Interventions by name, with what they act on found in a first pass over the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sinkscope.errors import unknown
from sinkscope.interventions.bands import SuppressBands
from sinkscope.interventions.finding import MassiveActivation, largest_activations, onset_depth, sink_heads
from sinkscope.interventions.heads import ZeroHeads
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.positions import ReplacePosition, SwapPositions
from sinkscope.interventions.residual import Entry, RemoveContribution, SetActivations
from sinkscope.interventions.visibility import FirstTokenView, ForbidSink
from sinkscope.probes import AttentionReceived, HiddenNorms, measure

CANDIDATES = 16  # of which those that meet the criterion of massive activations are set


@dataclass(frozen=True, eq=False)
class Question:
    """A model on its inputs, the sink's position, and what some interventions need to know besides.

    `other`: the position to swap with, to take the embedding of, or to give the first token's view. `bands`: spectral
    bands of 20; `spare_sink`: whether they stay in the sink's own stream.
    """

    model: nn.Module
    inputs: Any
    position: int = 0
    other: int = 1
    epsilon: float = 0.3
    bands: Sequence[int] = (19,)
    spare_sink: bool = True
    batch_size: int = 8

    def norms(self) -> Any:
        """Hidden norms at every position."""
        return measure(self.model, self.inputs, [HiddenNorms()], batch_size=self.batch_size)

    def received(self) -> Any:
        """Attention to the sink."""
        observers = [AttentionReceived(positions=[self.position])]
        return measure(self.model, self.inputs, observers, batch_size=self.batch_size)


@dataclass(frozen=True)
class Answer:
    """The intervention, in words what it acts on, and where to look for the sink if not at the question's position."""

    intervention: Intervention
    remark: str
    position: int | None = None


def named(what: str, question: Question) -> Answer:
    """The intervention called `what` for this model and input. Raises `InputError` for an unknown name, and where there
    is nothing to act on."""
    if what not in NAMED:
        raise unknown("intervention", what, NAMED)
    return NAMED[what](question)


def _massive(question: Question) -> tuple[tuple[Entry, ...], str]:
    """All activations that meet the criterion; where none does, the one that comes nearest, which the remark says."""
    found = largest_activations(question.model, question.inputs, CANDIDATES, question.batch_size)
    massive = [activation for activation in found if activation.is_massive()]
    shown = massive or found[:1]
    described = "; ".join(_described(activation) for activation in shown)
    none = "" if massive else "no activation exceeds 100 and 1000 medians; the one that stands out most: "
    return tuple(activation.entry for activation in shown), none + described


def _described(activation: MassiveActivation) -> str:
    depth, position, dim = activation.entry
    size = f"{activation.magnitude:.4g}, {activation.ratio:.4g} medians"
    return f"depth {depth}, position {position}, dimension {dim} ({size})"


def _zero_massive(question: Question) -> Answer:
    entries, remark = _massive(question)
    return Answer(SetActivations(entries), remark)


def _mean_massive(question: Question) -> Answer:
    entries, remark = _massive(question)
    return Answer(SetActivations.at_mean(question.model, question.inputs, entries, question.batch_size), remark)


def _remove_onset(question: Question) -> Answer:
    depth = onset_depth(question.model, question.norms(), question.position)
    return Answer(
        RemoveContribution(depth, (question.position,)),
        f"the norm of position {question.position} grows most in block {depth - 1}",
    )


def _zero_sink_heads(question: Question) -> Answer:
    heads = sink_heads(question.model, question.received(), question.epsilon, question.position)
    pairs = ", ".join(f"{layer}.{head}" for layer, head in heads[:CANDIDATES])
    more = f" and {len(heads) - CANDIDATES} more" if len(heads) > CANDIDATES else ""
    return Answer(ZeroHeads(heads), f"{len(heads)} heads (layer.head): {pairs}{more}")


def _suppress_bands(question: Question) -> Answer:
    spared = (question.position,) if question.spare_sink else ()
    numbers = ", ".join(map(str, question.bands))
    kept = f"position {question.position} keeps its stream" if spared else "in every token's stream"
    return Answer(SuppressBands(tuple(question.bands), spared), f"bands {numbers} of 20, {kept}")


NAMED: dict[str, Callable[[Question], Answer]] = {
    "zero-massive": _zero_massive,
    "mean-massive": _mean_massive,
    "remove-onset": _remove_onset,
    "zero-sink-heads": _zero_sink_heads,
    "forbid-sink": lambda q: Answer(ForbidSink((q.position,)), f"keys at position {q.position}"),
    "first-view": lambda q: Answer(
        FirstTokenView(q.other), f"the query at position {q.other} sees itself alone; sink rate there", q.other
    ),
    "swap-position": lambda q: Answer(SwapPositions(q.position, q.other), f"embeddings {q.position} ↔ {q.other}"),
    "replace-position": lambda q: Answer(
        ReplacePosition(q.position, q.other), f"embedding {q.position} replaced by {q.other}"
    ),
    "suppress-bands": _suppress_bands,
}
