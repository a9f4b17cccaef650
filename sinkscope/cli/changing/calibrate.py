"""`sinkscope calibrate`: more or less weight on sinks, in the heads where it helps, reported on texts held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command
from sinkscope.cli.given import RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import FILES, old_files, results_folder
from sinkscope.errors import InputError, unknown
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.calibration import Choice

TOKENS, SAMPLES = 128, 96
ABOUT = (
    "nats: a token's loss against the model without calibration; of texts held out, with the 95 % interval over texts. "
    "Controls spend the same budget elsewhere. A language model on its own texts gains next to nothing here."
)

Objective = Literal["loss", "entropy", "error"]


class ListingMethods(Command):
    """A command whose help lists the methods, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.calibration import METHODS

        for param in self.params:
            if param.name == "method" and isinstance(param, TyperOption):
                param.help = "; ".join(f"{name}: {method.about}" for name, method in METHODS.items()) + "."
        super().format_help(ctx, formatter)


@sharing
def calibrate(
    context: options.Context,
    model: options.Model,
    method: Annotated[str, typer.Option(metavar="NAME", help="How to calibrate.")],
    values: Annotated[
        str | None, typer.Option(metavar="LIST", help="Settings to choose from: gammas, betas or temperatures: 0.5,2.")
    ] = None,
    position: Annotated[int, typer.Option(min=0, help="Of zero-tuning: the sink's position, counted from 0.")] = 0,
    objective: Annotated[
        Objective, typer.Option(help="What chooses: loss; error (1 − accuracy); entropy, which needs no truth.")
    ] = "loss",
    heads: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Try these heads only, as in 3.0,3.2 (layer.head)."),
    ] = None,
    choose_on: Annotated[
        int | None, typer.Option(min=2, help="Texts to choose on; the others are held out. Default: half of them.")
    ] = None,
    controls: Annotated[int, typer.Option(min=1, help="Random controls of the same budget.")] = 3,
    text: options.OneText = None,
    field: options.TextField = None,
    corpus: options.CorpusName = "python",
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
    if prompt is not None and images is None:
        raise InputError("--prompt goes with --images: it is what stands beside each of them")
    if images is not None and (text is not None or runs.chat_template):
        raise InputError("--images takes the place of text: --text and --chat-template go without it")
    folder = results_folder("calibrate", out, [model], [method], context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.calibration import METHODS, choose
    from sinkscope.cli.intervene import of_one_size
    from sinkscope.cli.measuring.job import loaded, reading_of, tokenizer_of
    from sinkscope.data.media import processor_of

    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method != "zero-tuning" and position:
        raise InputError(f"--position names the token of zero-tuning: {method} has none")
    named = METHODS[method]
    if named.of_images is not None and images is None:
        raise InputError(f"--method {method} is for models that read images: give --images DIR")
    if named.of_images is not None and chosen_heads is not None:
        raise InputError(f"--heads: {method} finds its heads by itself, query by query")
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
        note(f"{model}: {read.description}; {len(settings)} settings of {method}")
        from rich.progress import Progress

        with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
            task = bar.add_task("choosing", total=None)
            found = choose(
                changed,
                given,
                settings,
                choose_on=choose_on,
                objective=objective,
                heads=chosen_heads,
                controls=controls,
                seed=runs.seed,
                batch_size=runs.batch_size,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        summary = {"model": model, "method": method, "input": read.description, **found.to_json()}
        paths = _write(found, folder, summary)
        if save is not None:
            paths += _save(changed, found, save, beside)
    if as_json:
        show_json(summary)
    else:
        _show(found)
        show(plain(f"written: {', '.join(map(str, paths))}"))


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


def _write(found: Choice, folder: Path, summary: dict[str, Any]) -> list[Path]:
    """Numbers, table and page, in the place of an earlier calibration's."""
    from functools import partial

    from sinkscope.calibration import store
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.changing import calibration_page
    from sinkscope.report.page import write_page

    page = calibration_page(found, summary)
    with replacing(folder, partial(old_files, "calibrate")) as draft:
        store(found, draft / "choice.nc", {name: summary[name] for name in ("model", "method", "input")})
        write_json(draft / "choice.json", summary)
        write_text(draft / "table.csv", found.table().to_csv(index=False))
        write_page(page, draft / "figure.html")
    return [folder / name for name in FILES["calibrate"]]


def _save(model: Any, found: Choice, folder: Path, beside: Any) -> list[Path]:
    """The calibrated model. Raises `InputError` where nothing was chosen."""
    from sinkscope import calibration

    if found.intervention is None:
        raise InputError(f"--save {folder}: nothing was chosen, so there is nothing to save; the results are written")
    calibration.save(model, found.intervention, folder, beside)
    return [folder]


def _show(found: Choice) -> None:
    """A row per arm, and the finding in words."""
    columns = ("", "loss", "where chosen", "held out", "from", "to", "right, %", "entropy")
    rows = [
        (
            row.arm,
            f"{row.loss:.4f}",
            f"{row.chosen_on:+.4f}",
            f"{row.held_out:+.4f}",
            f"{row.low:+.4f}",
            f"{row.high:+.4f}",
            f"{100 * row.right:.1f}",
            f"{row.entropy:.3f}",
        )
        for row in found.table().itertuples()
    ]
    show(table(columns, rows))
    if found.heads:
        show(plain(f"heads (layer.head): {', '.join(f'{layer}.{head}' for layer, head in found.heads)}"))
    show(plain(found.verdict))
    show(plain(ABOUT))
