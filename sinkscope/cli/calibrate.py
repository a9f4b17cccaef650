"""`sinkscope calibrate`: more or less weight on sinks, in the heads where it helps, reported on texts held out."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command, When
from sinkscope.cli.given import AUTO, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.cli.trials import about, peak, show_trial, watching, write_trial
from sinkscope.errors import InputError, unknown
from sinkscope.live import duration
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json, plain, show, show_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sinkscope.trials import Trial

TOKENS, SAMPLES = 128, 64
BASIC = (
    *("method", "values", "heads", "objective", "choose_on", "text", "corpus", "tokens", "samples", "tolerance"),
    *("explain", "plan_only", "save", "out", "help"),
)

Objective = Literal["loss", "entropy", "error"]


class ListingMethods(Command):
    """A command whose help lists the methods, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.trials import CALIBRATIONS

        for param in self.params:
            if isinstance(param, TyperOption) and param.name not in BASIC:
                param.rich_help_panel = "Advanced"
            if param.name == "method" and isinstance(param, TyperOption):
                param.help = "; ".join(f"{name}: {method.about}" for name, method in CALIBRATIONS.items()) + "."
        super().format_help(ctx, formatter)


def _of_images(values: Mapping[str, Any]) -> bool:
    from sinkscope.trials import CALIBRATIONS

    return values["method"] in CALIBRATIONS and CALIBRATIONS[values["method"]].of_images is not None


OF_POSITION = When(
    lambda values: values["method"] == "zero-tuning",
    "names the token of zero-tuning: {method} has none",
)
OF_CHOSEN = When(
    lambda values: not _of_images(values), "is not read: {method} finds its heads by itself, query by query"
)


