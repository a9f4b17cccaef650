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

Finder = Callable[["Subject"], "Found"]
CANDIDATES = 16  # of which those that meet the criterion of massive activations are set


@dataclass(frozen=True, eq=False)
class Subject:
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
class Found:
    """The intervention, in words what it acts on, and where to look for the sink if not at the subject's position."""

    intervention: Intervention
    remark: str
    position: int | None = None


NAMED: dict[str, Finder] = {}


def named_as(name: str) -> Callable[[Finder], Finder]:
    """Register an intervention under a name: `sinkscope intervene --what NAME`, its help and its tests take it up."""

    def register(finder: Finder) -> Finder:
        NAMED[name] = finder
        return finder

    return register


def named(what: str, subject: Subject) -> Found:
    """The intervention called `what` for this model and input. Raises `InputError` for an unknown name, and where there
    is nothing to act on."""
    if what not in NAMED:
        raise unknown("intervention", what, NAMED)
    return NAMED[what](subject)


def _massive(subject: Subject) -> tuple[tuple[Entry, ...], str]:
    """All activations that meet the criterion; where none does, the one that comes nearest, which the remark says."""
    found = largest_activations(subject.model, subject.inputs, CANDIDATES, subject.batch_size)
    massive = [activation for activation in found if activation.is_massive()]
    shown = massive or found[:1]
    described = "; ".join(_described(activation) for activation in shown)
    none = "" if massive else "no activation exceeds 100 and 1000 medians; the one that stands out most: "
    return tuple(activation.entry for activation in shown), none + described


def _described(activation: MassiveActivation) -> str:
    depth, position, dim = activation.entry
    size = f"{activation.magnitude:.4g}, {activation.ratio:.4g} medians"
    return f"depth {depth}, position {position}, dimension {dim} ({size})"


@named_as("zero-massive")
def _zero_massive(subject: Subject) -> Found:
    entries, remark = _massive(subject)
    return Found(SetActivations(entries), remark)


@named_as("mean-massive")
def _mean_massive(subject: Subject) -> Found:
    entries, remark = _massive(subject)
    return Found(SetActivations.at_mean(subject.model, subject.inputs, entries, subject.batch_size), remark)


@named_as("remove-onset")
def _remove_onset(subject: Subject) -> Found:
    depth = onset_depth(subject.model, subject.norms(), subject.position)
    return Found(
        RemoveContribution(depth, (subject.position,)),
        f"the norm of position {subject.position} grows most in block {depth - 1}",
    )


@named_as("zero-sink-heads")
def _zero_sink_heads(subject: Subject) -> Found:
    heads = sink_heads(subject.model, subject.received(), subject.epsilon, subject.position)
    pairs = ", ".join(f"{layer}.{head}" for layer, head in heads[:CANDIDATES])
    more = f" and {len(heads) - CANDIDATES} more" if len(heads) > CANDIDATES else ""
    return Found(ZeroHeads(heads), f"{len(heads)} heads (layer.head): {pairs}{more}")


@named_as("forbid-sink")
def _forbid_sink(subject: Subject) -> Found:
    return Found(ForbidSink((subject.position,)), f"keys at position {subject.position}")


@named_as("first-view")
def _first_view(subject: Subject) -> Found:
    remark = f"the query at position {subject.other} sees itself alone; sink rate there"
    return Found(FirstTokenView(subject.other), remark, subject.other)


@named_as("swap-position")
def _swap_position(subject: Subject) -> Found:
    return Found(SwapPositions(subject.position, subject.other), f"embeddings {subject.position} ↔ {subject.other}")


@named_as("replace-position")
def _replace_position(subject: Subject) -> Found:
    remark = f"embedding {subject.position} replaced by {subject.other}"
    return Found(ReplacePosition(subject.position, subject.other), remark)


@named_as("suppress-bands")
def _suppress_bands(subject: Subject) -> Found:
    spared = (subject.position,) if subject.spare_sink else ()
    numbers = ", ".join(map(str, subject.bands))
    kept = f"position {subject.position} keeps its stream" if spared else "in every token's stream"
    return Found(SuppressBands(tuple(subject.bands), spared), f"bands {numbers} of 20, {kept}")
