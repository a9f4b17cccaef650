"""An intervention: the sink's residual stream behind the first block, made smaller."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import sinkscope as ss
from sinkscope.hooks import OpenStream
from sinkscope.interventions import Found, Intervention, Subject
from sinkscope.interventions.residual import other_positions


@dataclass(frozen=True)
class ScaleToken(Intervention):
    """h^(depth)[position] ← factor · h^(depth)[position]. Control: another position."""

    depth: int
    position: int
    factor: float = 0.5

    def attach(self, model, stack):
        opened = OpenStream(model, stack)

        def scaled(hidden):
            chosen = opened.at((self.position,), hidden)
            return torch.where(chosen[..., None], self.factor * hidden, hidden)

        opened.edit(self.depth, scaled)

    def control(self, generator, model, inputs):
        return ScaleToken(self.depth, *other_positions(generator, model, inputs, (self.position,)), self.factor)

    @property
    def positions_named(self):
        return (self.position,)


@ss.intervention
def toy_halve(subject: Subject) -> Found:
    return Found(ScaleToken(1, subject.position), f"position {subject.position} behind the first block, halved")
