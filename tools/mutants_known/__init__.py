"""The mutants: lines that somebody could get wrong, with the tests that must notice, a file for each room."""

from tools.mutants_known import attention, claims, hooks, interventions, probes, training
from tools.mutants_known.mutant import Mutant as Mutant

MUTANTS = tuple(
    mutant for room in (attention, hooks, probes, interventions, training, claims) for mutant in room.MUTANTS
)
