"""The mutants: lines that somebody could get wrong, with the tests that must notice, a file for each room."""

from tools.mutants_known import attention, claims, experiments, hooks, interventions, probes, quantization, training
from tools.mutants_known.mutant import Mutant as Mutant

ROOMS = (attention, hooks, probes, interventions, quantization, training, claims, experiments)
MUTANTS = tuple(mutant for room in ROOMS for mutant in room.MUTANTS)
