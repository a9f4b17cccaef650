"""From a recipe to a finished run, through interruptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.data import Dataset, Subset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.utils import logging

from sinkscope.data import PreparedData, TrainingOrder
from sinkscope.errors import InputError
from sinkscope.files import write_json, writing
from sinkscope.live import LiveView, bars, silent, stderr
from sinkscope.model.checkpoints import checkpoint_step
from sinkscope.training.distributed.processes import Processes, joined, uses_sharding
from sinkscope.training.kinds import LAB, Kind
from sinkscope.training.loading import load_recipe
from sinkscope.training.machine import compiling, resolved_device
from sinkscope.training.masking import Masked
from sinkscope.training.recipe import Recipe
from sinkscope.training.run import (
    CHECKPOINTS,
    LOG,
    MODEL,
    PROVENANCE,
    RECIPE,
    LogWriter,
    Record,
    Run,
    TrainingDiverged,
    checkpoints,
    cut,
    locked,
    open_run,
    settled,
)
from sinkscope.training.run.heads import HeadNumbers
from sinkscope.training.run.record import Status
from sinkscope.training.sink import SinkCallback
from sinkscope.training.trainer import RecipeTrainer
from sinkscope.training.validation import require_scored


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' own bars (one per file it writes) off the terminal."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class LiveProgress(TrainerCallback):
    """A bar on a terminal (step, losses, sink rate, tokens/s, time left); elsewhere a line per evaluation."""

    def __init__(self, name: str, rows: LogWriter, screen: Console) -> None:
        self.name = name
        self.rows = rows
        left = TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(min_width=7))
        self.bars = bars(TextColumn("{task.fields[values]}"), left)
        self.task = self.bars.add_task(name, values="", start=False)
        self.watch: LiveView[TrainerState] = LiveView(self.view, self.lines, screen)

    def view(self, state: TrainerState) -> Progress:
        self.bars.update(self.task, completed=state.global_step, values=summary(self.rows.last))
        return self.bars

    def lines(self, state: TrainerState) -> Iterator[tuple[int, str]]:
        values = summary({**self.rows.last, **self.rows.pending})
        yield state.global_step, f"{self.name}: step {state.global_step}/{state.max_steps} {values}"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.bars.update(self.task, completed=state.global_step, total=state.max_steps)
        self.bars.start_task(self.task)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.watch.screen.is_terminal:
            self.watch(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.watch(state)


def summary(row: dict[str, Any]) -> str:
    """The newest values in a few words."""
    shown = {
        "loss": "loss {:.2f}",
        "validation_loss": "val {:.2f}",
        "sink/position_0": "sink {:.1f}%",
        "tokens_per_second": "{:,.0f} tok/s",
    }
    return " ".join(form.format(row[name]) for name, form in shown.items() if row.get(name) is not None)


SINK_SAMPLES = 100
MODEL_INPUTS = ("input_ids", "document_ids")


def train(
    recipe: Recipe | str | Path,
    out: str | Path = "runs/",
    *,
    resume: bool = False,
    progress: bool = True,
    device: str = "auto",
    parallel: str = "auto",
) -> Run:
    """Train a recipe in a folder of its own under `out`, and return the run. Seeds the global random generators.

    The folder's name contains the hash of what decides the numbers, so training a recipe twice trains it once: a
    finished run is returned as it is. Every `eval_every` steps two things are logged to `log.jsonl`: the loss on fixed
    validation windows, and the attention sink on the first 64 tokens of up to 100 of them (with the document mask, if
    training has one).

    Under a launcher (`torchrun`, `accelerate launch`) all processes train one model: `batch_size` counts the sequences
    of all of them, step s sees the same windows, and the losses equal those of one process up to rounding; so does the
    hash. Only the main process writes; every process needs to see the folder. A run may continue on another number of
    processes; a sharded run stays sharded.

    Args:
        recipe: a value, a name or a YAML file.
        out: the parent folder of runs.
        resume: continue an interrupted run from its newest whole checkpoint. On CPU in fp32 its weights are then bit
            for bit those of an uninterrupted run.
        progress: show a bar on a terminal, or a line per evaluation.
        device: "auto" (a GPU if there is one) or "cpu".
        parallel: "ddp" keeps the whole model in every process, "fsdp" shards it over GPUs (FSDP2), "auto" takes what
            `accelerate launch` was configured for, else "ddp".

    Raises `InputError` for bad input, an interrupted run without `resume`, a run that another process is training, a
    folder that holds another configuration or cannot be written, a batch that does not divide over the processes, and
    an optimizer that needs whole matrices under "fsdp". Raises `TrainingDiverged` if the loss stops being finite. The
    main process raises these for all, the others `ReportedElsewhere`.
    """
    return train_kind(LAB, recipe, out, resume=resume, progress=progress, device=device, parallel=parallel)


def train_kind(
    kind: Kind,
    recipe: Recipe | str | Path,
    out: str | Path = "runs/",
    *,
    resume: bool = False,
    progress: bool = True,
    device: str = "auto",
    parallel: str = "auto",
) -> Run:
    """`train` for a kind of model.

    Args:
        kind: The kind. Kinds other than the lab model read only the sizes in a recipe's `model`.
        recipe, out, resume, progress, device, parallel: As in `train`.
    """
    device = resolved_device(device)
    processes = joined(device)
    sharded = processes.together(lambda: uses_sharding(parallel, device, processes))

    def resolve() -> tuple[Recipe, PreparedData]:
        if (Path(out) / RECIPE).exists():
            raise InputError(f"{out} is the folder of a run: expected the parent folder of runs")
        resolved = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
        if resolved.start_from is not None and kind is not LAB:
            raise InputError(f"start_from = '{resolved.start_from}': only the lab model can start from other weights")
        if resolved.loss.masked is not None and kind is not LAB:
            raise InputError("loss.masked is for the lab model: other kinds have an objective of their own")
        with silent(not progress):
            data = kind.data(resolved)
        return resolved, replace(data, fingerprint=data.fingerprint | kind.about)

    resolved, data = processes.together(resolve)
    folder = Path(out) / resolved.folder(data.fingerprint)
    processes.agree("the run", folder.name)
    if processes.from_main(lambda: settled(folder)):
        return Run(folder)
    with ExitStack() as stack:
        processes.from_main(lambda: stack.enter_context(locked(folder)))
        # Asked again, under the lock: another process may have finished the run since.
        if not processes.from_main(lambda: settled(folder)):
            before = processes.from_main(lambda: open_run(folder, resolved, data.fingerprint, resume=resume))
            session = processes.together(
                lambda: _Session(
                    kind, resolved, data, folder, before, processes, device=device, sharded=sharded, progress=progress
                )
            )
            session.run()
    return Run(folder)


class _Session:
    """The training of one run, from its newest checkpoint (or the beginning) to the saved model."""

    def __init__(
        self,
        kind: Kind,
        recipe: Recipe,
        data: PreparedData,
        folder: Path,
        before: Mapping[str, Any],
        processes: Processes,
        *,
        device: str,
        sharded: bool,
        progress: bool,
    ) -> None:
        self.kind, self.recipe, self.data, self.folder = kind, recipe, data, folder
        self.processes, self.sharded = processes, sharded
        self.notes: list[str] = list(before.get("notes", ()))
        self.screen = stderr()
        self.checkpoint = processes.from_main(self._newest_checkpoint)
        if self.checkpoint is not None and bool(before.get("host", {}).get("compiled")) != recipe.compile:
            self._announce("compiled from here on" if recipe.compile else "not compiled from here on")
        self.rows = self._rows()
        # Right before the model, so that nothing else draws between the seed and the initial weights.
        set_seed(recipe.seed)
        self.model = kind.model(recipe, data.tokenizer)
        self.trainer = self._trainer(device)
        shown = progress and processes.main
        self.bar = LiveProgress(folder.name.rpartition("-")[0], self.rows, self.screen) if shown else None
        self.record = Record.begin(recipe, data.fingerprint, self.model, self.trainer.args.device)
        if processes.world > 1:
            self.record.host |= {"processes": processes.world, "parallel": "fsdp" if sharded else "ddp"}
        if recipe.compile:
            self.record.host |= {"compiled": True}
        self.record.started = before.get("started", self.record.started)
        self.record.notes = self.notes

    def run(self) -> None:
        """Train to the end. The record states how it ended, also after an error."""
        self._write_record("running")
        try:
            with without_bars(), self.processes.ending_together():
                self._train()
                self._save_model()
        except TrainingDiverged as error:
            self._write_record("diverged", str(error), error.step)
            raise
        except BaseException as error:
            with suppress(InputError):  # a full disk must not hide why the run failed
                self._write_record("failed", f"{type(error).__name__}: {error}")
            raise
        # Last, since a record that says "finished" promises a model.
        self.processes.from_main(lambda: self._write_record("finished"))

    def _newest_checkpoint(self) -> Path | None:
        """The checkpoint to continue from; None at the beginning. Main process only: it sets damaged ones aside."""
        known = len(self.notes)
        checkpoint = checkpoints.newest_whole(self.folder / CHECKPOINTS, self._announce)
        if checkpoint is not None:
            self._announce(f"resumed from {checkpoint.name}")
        elif len(self.notes) > known:
            self._announce("no whole checkpoint is left: started from the beginning")
        return checkpoint

    def _rows(self) -> LogWriter:
        """The log, cut back to the checkpoint. In the other processes, a writer that only counts."""
        recipe, path = self.recipe, self.folder / LOG
        tokens = recipe.batch_size * recipe.context
        if not self.processes.main:
            return LogWriter(None, tokens_per_step=tokens)
        step = -1 if self.checkpoint is None else checkpoint_step(self.checkpoint)
        return LogWriter(path, tokens_per_step=tokens, kept=cut(path, step))

    def _announce(self, note: str) -> None:
        self.notes.append(note)
        self.screen.print(f"{self.folder.name}: {note}", soft_wrap=True)

    def _trainer(self, device: str) -> RecipeTrainer:
        recipe, kind, trainer_class = self.recipe, self.kind, RecipeTrainer
        if self.sharded:
            from sinkscope.training.distributed.sharded import ShardedTrainer  # FSDP is slow to import

            trainer_class = ShardedTrainer

        def sequences(windows: Dataset) -> Dataset:
            return kind.sequences(windows, self.data.tokenizer, recipe.seed)

        def examples(sequences: Dataset, *, validating: bool = False) -> Dataset:
            scored = kind.objective(sequences, self.data.tokenizer, recipe.seed)
            if (masked := recipe.loss.masked) is not None:
                draw = ("validation", recipe.data.split_seed) if validating else ("training", recipe.seed)
                scored = Masked(scored, self.data.tokenizer, masked, *draw)
            return recipe.loss.examples(scored, validating=validating)

        order = TrainingOrder(self.data.train, recipe.batch_size, recipe.steps, recipe.seed)
        validation = sequences(self.data.validation)
        scored = examples(spread(validation, recipe.validation_windows), validating=True)
        require_scored(scored, shifted=recipe.loss.masked is None)
        trainer = trainer_class(
            recipe,
            model=self.model,
            train=examples(sequences(order)),
            validation=scored,
            folder=self.folder / CHECKPOINTS,
            device=device,
            before_saving=self.rows.flush,
            processes=self.processes,
        )
        # From `validation` rather than `scored`: the sink is measured on text in which no token is hidden.
        inputs = inputs_of(spread(validation, SINK_SAMPLES), kind.sink_tokens)
        # Before the sink's callback: the end of a step must be noted when measuring begins, whose time does not count.
        trainer.add_callback(self.rows)
        heads = self._head_numbers(inputs)
        sinks = SinkCallback(
            trainer, inputs, every=recipe.eval_every, also=kind.metrics, heads=heads, keep=self.rows.keep
        )
        trainer.add_callback(sinks)
        return trainer

    def _head_numbers(self, inputs: Mapping[str, Tensor]) -> HeadNumbers | None:
        """The numbers per head that are kept: of causal lab models only, whose windows are plain text."""
        if self.kind is not LAB or self.recipe.loss.masked is not None:
            return None
        first = inputs["input_ids"][:, 0]
        return HeadNumbers.build(first, self.recipe.context, self.model.config.vocab_size)

    def _train(self) -> None:
        if self.bar is not None:
            self.trainer.add_callback(self.bar)
        checkpoint = self.checkpoint
        if checkpoint is not None:
            self.processes.together(lambda: checkpoints.require(checkpoint, sharded=self.sharded))
        with nullcontext() if self.bar is None else self.bar.watch, compiling(self.recipe):
            self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def _save_model(self) -> None:
        weights = self.trainer.full_weights()  # gathered from all processes, so not inside `from_main`
        self.processes.from_main(lambda: self._write_model(weights))

    def _write_model(self, weights: Mapping[str, Tensor] | None) -> None:
        self._update_record("finished")
        self.model.config.use_cache = True  # Trainer switched it off, which would slow generation down
        try:
            with writing(self.folder / MODEL) as draft:
                self.model.save_pretrained(draft, state_dict=weights)
                self.data.tokenizer.save_pretrained(draft)
                write_json(draft / PROVENANCE, asdict(self.record))
        except SafetensorError as error:
            raise InputError(f"cannot write {self.folder / MODEL}: {error}") from error

    def _write_record(self, status: Status, reason: str | None = None, step: int | None = None) -> None:
        if self.processes.main:
            self._update_record(status, reason, step)
            self.record.write(self.folder)

    def _update_record(self, status: Status, reason: str | None = None, step: int | None = None) -> None:
        self.record.status, self.record.reason = status, reason
        self.record.step = self.trainer.state.global_step if step is None else step
        self.record.seconds = round(self.rows.seconds, 1)
        self.record.results = {name: value for name, value in self.rows.last.items() if name not in ("step", "seconds")}


def spread(windows: Dataset, count: int) -> Subset:
    """At most `count` windows, spread evenly (neighboring windows come from one document)."""
    available = len(windows)  # type: ignore[arg-type]
    count = min(count, available)
    return Subset(windows, [index * available // count for index in range(count)])


def inputs_of(windows: Dataset, tokens: int | None = None) -> dict[str, Tensor]:
    """Model inputs of all windows (sample, token): ids and, if windows number them, documents.

    `tokens`: keep only the first so many.
    """
    items = [windows[index] for index in range(len(windows))]  # type: ignore[arg-type]
    return {name: torch.stack([item[name][:tokens] for item in items]) for name in MODEL_INPUTS if name in items[0]}
