"""The Bigram-Backcopy task as a job: a law, a recipe, and the training session that every recipe has.

Source: Guo et al. 2024a.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.data import DataConfig, PreparedData
from sinkscope.errors import InputError
from sinkscope.experiments import Metrics, training_metrics
from sinkscope.training import LAB, AdamW, Constant, Kind, Recipe, Run, changed, train_kind
from sinkscope_replication.tasks.backcopy_ablations import ablated
from sinkscope_replication.tasks.backcopy_law import BigramTask, Sequences, tokenizer_of
from sinkscope_replication.tasks.backcopy_reading import TITLES, Reading

TASK = "bigram_backcopy"
VALIDATION = 256  # sequences on which losses are taken and heads are read


def _recipe(name: str, width: int, context: int, batch_size: int, steps: int, lr: float, **more: Any) -> Recipe:
    return Recipe(
        name=name,
        steps=steps,
        batch_size=batch_size,
        context=context,
        validation_windows=VALIDATION,
        model={
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "position": "learned",
            "norm": "layernorm",
            "ffn": "relu",
        },
        optimizer=AdamW(lr=lr, weight_decay=1e-4, betas=(0.9, 0.99), clip=None),
        schedule=Constant(warmup=0),
        **more,
    )


# The paper's sizes are 257, 512 and 10,000 at a rate of 3e-4; nano's rate suits its width and its few steps.
RECIPES = {
    "nano": _recipe("backcopy-nano", 64, 32, 64, 400, 3e-3, eval_every=25, save_every=100, log_every=25),
    "mini": _recipe("backcopy-mini", 256, 128, 512, 3000, 1e-3, eval_every=50, save_every=500),
    "paper": _recipe("backcopy-paper", 256, 257, 512, 10_000, 3e-4, eval_every=100, save_every=1000),
}


class Backcopy(BigramTask):
    """A `recipe` whose text is drawn from a law (`law_of`) instead of a corpus; its field `data` is not used.

    Sequences have the recipe's `context`, the BOS included, and none is met twice. Wrong values raise `InputError` as a
    recipe's do.
    """

    kind: ClassVar[str] = TASK
    titles: ClassVar[Mapping[str, str]] = {
        **TITLES,
        "norm_ratio": "hidden-norm ratio of the BOS",
        "output_ratio": "norm of the head's output, elsewhere / at triggers",
    }
    layout: ClassVar[int] = 3
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {scale: {"recipe": recipe} for scale, recipe in RECIPES.items()}
    law_fields: ClassVar[tuple[str, ...]] = (*BigramTask.law_fields, "copying")

    task: Literal["bigram_backcopy"] = "bigram_backcopy"
    copying: float = Field(default=1.0, ge=0, le=1)
    recipe: Recipe

    @classmethod
    def at_scale(cls, scale: str, changes: Mapping[str, Any]) -> Backcopy:
        """The task at a scale, with fields changed: its own by their names, the recipe's dotted as everywhere."""
        own = {name: value for name, value in changes.items() if name in cls.model_fields}
        others = {name: value for name, value in changes.items() if name not in own}
        return cls(**{"recipe": changed(cls.size(scale)["recipe"], others), **own})

    @model_validator(mode="after")
    def _own_data(self) -> Backcopy:
        if self.recipe.data != DataConfig():
            raise InputError(f"{TASK} draws its own sequences: leave out the recipe's field 'data'")
        return self

    @property
    def seed(self) -> int:
        return self.recipe.seed

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder, as a recipe's."""
        return self.recipe.folder(fingerprint)

    def fingerprint(self) -> dict[str, Any]:
        """What of the law decides a run's numbers, and (apart from its hash) how it was made."""
        fields = {name: getattr(self, name) for name in self.law_fields}
        return {"task": TASK, "start": "torch", "law_sha256": self.law.sha256(), **fields}

    def train(self, out: Path, device: str = "auto") -> Run:
        kind = Kind(
            model=_model, data=self._data, sink_tokens=self.recipe.context, metrics=self.reading().logged, about={}
        )
        return train_kind(kind, self.recipe, out, resume=True, progress=False, device=device)

    @classmethod
    def metrics(cls, run: Run) -> Metrics:
        """The numbers of its log and of `Reading`, and those of `ablated`.

        Losses in nats; `sink_0` is the sink rate at the BOS (ε = 0.3, all tokens), in percent.
        """
        record = run.record
        law = {name: record["data"][name] for name in cls.law_fields}
        reading = cls(recipe=record["recipe"], **law).reading()
        yield from training_metrics(run)
        yield "sink_0", float(record["results"]["sink/position_0"])
        yield from reading.all(run.model).items()
        yield from ablated(reading, run.model)

    def reading(self) -> Reading:
        """The validation sequences, which are the same for all seeds."""
        return Reading(self.law, self._validation().batch(range(VALIDATION)))

    def _validation(self) -> Sequences:
        return Sequences(self.law, VALIDATION, self.recipe.context, "validation", 0)

    def _data(self, recipe: Recipe) -> PreparedData:
        count = recipe.steps * recipe.batch_size
        drawn = Sequences(self.law, count, recipe.context, "training", recipe.seed)
        return PreparedData(tokenizer_of(self.law), drawn, self._validation(), self.fingerprint())


def _model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The lab model with torch's own starting values, as in the source's code: embeddings and positions N(0, 1).

    The lab's start some twelve times smaller, below what the head writes. Then the residual stream does not identify
    the token, and the head has to: it attends to the token itself where it should rest.
    """
    model = LAB.model(recipe, tokenizer)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    return model
