"""From a recipe to a trained model: recipes, the training run, and the attention sink as a metric of any `Trainer`."""

from sinkscope.model.memory import keep_freed_memory
from sinkscope.training.cost import MeasuredStep, measured_step
from sinkscope.training.distributed.processes import ReportedElsewhere, joined
from sinkscope.training.kinds import LAB, Kind, fingerprint
from sinkscope.training.loading import changed, load_recipe, read_fields
from sinkscope.training.machine import preserved_rng, require_compiler, resolved_device
from sinkscope.training.optimizers import AdamW
from sinkscope.training.recipe import SAID_BY_FINGERPRINT, WITHOUT_INFLUENCE, Recipe
from sinkscope.training.recipes import RECIPES
from sinkscope.training.run import (
    CHECKPOINTS,
    LOG,
    MODEL,
    RECORD,
    Busy,
    Record,
    Run,
    TrainingDiverged,
    checkpoint_step,
    host,
    list_checkpoints,
    locked,
    read_record,
    read_rows,
    settled,
    versions,
)
from sinkscope.training.schedule import Constant
from sinkscope.training.session import inputs_of, spread, train, train_kind
from sinkscope.training.sink import SinkCallback, SinkLogger, gradient_metrics, sink_metrics

__all__ = [
    "CHECKPOINTS",
    "LAB",
    "LOG",
    "MODEL",
    "RECIPES",
    "RECORD",
    "SAID_BY_FINGERPRINT",
    "WITHOUT_INFLUENCE",
    "AdamW",
    "Busy",
    "Constant",
    "Kind",
    "MeasuredStep",
    "Recipe",
    "Record",
    "ReportedElsewhere",
    "Run",
    "SinkCallback",
    "SinkLogger",
    "TrainingDiverged",
    "changed",
    "checkpoint_step",
    "fingerprint",
    "gradient_metrics",
    "host",
    "inputs_of",
    "joined",
    "keep_freed_memory",
    "list_checkpoints",
    "load_recipe",
    "locked",
    "measured_step",
    "preserved_rng",
    "read_fields",
    "read_record",
    "read_rows",
    "require_compiler",
    "resolved_device",
    "settled",
    "sink_metrics",
    "spread",
    "train",
    "train_kind",
    "versions",
]
