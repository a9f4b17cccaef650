"""The Bigram-Backcopy task as a job: a law, a recipe, and the training session that every recipe has [X26]."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, ValidationError, model_validator
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.data import DataConfig, PreparedData
from sinkscope.errors import InputError, unknown
from sinkscope.experiments.observing.settled import training_metrics
from sinkscope.experiments.tasks.of_law import OfLaw
from sinkscope.experiments.tasks.reading import Named, Reading
from sinkscope.experiments.tasks.sequences import Sequences, tokenizer_of
from sinkscope.experiments.tasks.touching import touched
from sinkscope.invalid import in_one_line
from sinkscope.training import LAB, AdamW, Constant, Kind, Recipe, Run, changed, train_kind

TASK = "bigram_backcopy"
VALIDATION = 256  # sequences on which losses are taken and heads are read


class Backcopy(OfLaw):
    """A `recipe` whose text is drawn from a law (`law_of`) instead of a corpus; its field `data` is not used.

    Sequences have the recipe's `context`, the BOS included, and none is met twice. Wrong values raise `InputError` as a
    recipe's do.
    """

    decide_law: ClassVar[tuple[str, ...]] = (*OfLaw.decide_law, "copying")

    task: Literal["bigram_backcopy"] = "bigram_backcopy"
    copying: float = Field(default=1.0, ge=0, le=1)
    recipe: Recipe

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise in_one_line(error, Backcopy, TASK) from error

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
        return {"task": TASK, "start": "torch", "law_sha256": self.law.sha256(), **self.told}

    def train(self, out: Path, device: str = "auto") -> Run:
        """Train, or go on with, the run. Raises as `sinkscope.train` does."""
        return train_kind(self._kind(), self.recipe, out, resume=True, progress=False, device=device)

    def reading(self) -> Reading:
        """The validation sequences, which are the same for all seeds."""
        drawn = self._validation()
        return Reading(self.law, torch.stack([drawn[item]["input_ids"] for item in range(len(drawn))]))

    def _validation(self) -> Sequences:
        return Sequences(self.law, VALIDATION, self.recipe.context, "validation", 0)

    def _kind(self) -> Kind:
        return Kind(
            model=_model,
            data=self._data,
            sink_tokens=self.recipe.context,
            metrics=self.reading().logged,
            about={},
        )

    def _data(self, recipe: Recipe) -> PreparedData:
        count = recipe.steps * recipe.batch_size
        drawn = Sequences(self.law, count, recipe.context, "training", recipe.seed)
        return PreparedData(tokenizer_of(self.law), drawn, self._validation(), self.fingerprint())


def _model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The lab model with torch's own starting values, as in the source's code: embeddings and positions N(0, 1).

    The lab's start some twelve times smaller, beneath what the head writes. Then the residual stream does not tell the
    token, and the head has to: it attends to the token itself where it should rest.
    """
    model = LAB.model(recipe, tokenizer)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    return model


def backcopy(scale: str, changes: Mapping[str, Any]) -> Backcopy:
    """The task at a scale of `SCALES`, with fields changed: its own by their names, the recipe's dotted as everywhere.

    Raises `InputError` for unknown scales, fields and values.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    base = SCALES[scale]
    own = {name: value for name, value in changes.items() if name in Backcopy.model_fields}
    others = {name: value for name, value in changes.items() if name not in own}
    fields = base.model_dump(mode="json") | own
    return Backcopy(**{**fields, "recipe": changed(base.recipe, others).model_dump(mode="json")})


def metrics(run: Run) -> Named:
    """What is known of a finished run: what its log tells, `Reading`'s numbers, and those of `touched`.

    Losses in nats; `sink_0` is the sink rate at the BOS (ε = 0.3, all tokens), in percent.
    """
    record = run.record
    told = {name: record["data"][name] for name in Backcopy.decide_law}
    reading = Backcopy(recipe=record["recipe"], **told).reading()
    yield from training_metrics(run)
    yield "sink_0", float(record["results"]["sink/position_0"])
    yield from reading.all(run.model).items()
    yield from touched(reading, run.model)


def _scaled(name: str, width: int, context: int, batch_size: int, steps: int, lr: float, **more: Any) -> Backcopy:
    return Backcopy(
        recipe=Recipe(
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
    )


# The paper's sizes are 257, 512 and 10,000 at a rate of 3e-4; nano's rate suits its width and its few steps.
SCALES: dict[str, Backcopy] = {
    "nano": _scaled("backcopy-nano", 64, 32, 64, 400, 3e-3, eval_every=25, save_every=100, log_every=25),
    "mini": _scaled("backcopy-mini", 256, 128, 512, 3000, 1e-3, eval_every=50, save_every=500),
    "paper": _scaled("backcopy-paper", 256, 257, 512, 10_000, 3e-4, eval_every=100, save_every=1000),
}
