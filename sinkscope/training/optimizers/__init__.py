"""Optimizers as values; each builds itself for a model."""

from typing import Annotated

from pydantic import Field

from sinkscope.training.optimizers.base import OptimizerPart
from sinkscope.training.optimizers.elementwise import SGD, Adam, AdamW, RMSProp
from sinkscope.training.optimizers.muon import Muon
from sinkscope.training.optimizers.ortho_adam import OrthoAdam

AnyOptimizer = Annotated[AdamW | Adam | SGD | RMSProp | OrthoAdam | Muon, Field(discriminator="name")]
OPTIMIZERS: dict[str, type[OptimizerPart]] = {
    part.model_fields["name"].default: part for part in (AdamW, Adam, SGD, RMSProp, OrthoAdam, Muon)
}

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "AnyOptimizer",
    "Muon",
    "OptimizerPart",
    "OrthoAdam",
    "RMSProp",
]
