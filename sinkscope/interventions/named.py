"""Interventions by name, with what they act on found in a first pass over the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import unwrapped
from sinkscope.interventions.bands import SuppressBands
from sinkscope.interventions.finding import MassiveActivation, largest_activations, onset_depth, sink_heads
from sinkscope.interventions.head_controls import Head, control_named, every_head
from sinkscope.interventions.heads import ZeroHeads
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.positions import ReplacePosition, SwapPositions
from sinkscope.interventions.residual import Entry, RemoveContribution, SetActivations
from sinkscope.interventions.visibility import FirstTokenView
from sinkscope.measurement import AttentionReceived, HiddenNorms, measure
from sinkscope.registry import Registry, renamed_argument

Finder = Callable[["Subject"], "Found"]
CANDIDATES = 16  # activations that are tested for being massive


@renamed_argument("spare_sink", "protect_sink")
@dataclass(frozen=True, eq=False)
class Subject:
    """A model, its inputs, the position of the sink, and what some interventions need besides.

    Attributes:
        model: Any transformers model.
        inputs: As `measure` takes them.
        position: Where the sink is.
        other: The position to swap with, whose embedding to take, or which gets the first token's view.
        epsilon: The attention above which a head counts as a sink head.
        bands: Spectral bands, of 20.
        protect_sink: Whether the sink's own stream keeps these bands.
        batch_size: Rows per forward pass.
        layers: Only sink heads of these layers; None for all.
        heads: These (layer, head) instead of the sink heads, whether they are sinks or not.
        strongest: Only the strongest of the sink heads; None for all.
        control: Which other heads are zeroed as controls, a name of `CONTROLS`.
    """

    model: nn.Module
    inputs: Any
    position: int = 0
    other: int = 1
    epsilon: float = 0.3
    bands: Sequence[int] = (19,)
    protect_sink: bool = True
    batch_size: int = 8
    layers: Sequence[int] | None = None
    heads: Sequence[tuple[int, int]] | None = None
    strongest: int | None = None
    control: str = "any"

    def norms(self) -> Any:
        """Hidden norms at all positions."""
        return measure(self.model, self.inputs, [HiddenNorms()], batch_size=self.batch_size)

    def received(self) -> Any:
        """Attention to the sink."""
        observers = [AttentionReceived(positions=[self.position])]
        return measure(self.model, self.inputs, observers, batch_size=self.batch_size)


@dataclass(frozen=True)
class Found:
    """An intervention, what it acts on in words, and where to look for the sink if not at the subject's position.

    `control`: what its controls are drawn from, in words, if that was chosen.
    """

    intervention: Intervention
    remark: str
    position: int | None = None
    control: str = ""


NAMED: Registry[Finder] = Registry("intervention")


def named_as(name: str) -> Callable[[Finder], Finder]:
    """Make an intervention one of sinkscope's own: `sinkscope intervene --what NAME`, its help and its tests include
    it.

    Other packages use `sinkscope.intervention`.
    """

    def register(finder: Finder) -> Finder:
        NAMED.own[name] = finder
        return finder

    return register


def named(what: str, subject: Subject) -> Found:
    """The intervention called `what` for this model and these inputs.

    Raises `InputError` for an unknown name, and if there is nothing to act on.
    """
    if what not in NAMED:
        raise unknown("intervention", what, NAMED)
    return NAMED[what](subject)


def _massive(subject: Subject) -> tuple[tuple[Entry, ...], str]:
    """All massive activations; if there is none, the one that comes closest, and the remark says so."""
    activations = largest_activations(subject.model, subject.inputs, CANDIDATES, subject.batch_size)
    massive = [activation for activation in activations if activation.is_massive()]
    shown = massive or activations[:1]
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
    sinks, heads, remark = _heads(subject)
    all_heads = every_head(unwrapped(subject.model))
    against = control_named(subject.control, subject.model, subject.inputs, subject.batch_size)
    others = against.remaining(heads, all_heads)
    too = sum(head in sinks for head in others)
    control = f"{against.describe()}, of {len(others)} that remain ({too} of them sinks too)"
    return Found(ZeroHeads(heads, against=against), remark, control=control)


def _heads(subject: Subject) -> tuple[tuple[Head, ...], tuple[Head, ...], str]:
    """All sink heads of the model, the heads to zero, and these in words."""
    received = subject.received()
    if subject.heads is not None:
        if subject.layers is not None or subject.strongest is not None:
            raise InputError("give heads, or the strongest sinks of some layers, not both")
        heads = tuple((int(layer), int(head)) for layer, head in subject.heads)
        _check_exist("head", map(_dotted, heads), map(_dotted, every_head(unwrapped(subject.model))))
        try:
            sinks = sink_heads(subject.model, received, subject.epsilon, subject.position)
        except InputError:  # no head is a sink
            sinks = ()
        return sinks, heads, f"{_listed(heads)}; {sum(head in sinks for head in heads)} of them sinks"
    sinks = sink_heads(subject.model, received, subject.epsilon, subject.position)
    heads, count = sinks, f"of {len(sinks)} sink heads"
    if subject.layers is not None:
        _check_exist("layer", subject.layers, sorted({layer for layer, _ in every_head(unwrapped(subject.model))}))
        heads = tuple(head for head in sinks if head[0] in subject.layers)
        if not heads:
            having = ", ".join(str(layer) for layer in sorted({layer for layer, _ in sinks}))
            asked = ", ".join(map(str, subject.layers))
            raise InputError(f"no head of layers {asked} is a sink; the layers that have some: {having}")
    if subject.strongest is not None:
        if subject.strongest < 1:
            raise InputError(f"strongest = {subject.strongest}: expected at least 1")
        heads = heads[: subject.strongest]
    return sinks, heads, _listed(heads) + (f", {count}" if len(heads) < len(sinks) else "")


def _check_exist(what: str, chosen: Iterable[object], existing: Iterable[object]) -> None:
    there = list(existing)
    for absent in (one for one in chosen if one not in there):
        raise InputError(f"{what} {absent} does not exist: the model's attention has {there[0]} to {there[-1]}")


def _dotted(head: Head) -> str:
    return f"{head[0]}.{head[1]}"


def _listed(heads: Sequence[Head]) -> str:
    pairs = ", ".join(map(_dotted, heads[:CANDIDATES]))
    more = f" and {len(heads) - CANDIDATES} more" if len(heads) > CANDIDATES else ""
    return f"{len(heads)} head{'' if len(heads) == 1 else 's'} (layer.head): {pairs}{more}"


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
    protected = (subject.position,) if subject.protect_sink else ()
    numbers = ", ".join(map(str, subject.bands))
    kept = f"position {subject.position} keeps its stream" if protected else "in every token's stream"
    return Found(SuppressBands(tuple(subject.bands), protected), f"bands {numbers} of 20, {kept}")
