"""From a recipe to a finished run, through interruptions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils.data import Dataset, Subset
from transformers import set_seed

from sinkscope.data import PreparedData, TrainingOrder
from sinkscope.errors import InputError, unknown
from sinkscope.files import write_json, writing
from sinkscope.training import checkpoints
from sinkscope.training.kinds import LAB, Kind
from sinkscope.training.loading import load_recipe
from sinkscope.training.log import LOG, cut
from sinkscope.training.progress import LiveProgress, console, without_bars
from sinkscope.training.recipe import Recipe
from sinkscope.training.record import Record, Status
from sinkscope.training.rows import RowWriter
from sinkscope.training.run import CHECKPOINTS, MODEL, PROVENANCE, Run
from sinkscope.training.sink import SinkCallback
from sinkscope.training.store import RECIPE, TrainingDiverged, alone, enter, settled
from sinkscope.training.trainer import DEVICES, RecipeTrainer

SINK_SAMPLES = 100


def train(
    recipe: Recipe | str | Path,
    out: str | Path = "runs/",
    *,
    resume: bool = False,
    progress: bool = True,
    device: str = "auto",
) -> Run:
    """Train a recipe (a value, a name or a YAML file) in a folder of its own under `out`; return the run.

    The folder's name holds the hash of what decides the numbers, so doing a run twice is doing it once: a finished
    one is returned as it is. An interrupted one goes on from its newest whole checkpoint with `resume=True`; on CPU
    in fp32 its weights are then bit for bit those of an undisturbed run. Every `eval_every` steps the loss on fixed
    validation windows and the attention sink on the first 64 tokens of up to 100 of them are logged (`log.jsonl`).
    `device` is "auto" (a GPU where there is one) or "cpu". Seeds the global random generators.

    Raises `InputError` for bad input, a run that was interrupted (without `resume`), one that another process is
    training, a folder that holds another configuration or cannot be written; `TrainingDiverged` when the loss stops
    being finite.
    """
    return train_kind(LAB, recipe, out, resume=resume, progress=progress, device=device)


def train_kind(
    kind: Kind,
    recipe: Recipe | str | Path,
    out: str | Path = "runs/",
    *,
    resume: bool = False,
    progress: bool = True,
    device: str = "auto",
) -> Run:
    """`train` for a kind of model; of a recipe's `model` another kind than the lab's takes the sizes alone."""
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if (Path(out) / RECIPE).exists():
        raise InputError(f"{out} is the folder of a run: expected the parent folder of runs")
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    data = kind.data(recipe)
    data = replace(data, fingerprint=data.fingerprint | kind.about)
    folder = Path(out) / recipe.folder(data.fingerprint)
    if settled(folder):
        return Run(folder)
    with alone(folder):
        if not settled(folder):
            before = enter(folder, recipe, data.fingerprint, resume=resume)
            _Session(kind, recipe, data, folder, before, device=device, progress=progress).run()
    return Run(folder)


class _Session:
    """One sitting at a run, from taking up what is there to the saved model."""

    def __init__(
        self,
        kind: Kind,
        recipe: Recipe,
        data: PreparedData,
        folder: Path,
        before: Mapping[str, Any],
        *,
        device: str,
        progress: bool,
    ) -> None:
        self.kind, self.recipe, self.data, self.folder = kind, recipe, data, folder
        self.notes: list[str] = list(before.get("notes", ()))
        self.screen = console()
        self.checkpoint = self._take_up()
        step = -1 if self.checkpoint is None else checkpoints.step_of(self.checkpoint)
        self.rows = RowWriter(
            folder / LOG, tokens_per_step=recipe.batch_size * recipe.context, kept=cut(folder / LOG, step)
        )
        set_seed(recipe.seed)
        self.model = kind.model(recipe, data.tokenizer)
        self.trainer = self._trainer(device)
        self.bar = LiveProgress(folder.name.rpartition("-")[0], self.rows, self.screen) if progress else None
        self.record = Record.of(recipe, data.fingerprint, self.model, self.trainer.args.device)
        self.record.started = before.get("started", self.record.started)
        self.record.notes = self.notes

    def run(self) -> None:
        """Train to the end; whatever happens, the record says so."""
        self._write_record("running")
        try:
            with without_bars():
                self._train()
                self._save_model()
        except TrainingDiverged as error:
            self._write_record("diverged", str(error), error.step)
            raise
        except BaseException as error:
            with suppress(InputError):  # a full disk must not hide why the run failed
                self._write_record("failed", f"{type(error).__name__}: {error}")
            raise
        self._write_record("finished")

    def _take_up(self) -> Path | None:
        """The checkpoint to go on from; None at the beginning."""
        known = len(self.notes)
        checkpoint = checkpoints.newest_whole(self.folder / CHECKPOINTS, self._announce)
        if checkpoint is not None:
            self._announce(f"resumed from {checkpoint.name}")
        elif len(self.notes) > known:
            self._announce("no whole checkpoint is left: started from the beginning")
        return checkpoint

    def _announce(self, note: str) -> None:
        self.notes.append(note)
        self.screen.print(f"{self.folder.name}: {note}", soft_wrap=True)

    def _trainer(self, device: str) -> RecipeTrainer:
        recipe, kind = self.recipe, self.kind
        validation = self._sequences(self.data.validation)
        scored = spread(validation, recipe.validation_windows, multiple_of=recipe.micro_batch or recipe.batch_size)
        trainer = RecipeTrainer(
            recipe,
            model=self.model,
            train=self._examples(
                self._sequences(TrainingOrder(self.data.train, recipe.batch_size, recipe.steps, recipe.seed))
            ),
            validation=self._examples(scored, validating=True),
            folder=self.folder / CHECKPOINTS,
            device=device,
            before_saving=self.rows.flush,
        )
        probed = spread(validation, SINK_SAMPLES)
        inputs = torch.stack([probed[index]["input_ids"][: kind.sink_tokens] for index in range(len(probed))])
        trainer.add_callback(self.rows)
        trainer.add_callback(SinkCallback(trainer, inputs, every=recipe.eval_every))
        return trainer

    def _sequences(self, windows: Dataset) -> Dataset:
        return self.kind.sequences(windows, self.data.tokenizer, self.recipe.seed)

    def _examples(self, sequences: Dataset, *, validating: bool = False) -> Dataset:
        examples = self.kind.objective(sequences, self.data.tokenizer, self.recipe.seed)
        return self.recipe.loss.examples(examples, validating=validating)

    def _train(self) -> None:
        if self.bar is not None:
            self.trainer.add_callback(self.bar)
        try:
            self.trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
        finally:
            if self.bar is not None:
                self.bar.stop()

    def _save_model(self) -> None:
        self._update_record("finished")
        self.model.config.use_cache = True  # Trainer switched it off, and generation would stay slow
        try:
            with writing(self.folder / MODEL) as draft:
                self.model.save_pretrained(draft)
                self.data.tokenizer.save_pretrained(draft)
                write_json(draft / PROVENANCE, asdict(self.record))
        except SafetensorError as error:
            raise InputError(f"cannot write {self.folder / MODEL}: {error}") from error

    def _write_record(self, status: Status, reason: str | None = None, step: int | None = None) -> None:
        self._update_record(status, reason, step)
        self.record.write(self.folder)

    def _update_record(self, status: Status, reason: str | None = None, step: int | None = None) -> None:
        self.record.status, self.record.reason = status, reason
        self.record.step = self.trainer.state.global_step if step is None else step
        self.record.seconds = round(self.rows.seconds, 1)
        self.record.results = {name: value for name, value in self.rows.last.items() if name not in ("step", "seconds")}


def spread(windows: Dataset, count: int, multiple_of: int = 1) -> Subset:
    """At most `count` windows, evenly over all of them (neighbours come from one document).

    Their number is a multiple of `multiple_of`, if there are so many: the mean over batches is then the mean over
    windows.
    """
    available = len(windows)  # type: ignore[arg-type]
    count = min(count, available)
    count -= count % multiple_of if count > multiple_of else 0
    return Subset(windows, [index * available // count for index in range(count)])
