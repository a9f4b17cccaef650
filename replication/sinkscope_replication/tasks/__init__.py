"""The jobs of the study, registered as tasks: training on text, and synthetic tasks, which need seconds to minutes."""

import sinkscope
from sinkscope_replication.tasks.backcopy import Backcopy
from sinkscope_replication.tasks.backcopy_minimal import Minimal
from sinkscope_replication.tasks.conditional import TriggerConditional
from sinkscope_replication.training import StudyTraining

for kind in (Backcopy, Minimal, TriggerConditional, StudyTraining):
    sinkscope.task(kind)

__all__ = ["Backcopy", "Minimal", "StudyTraining", "TriggerConditional"]
