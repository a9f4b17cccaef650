"""`python -m tools.nano_models encoder|hybrid`: train the small encoder and the small hybrid that are shipped."""

from __future__ import annotations

import argparse
from pathlib import Path

from sinkscope.data import DataConfig
from sinkscope.errors import unknown
from sinkscope.model.memory import keep_freed_memory
from sinkscope.training.kinds import ENCODER, HYBRID, Kind
from sinkscope.training.optimizers import AdamW
from sinkscope.training.recipe import Recipe
from sinkscope.training.recipes import RECIPES
from sinkscope.training.run import Run
from sinkscope.training.schedule import Constant
from sinkscope.training.session import train_kind

SIZES = RECIPES["nano"].model

KINDS: dict[str, tuple[Kind, Recipe]] = {
    "encoder": (
        ENCODER,
        Recipe(
            name="nano-encoder",
            steps=1500,
            batch_size=32,
            context=128,
            model=SIZES,
            optimizer=AdamW(lr=2e-3),
            schedule=Constant(warmup=50),
            data=DataConfig(corpus="python", tokenizer="bpe:2048", bos="none"),
        ),
    ),
    "hybrid": (
        HYBRID,
        Recipe(
            name="nano-hybrid",
            steps=1000,
            batch_size=64,
            context=64,  # backward through transformers' own scan is quadratic in it
            model=SIZES,
            optimizer=AdamW(lr=4e-3),
            schedule=Constant(warmup=50),
            data=DataConfig(corpus="python", tokenizer="bpe:2048", bos="fixed"),
        ),
    ),
}


def train_nano(name: str, out: str | Path = "runs", *, steps: int | None = None) -> Run:
    """Train one of `KINDS` in a folder under `out`, going on where an interrupted training of it stopped.

    `steps` may change how long. Raises `InputError` for an unknown name, and as `train` does.
    """
    if name not in KINDS:
        raise unknown("nano model", name, KINDS)
    kind, recipe = KINDS[name]
    if steps is not None:
        recipe = Recipe(**{**recipe.model_dump(), "steps": steps})
    return train_kind(kind, recipe, out, resume=True, device="cpu")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(KINDS))
    parser.add_argument("--out", default="runs", help="parent folder of runs")
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    given = parser.parse_args()
    keep_freed_memory()
    print(train_nano(given.name, given.out, steps=given.steps).path)
