"""What a hash says although no field does: corrections that changed the numbers of some recipes.

A run from before a correction is then another run, under another name, and is not taken for one of today's.
"""

from __future__ import annotations

import torch

from sinkscope.data import DataConfig, RandomTokens
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training.loss import Loss
from sinkscope.training.optimizers import AnyOptimizer, Muon
from sinkscope.training.optimizers.muon import left_to_adamw


def corrections(config: LabConfig, optimizer: AnyOptimizer, loss: Loss, data: DataConfig) -> list[str]:
    """The names of those that apply to a recipe; none to most."""
    found = []
    if any(isinstance(intervention, RandomTokens) for intervention in data.interventions):
        found.append("random tokens are labels too, and others in validation")
    if loss.prefix and data.packing == "intra_document":
        found.append("a prefix is seen in its own document alone")
    if isinstance(optimizer, Muon):
        with torch.device("meta"):
            tables = left_to_adamw(LabForCausalLM(config))
        if any(parameter.ndim == 2 for parameter in tables):
            found.append("Muon takes matrices that map activations alone")
    return found
