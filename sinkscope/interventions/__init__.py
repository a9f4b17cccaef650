"""Interventions: change a model for as long as a block lasts, next to a random control of the same budget."""

from sinkscope.interventions.bands import SuppressBands
from sinkscope.interventions.effects import effect
from sinkscope.interventions.finding import MassiveActivation, largest_activations, onset_depth, sink_heads
from sinkscope.interventions.heads import ZeroHeads
from sinkscope.interventions.intervention import All, Intervention
from sinkscope.interventions.outcome import Effect, Outcome
from sinkscope.interventions.positions import ReplacePosition, SwapPositions
from sinkscope.interventions.residual import RemoveContribution, SetActivations, mean_values
from sinkscope.interventions.sensitivity import perturbation_spread
from sinkscope.interventions.visibility import FirstTokenView, ForbidSink

__all__ = [
    "All",
    "Effect",
    "FirstTokenView",
    "ForbidSink",
    "Intervention",
    "MassiveActivation",
    "Outcome",
    "RemoveContribution",
    "ReplacePosition",
    "SetActivations",
    "SuppressBands",
    "SwapPositions",
    "ZeroHeads",
    "effect",
    "largest_activations",
    "mean_values",
    "onset_depth",
    "perturbation_spread",
    "sink_heads",
]
