"""`sinkscope calibrate`: more or less weight on sinks, in the heads where it helps, reported on held-out texts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, LateHelp, When
from sinkscope.cli.opening import open_model, open_tokenizer, parse_heads, read_inputs, single_batch
from sinkscope.cli.options import OUTPUT, RUNNING, InputOptions, OutputOptions, RunningOptions, TextOptions
from sinkscope.cli.showing import peak_memory, show_trial, watching
from sinkscope.cli.writing import clear_unfinished, results_folder, unfinished_folder, write_trial
from sinkscope.errors import InputError, unknown
from sinkscope.files import check_writable
from sinkscope.live import duration
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json, plain, show, show_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sinkscope.trials import Trial

Objective = Literal["loss", "entropy", "error"]


def _methods_help() -> str:
    from sinkscope.trials import CALIBRATIONS

    return "; ".join(f"{name}: {method.about}" for name, method in CALIBRATIONS.items()) + "."


def _reads_images(values: Mapping[str, Any]) -> bool:
    from sinkscope.trials import CALIBRATIONS

    return values["method"] in CALIBRATIONS and CALIBRATIONS[values["method"]].of_images is not None


HAS_POSITION = When(
    lambda values: values["method"] == "zero-tuning", "names the token of zero-tuning: {method} has none"
)
CHOOSES_HEADS = When(
    lambda values: not _reads_images(values), "is not read: {method} chooses its heads itself, query by query"
)


@dataclass(frozen=True, kw_only=True)
class CalibrationTexts(TextOptions):
    """Texts, or images, to choose on and to hold out."""

    tokens: Annotated[int, typer.Option(min=2, help="Tokens per text.")] = 128
    samples: Annotated[int, typer.Option(min=4, help="Number of texts, to choose on and held out.")] = 40
    images: options.Images = None
    prompt: options.Prompt = None


CALIBRATION_TEXTS = CalibrationTexts()


def calibrate(
    context: options.Context,
    model: options.Model,
    method: Annotated[str, typer.Option(metavar="NAME", help="How to calibrate."), LateHelp(_methods_help)],
    values: Annotated[
        str | None, typer.Option(metavar="LIST", help="Settings to choose from: gammas, betas or temperatures: 0.5,2.")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Try these heads only, as in 3.0,3.2 (layer.head)."),
        CHOOSES_HEADS,
    ] = None,
    choose_on: Annotated[
        int | None, typer.Option(min=2, help="Texts to choose on; the others are held out. Default: half of them.")
    ] = None,
    explain: options.Explain = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Folder for the calibrated model, which only sinkscope can load."),
    ] = None,
    position: Annotated[
        int,
        typer.Option(min=0, help="For zero-tuning: the sink's position, counted from 0.", rich_help_panel=ADVANCED),
        HAS_POSITION,
    ] = 0,
    objective: Annotated[
        Objective,
        typer.Option(
            help="What chooses: loss; error (1 − accuracy); entropy, which needs no truth.", rich_help_panel=ADVANCED
        ),
    ] = "loss",
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive",
            help="Run a pass for each head and setting instead of using derivatives: hours, not minutes.",
            rich_help_panel=ADVANCED,
        ),
        CHOOSES_HEADS,
    ] = False,
    controls: Annotated[
        int, typer.Option(min=1, help="Random controls of the same budget.", rich_help_panel=ADVANCED)
    ] = 3,
    tolerance: options.Tolerance = 0.02,
    texts: CalibrationTexts = CALIBRATION_TEXTS,
    running: RunningOptions = RUNNING,
    output: OutputOptions = OUTPUT,
) -> None:
    """Calibrate attention in the heads where it helps: chosen on some of the texts, reported on the others."""
    candidates, chosen_heads = _numbers(values), parse_heads("--heads", heads)
    if save is not None and save.exists() and (not save.is_dir() or any(save.iterdir())):
        raise InputError(f"--save {save}: it exists already; name a new folder")
    folder = results_folder("calibrate", output.out, [model], [method], context)
    if save is not None:
        check_writable(save)
        if folder.resolve().is_relative_to(save.resolve()):
            raise InputError(f"--save {save}: the results go to {folder}, which the model would replace")
    from sinkscope.data.media import processor_of
    from sinkscope.trials import CALIBRATIONS, calibration_trial

    if method not in CALIBRATIONS:
        raise unknown("method", method, CALIBRATIONS)
    named = CALIBRATIONS[method]
    if named.of_images is not None and texts.images is None:
        raise InputError(f"--method {method} is for models that read images: give --images DIR")
    settings = [] if named.of_images is not None else named.options(candidates or named.defaults, position)
    inputs, batch_size = InputOptions(**vars(texts)), running.batch_of(texts.tokens)
    with only_json(output.as_json):
        subject = open_model(model, running)
        reading = read_inputs(subject, model, inputs, running)
        batch = single_batch(reading)
        if texts.images is None:
            processor = open_tokenizer(model, running, required=True)
        else:
            processor = processor_of("images", model, running.revision)  # its tokenizer is part of it
        if position >= batch["input_ids"].shape[1]:
            raise InputError(f"--position {position}: the texts have positions 0 to {batch['input_ids'].shape[1] - 1}")
        if named.of_images is not None:
            settings = named.of_images(subject, batch, candidates or named.defaults)
        count = len(batch["input_ids"])
        chosen_on = count // 2 if choose_on is None else choose_on
        held_out = count - chosen_on
        note(
            f"{short(model)}: {reading.description}; {len(settings)} settings of {method}, chosen on {chosen_on}, "
            f"scored on {held_out} held out"
        )
        seconds = _seconds(subject, batch, settings, chosen_heads, exhaustive, chosen_on, held_out, controls)
        memory = peak_memory(subject)
        cost = (
            f"about {duration(sum(seconds))} ({duration(seconds[0])} to choose, {duration(seconds[1])} to score) and "
            f"{memory / 2**30:.1f} GiB of memory, estimated from two texts"
        )
        if output.plan_only:
            both = {"choose": seconds[0], "score": seconds[1]}
            facts = {"model": model, "method": method, "seconds": both, "memory": memory}
            show_json(facts) if output.as_json else show(plain(cost))
            return
        note(cost)
        with watching() as watch:
            trial = calibration_trial(
                subject,
                batch,
                settings,
                choose_on=choose_on,
                objective=objective,
                heads=chosen_heads,
                exhaustive=exhaustive,
                controls=controls,
                tolerance=tolerance,
                seed=running.seed,
                batch_size=batch_size,
                out=unfinished_folder(folder, context, reading.description),
                about={"command": "calibrate", "model": model, "method": method, "input": reading.description},
                progress=watch,
            )
        paths = write_trial(trial, "calibrate", folder)
        clear_unfinished(folder)
        if save is not None:
            paths += _save(subject, trial, save, processor)
    show_trial(trial, paths, as_json=output.as_json, explain=explain)


def _seconds(
    model: Any,
    batch: Any,
    settings: Any,
    heads: Any,
    exhaustive: bool,
    chosen_on: int,
    held_out: int,
    controls: int,
) -> tuple[float, float]:
    """How long choosing and scoring would take at most, from a pass over two texts.

    Args:
        model: The model.
        batch: Its arguments for all texts.
        settings: What is tried.
        heads: In which heads; None for all.
        exhaustive: Whether each head and setting takes a pass.
        chosen_on: Number of texts to choose on.
        held_out: Number of texts to score.
        controls: Random controls.
    """
    from sinkscope.hooks import device_of, part
    from sinkscope.trials import passes, text_scores

    count = len(batch["input_ids"])
    size = min(2, count)
    pair = part(batch, slice(0, size), count, device_of(model))
    seconds = []
    for _ in range(2):  # the first pass of a process takes longer
        began = time.perf_counter()
        text_scores(model, pair, settings[0].of_heads(None), size)
        seconds.append(time.perf_counter() - began)
    per_text = min(seconds) / size
    arms = 1 + 2 * (1 + controls) + controls
    return passes(model, settings, heads, exhaustive=exhaustive) * chosen_on * per_text, arms * held_out * per_text


def _numbers(text: str | None) -> tuple[float, ...]:
    """The numbers in "0.5,2"."""
    try:
        return () if text is None else tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"--values {text}: expected numbers, as in 0.5,2") from None


def _save(model: Any, trial: Trial, folder: Path, processor: Any) -> list[Path]:
    """Save the calibrated model. Raises `InputError` where nothing was chosen."""
    from sinkscope.interventions import save_calibrated
    from sinkscope.trials import calibration_of

    settings = calibration_of(trial)
    if settings is None:
        raise InputError(f"--save {folder}: nothing was chosen, so there is nothing to save; the results are written")
    save_calibrated(model, settings, folder, processor)
    return [folder]
