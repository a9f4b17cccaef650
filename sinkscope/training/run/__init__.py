"""A run's folder and its life: record, metric log, checkpoints, lock."""

from sinkscope.files import LOCK, Busy, locked
from sinkscope.model.checkpoints import CHECKPOINTS, MODEL, checkpoint_step, list_checkpoints
from sinkscope.training.run.folder import PROVENANCE, RECIPE, Run, TrainingDiverged, open_run, settled
from sinkscope.training.run.log import LOG, LogWriter, cut, read_rows
from sinkscope.training.run.record import RECORD, Record, host, read_record, versions

__all__ = [
    "CHECKPOINTS",
    "LOCK",
    "LOG",
    "MODEL",
    "PROVENANCE",
    "RECIPE",
    "RECORD",
    "Busy",
    "LogWriter",
    "Record",
    "Run",
    "TrainingDiverged",
    "checkpoint_step",
    "cut",
    "host",
    "list_checkpoints",
    "locked",
    "open_run",
    "read_record",
    "read_rows",
    "settled",
    "versions",
]
