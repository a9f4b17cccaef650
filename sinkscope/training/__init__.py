"""From a recipe to a trained model: recipes, the training run, and the attention sink as a metric of any `Trainer`."""

from sinkscope.training.allocator import keep_freed_memory
from sinkscope.training.loading import load_recipe
from sinkscope.training.recipe import Recipe
from sinkscope.training.recipes import RECIPES
from sinkscope.training.run import Run
from sinkscope.training.session import train
from sinkscope.training.sink import SinkCallback, sink_metrics
from sinkscope.training.store import TrainingDiverged

__all__ = [
    "RECIPES",
    "Recipe",
    "Run",
    "SinkCallback",
    "TrainingDiverged",
    "keep_freed_memory",
    "load_recipe",
    "sink_metrics",
    "train",
]
