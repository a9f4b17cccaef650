"""The study's training job: the same runs as sinkscope's own, with more metrics of each.

Questions name it as `FromRecipe(job="replication")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sinkscope.experiments import LabTraining, Metrics, training_metrics, training_windows, validation_windows
from sinkscope.experiments.readings import TOKENS, at_first, columns
from sinkscope.training import Recipe, Run
from sinkscope_replication.observing.other_texts import other_texts
from sinkscope_replication.observing.readings import readings
from sinkscope_replication.observing.streamed import long_texts, streamed


class StudyTraining(LabTraining):
    """A recipe, and the metrics that the study reads of the model that it trains."""

    kind: ClassVar[str] = "replication"
    observed: ClassVar[str] = "observed-replication.json"
    layout: ClassVar[int] = 10
    # These lack masses, lifts and heads; streams; angles of keys; what heads write while on the sink; training windows;
    # single conversations.
    older: ClassVar[tuple[int, ...]] = (4, 5, 6, 7, 8, 9)

    titles: ClassVar[Mapping[str, str]] = {
        "resting": "norm of a head's output on the sink over elsewhere",
        "output_norm": "norm of a head's output",
        "zeroing": "rise of the loss with heads zeroed (nats)",
        "relative_spread": "how far tokens lie apart, as a share of their length",
        "relative_pair_distance": "distance of the last two tokens, as a share of their length",
        "perturbation": "change of later tokens when one is changed",
        "stream_loss": "loss after the first context of a stream (nats)",
        "key_angle": "angle of the sink's key, over a random direction's",
    }

    @classmethod
    def metrics(cls, run: Run) -> Metrics:
        """All metrics of `Observed` and of `observing`: on the first 64 tokens of up to 100 validation windows as the
        model was trained on them, on other inputs, on other texts, and in streams.

        A model that was trained on a share of the text is also read on windows from it: `sink_0/training` and
        `sink_mass/training`.
        """
        yield from training_metrics(run)
        recipe, windows = Recipe(**run.record["recipe"]), validation_windows(run)
        yield from readings(run.model, windows)
        if recipe.data.train_share < 1:
            yield from at_first("training", run.model, columns(training_windows(run), slice(TOKENS)))
        yield from other_texts(run.model, run.tokenizer, recipe.data, windows)
        yield from streamed(run.model, long_texts(run.tokenizer, recipe.data, recipe.context), recipe.context)
