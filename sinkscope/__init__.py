"""The instrument for attention sinks in transformers: measure them, train models in which they emerge, explain them.

Importing this package defines names and nothing more; what stands behind a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_ROOMS = (
    "statistics",
    "grids",
    "sinks",
    "attention",
    "measurement",
    "interventions",
    "caches",
    "model",
    "data",
    "quantization",
    "trials",
    "checks",
    "training",
    "experiments",
    "report",
)

_BEFORE = (
    "calibration",
    "evaluate",
    "probes",
    "measuring",
    "measurements",
    "metrics",
    "ranks",
    "spectral",
    "survey",
)  # rooms of before, for one release

_HOME = {
    "measure": "sinkscope.measurement",
    "observe": "sinkscope.measurement",
    "Measurement": "sinkscope.measurement",
    "compare": "sinkscope.measurement",
    "check": "sinkscope.checks",
    "export": "sinkscope.checks",
    "find_tokens": "sinkscope.measurement.evidence",
    "AttentionReceived": "sinkscope.measurement",
    "EntriesReceived": "sinkscope.measurement",
    "SlotReceived": "sinkscope.measurement",
    "HiddenNorms": "sinkscope.measurement",
    "QueryKeyValueNorms": "sinkscope.measurement",
    "QueryKeyAngles": "sinkscope.measurement",
    "GradientNorms": "sinkscope.measurement",
    "fold": "sinkscope.interventions",
    "load": "sinkscope.interventions",
    "attach": "sinkscope.model",
    "detach": "sinkscope.model",
    "trainable_only": "sinkscope.model",
    "train": "sinkscope.training",
    "write_report": "sinkscope.report.writing",
    "SinkCallback": "sinkscope.training",
    "StreamingCache": "sinkscope.caches",
    "evicting": "sinkscope.caches",
    "InputError": "sinkscope.errors",
    "operation": "sinkscope.attention.registering",
    "observer": "sinkscope.measurement.observers.observer",
    "intervention": "sinkscope.interventions.registering",
    "policy": "sinkscope.caches.registering",
    "scheme": "sinkscope.quantization.schemes",
    "question": "sinkscope.experiments.registries",
    "task": "sinkscope.experiments.registries",
}

__all__ = ["__version__", *_ROOMS, *_HOME]

if TYPE_CHECKING:
    from sinkscope import attention as attention
    from sinkscope import caches as caches
    from sinkscope import checks as checks
    from sinkscope import data as data
    from sinkscope import experiments as experiments
    from sinkscope import grids as grids
    from sinkscope import interventions as interventions
    from sinkscope import measurement as measurement
    from sinkscope import model as model
    from sinkscope import quantization as quantization
    from sinkscope import report as report
    from sinkscope import sinks as sinks
    from sinkscope import statistics as statistics
    from sinkscope import training as training
    from sinkscope import trials as trials
    from sinkscope.attention.registering import operation as operation
    from sinkscope.caches import StreamingCache as StreamingCache
    from sinkscope.caches import evicting as evicting
    from sinkscope.caches.registering import policy as policy
    from sinkscope.checks import check as check
    from sinkscope.checks import export as export
    from sinkscope.errors import InputError as InputError
    from sinkscope.experiments.registries import question as question
    from sinkscope.experiments.registries import task as task
    from sinkscope.interventions import fold as fold
    from sinkscope.interventions import load as load
    from sinkscope.interventions.registering import intervention as intervention
    from sinkscope.measurement import AttentionReceived as AttentionReceived
    from sinkscope.measurement import EntriesReceived as EntriesReceived
    from sinkscope.measurement import GradientNorms as GradientNorms
    from sinkscope.measurement import HiddenNorms as HiddenNorms
    from sinkscope.measurement import Measurement as Measurement
    from sinkscope.measurement import QueryKeyAngles as QueryKeyAngles
    from sinkscope.measurement import QueryKeyValueNorms as QueryKeyValueNorms
    from sinkscope.measurement import SlotReceived as SlotReceived
    from sinkscope.measurement import compare as compare
    from sinkscope.measurement import measure as measure
    from sinkscope.measurement import observe as observe
    from sinkscope.measurement.evidence import find_tokens as find_tokens
    from sinkscope.measurement.observers.observer import observer as observer
    from sinkscope.model import attach as attach
    from sinkscope.model import detach as detach
    from sinkscope.model import trainable_only as trainable_only
    from sinkscope.quantization.schemes import scheme as scheme
    from sinkscope.report.writing import write_report as write_report
    from sinkscope.training import SinkCallback as SinkCallback
    from sinkscope.training import train as train
else:

    def __getattr__(name: str) -> object:
        if name in _ROOMS or name in _BEFORE:
            return importlib.import_module(f"sinkscope.{name}")
        if name == "effect":  # the name of before of `trials.changed`, for one release; it warns when it is called
            return importlib.import_module("sinkscope.trials.changes").effect
        if name not in _HOME:
            raise AttributeError(f"module 'sinkscope' has no attribute '{name}'", name=name, obj=sys.modules[__name__])
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
