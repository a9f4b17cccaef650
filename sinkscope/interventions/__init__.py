"""Interventions: change a running model inside a context, with random controls of the same budget."""

from sinkscope.interventions import registering as registering  # so that entry points of interventions are taken
from sinkscope.interventions.bands import SuppressBands as SuppressBands
from sinkscope.interventions.finding import MassiveActivation as MassiveActivation
from sinkscope.interventions.finding import largest_activations as largest_activations
from sinkscope.interventions.finding import onset_depth as onset_depth
from sinkscope.interventions.finding import sink_heads as sink_heads
from sinkscope.interventions.folding import Constants as Constants
from sinkscope.interventions.folding import FoldSink as FoldSink
from sinkscope.interventions.folding import Form as Form
from sinkscope.interventions.folding import constants as constants
from sinkscope.interventions.folding import fold as fold
from sinkscope.interventions.head_controls import AnyHeads as AnyHeads
from sinkscope.interventions.head_controls import HeadControl as HeadControl
from sinkscope.interventions.head_controls import SameLayer as SameLayer
from sinkscope.interventions.head_controls import SameNorm as SameNorm
from sinkscope.interventions.head_controls import head_norms as head_norms
from sinkscope.interventions.heads import MatchVariance as MatchVariance
from sinkscope.interventions.heads import ZeroHeads as ZeroHeads
from sinkscope.interventions.intervention import All as All
from sinkscope.interventions.intervention import Intervention as Intervention
from sinkscope.interventions.named import NAMED as NAMED
from sinkscope.interventions.named import Found as Found
from sinkscope.interventions.named import Subject as Subject
from sinkscope.interventions.named import named as named
from sinkscope.interventions.named import named_as as named_as
from sinkscope.interventions.positions import ReplacePosition as ReplacePosition
from sinkscope.interventions.positions import SwapPositions as SwapPositions
from sinkscope.interventions.residual import MuteFeedForward as MuteFeedForward
from sinkscope.interventions.residual import RemoveContribution as RemoveContribution
from sinkscope.interventions.residual import SetActivations as SetActivations
from sinkscope.interventions.residual import SetReadings as SetReadings
from sinkscope.interventions.residual import mean_values as mean_values
from sinkscope.interventions.residual import readers as readers
from sinkscope.interventions.reweigh import ACT as ACT
from sinkscope.interventions.reweigh import HeadChange as HeadChange
from sinkscope.interventions.reweigh import InRows as InRows
from sinkscope.interventions.reweigh import Reweigh as Reweigh
from sinkscope.interventions.reweigh import Temperature as Temperature
from sinkscope.interventions.reweigh import VisualRedistribution as VisualRedistribution
from sinkscope.interventions.reweigh import keep as keep
from sinkscope.interventions.reweigh import kept as kept
from sinkscope.interventions.reweigh import load as load
from sinkscope.interventions.reweigh import load_calibrated as load_calibrated
from sinkscope.interventions.reweigh import release as release
from sinkscope.interventions.reweigh import save_calibrated as save_calibrated
from sinkscope.interventions.sensitivity import perturbation_spread as perturbation_spread
from sinkscope.interventions.sink import MeanSink as MeanSink
from sinkscope.interventions.sink import MuteSink as MuteSink
from sinkscope.interventions.sink import SwapSink as SwapSink
from sinkscope.interventions.sink import TrimMass as TrimMass
from sinkscope.interventions.targets import Targets as Targets
from sinkscope.interventions.tokens import ExtraToken as ExtraToken
from sinkscope.interventions.tokens import Rearrange as Rearrange
from sinkscope.interventions.visibility import FirstTokenView as FirstTokenView
from sinkscope.interventions.visibility import ForbidSink as ForbidSink
from sinkscope.interventions.visibility import HideSink as HideSink
from sinkscope.interventions.visibility import OneKeyView as OneKeyView
from sinkscope.registry import moved as _moved

__getattr__ = _moved(
    __name__, {"effect": "sinkscope.trials.changed", "Effect": "sinkscope.trials.Trial"}
)  # old names, for one release