@sharing
def calibrate(
    context: options.Context,
    model: options.Model,
    method: Annotated[str, typer.Option(metavar="NAME", help="How to calibrate.")],
    values: Annotated[
        str | None, typer.Option(metavar="LIST", help="Settings to choose from: gammas, betas or temperatures: 0.5,2.")
    ] = None,
    position: Annotated[
        int, typer.Option(min=0, help="Of zero-tuning: the sink's position, counted from 0."), OF_POSITION
    ] = 0,
    objective: Annotated[
        Objective, typer.Option(help="What chooses: loss; error (1 − accuracy); entropy, which needs no truth.")
    ] = "loss",
    heads: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Try these heads only, as in 3.0,3.2 (layer.head)."),
        OF_CHOSEN,
    ] = None,
    choose_on: Annotated[
        int | None, typer.Option(min=2, help="Texts to choose on; the others are held out. Default: half of them.")
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive", help="A pass for each head and setting, in place of derivatives: hours, not minutes."
        ),
        OF_CHOSEN,
    ] = False,
    controls: Annotated[int, typer.Option(min=1, help="Random controls of the same budget.")] = 3,
    tolerance: Annotated[float, typer.Option(min=0, help="KL in nats a token that counts as free.")] = 0.02,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what the words of the verdict mean."), options.OF_PEOPLE
    ] = False,
    plan_only: options.PlanOnly = False,
    text: options.OneText = None,
    field: options.TextField = None,
    corpus: options.CorpusName = AUTO,
    split: options.SplitName = "validation",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens in a text.")] = TOKENS,
    samples: Annotated[int, typer.Option(min=4, help="Number of texts, to choose on and held out.")] = SAMPLES,
    bos: options.BosToken = "auto",
    images: options.Images = None,
    prompt: options.Prompt = None,
    device: options.Device = None,
    runs: Runs = RUNS,
    save: Annotated[
        Path | None,
        typer.Option(help="Folder for the calibrated model, which sinkscope loads as any other; nothing else does."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where they take the place of an earlier calibration's. Default: "
            "sinkscope-calibrate/MODEL-METHOD, with a hash of the options that are not at their defaults."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Calibrate attention in the heads where it helps: chosen on one part of the texts, reported on the other."""
    tried, chosen_heads = _values(values), _heads(heads)
    if save is not None and save.exists() and (not save.is_dir() or any(save.iterdir())):
        raise InputError(f"--save {save}: it is there already; name a new folder")
    folder = results_folder("calibrate", out, [model], [method], context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.cli.intervene import of_one_size
    from sinkscope.cli.measuring.job import loaded, reading_of, tokenizer_of
    from sinkscope.data.media import processor_of
    from sinkscope.trials import CALIBRATIONS, calibration_trial

    if method not in CALIBRATIONS:
        raise unknown("method", method, CALIBRATIONS)
    named = CALIBRATIONS[method]
    if named.of_images is not None and images is None:
        raise InputError(f"--method {method} is for models that read images: give --images DIR")
    settings = [] if named.of_images is not None else named.options(tried or named.defaults, position)
    reads = Reads(
        field=field, corpus=corpus, split=split, images=images, prompt=prompt, tokens=tokens, samples=samples, bos=bos
    )
    disable_progress_bar()
    with only_json(as_json):
        changed = loaded(model, device, runs)
        medium: options.Medium | None = None if images is None else ("images", images)
        read = reading_of(changed, model, "natural", reads, runs, medium, text)
        given = of_one_size(read)
        if images is None:
            beside = tokenizer_of(model, runs.revision, True, runs.trust_remote_code)
        else:
            beside = processor_of("images", model, runs.revision)  # its tokenizer is a part of it
        if position >= given["input_ids"].shape[1]:
            raise InputError(f"--position {position}: the texts have positions 0 to {given['input_ids'].shape[1] - 1}")
        if named.of_images is not None:
            settings = named.of_images(changed, given, tried or named.defaults)
        count = len(given["input_ids"])
        first = count // 2 if choose_on is None else choose_on
        held = count - first
        parts = f"chosen on {first}, scored on {held} held out"
        note(f"{short(model)}: {read.description}; {len(settings)} settings of {method}, {parts}")
        seconds = _seconds(changed, given, settings, chosen_heads, exhaustive, first, held, controls)
        memory = peak(changed)
        took = (
            f"about {duration(sum(seconds))} ({duration(seconds[0])} to choose, {duration(seconds[1])} to score) and "
            f"{memory / 2**30:.1f} GiB of memory, estimated from two texts"
        )
        work = folder / _work(context, read.description)
        paths, trial = list[Path](), None
        if not plan_only:
            note(f"{took}{f'; goes on from {work}' if work.exists() else ''}")
            with watching() as watch:
                trial = calibration_trial(
                    changed,
                    given,
                    settings,
                    choose_on=choose_on,
                    objective=objective,
                    heads=chosen_heads,
                    exhaustive=exhaustive,
                    controls=controls,
                    tolerance=tolerance,
                    seed=runs.seed,
                    batch_size=runs.batch_size,
                    out=work,
                    about=about("calibrate", model=model, method=method, input=read.description),
                    progress=watch,
                )
            paths = _write(trial, folder)
            if save is not None:
                paths += _save(changed, trial, save, beside)
    if trial is not None:
        show_trial(trial, paths, as_json=as_json, explain=explain)
    elif as_json:
        both = {"choose": seconds[0], "score": seconds[1]}
        show_json({"model": model, "method": method, "seconds": both, "memory": memory})
    else:
        show(plain(took))


def _seconds(
    model: Any,
    given: Any,
    settings: Any,
    heads: Any,
    exhaustive: bool,
    first: int,
    held: int,
    controls: int,
) -> tuple[float, float]:
    """How long choosing and scoring would take at most, from two texts that are read as they will be."""
    from sinkscope.hooks import device_of, part
    from sinkscope.trials import passes, text_scores

    count = len(given["input_ids"])
    size = min(2, count)
    batch = part(given, slice(0, size), count, device_of(model))
    taken = []
    for _ in range(2):  # the first pass of a process takes longer
        start = time.perf_counter()
        text_scores(model, batch, settings[0].of_heads(None), size)
        taken.append(time.perf_counter() - start)
    each = min(taken) / size
    arms = 1 + 2 * (1 + controls) + controls
    return passes(model, settings, heads, exhaustive=exhaustive) * first * each, arms * held * each


def _work(context: options.Context, texts: str) -> str:
    """The folder, among the results, of what is done so far: another one for other options and texts."""
    values = {
        name: str(value) for name, value in context.params.items() if name not in ("as_json", "explain", "plan_only")
    }
    return f"unfinished-{hashlib.sha256(repr((texts, sorted(values.items()))).encode()).hexdigest()[:8]}"


def _values(text: str | None) -> tuple[float, ...]:
    """Numbers of "0.5,2"."""
    try:
        return () if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--values {text}: expected numbers, as in 0.5,2") from None


def _heads(text: str | None) -> tuple[tuple[int, int], ...] | None:
    """Heads of "3.0,3.2"."""
    if text is None:
        return None
    found = []
    for part in text.split(","):
        layer, point, head = part.strip().partition(".")
        if not point or not layer.isdecimal() or not head.isdecimal():
            raise InputError(f"--heads {text}: '{part}' is no head; write layer.head, as in 3.0,3.2")
        found.append((int(layer), int(head)))
    return tuple(dict.fromkeys(found))


def _write(trial: Trial, folder: Path) -> list[Path]:
    """Numbers, table and page, in the place of an earlier calibration's; what was unfinished goes."""
    paths = write_trial(trial, "calibrate", folder)
    for unfinished in folder.glob("unfinished-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    return paths


def _save(model: Any, trial: Trial, folder: Path, beside: Any) -> list[Path]:
    """The calibrated model. Raises `InputError` where nothing was chosen."""
    from sinkscope.interventions import save_calibrated
    from sinkscope.trials import calibration_of

    found = calibration_of(trial)
    if found is None:
        raise InputError(f"--save {folder}: nothing was chosen, so there is nothing to save; the results are written")
    save_calibrated(model, found, folder, beside)
    return [folder]
