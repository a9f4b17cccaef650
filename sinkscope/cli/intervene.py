"""`sinkscope intervene`: does the sink matter? One intervention beside its random controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import Progress
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command
from sinkscope.cli.given import READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import old_files, results_folder
from sinkscope.errors import InputError, unknown
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from torch import Tensor

    from sinkscope.data import Reading
    from sinkscope.interventions import Effect


class ListingNames(Command):
    """A command whose help lists the interventions, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.interventions import NAMED

        for param in self.params:
            if param.name == "what" and isinstance(param, TyperOption):
                param.help = f"What to change; heads and entries are found in a first pass. One of {', '.join(NAMED)}."
        super().format_help(ctx, formatter)


HeadsControl = Literal["any", "layer", "norm"]


@sharing
def intervene(
    context: options.Context,
    model: options.Model,
    what: Annotated[
        str, typer.Option(metavar="NAME", help="What to change; heads and entries are found in a first pass.")
    ],
    position: Annotated[int, typer.Option(min=0, help="The sink's position, counted from 0.")] = 0,
    to: Annotated[
        int | None,
        typer.Option(
            min=0, help="The other position of swap-position, replace-position, first-view. Default: the middle."
        ),
    ] = None,
    band: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Which of 20 spectral bands to suppress; repeatable. Default: 19, the last."),
    ] = None,
    spare_sink: Annotated[
        bool, typer.Option("--spare-sink/--no-spare-sink", help="Leave the sink's own residual stream as it is.")
    ] = True,
    layers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Of zero-sink-heads: sink heads of these layers only, as in 0,4-7."),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Of zero-sink-heads: these heads, sinks or not, as in 3.0,3.2 (layer.head)."),
    ] = None,
    strongest: Annotated[
        int | None, typer.Option(min=1, help="Of zero-sink-heads: so many sink heads, the strongest. Default: all.")
    ] = None,
    control: Annotated[
        HeadsControl,
        typer.Option(help="Of zero-sink-heads: other heads of any layer, of the same layer, of about the same norm."),
    ] = "any",
    controls: Annotated[int, typer.Option(min=1, help="Random controls of the same budget.")] = 5,
    kind: options.Kind = "natural",
    text: options.OneText = None,
    reads: Reads = READS,
    device: options.Device = None,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where they take the place of an earlier intervention's. Default: "
            "sinkscope-intervene/MODEL-WHAT, with a hash of the options that are not at their defaults."
        ),
    ] = None,
    figure: options.Figure = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Change what makes the sink, and compare loss, predictions and sink rate with those of random controls.

    Of an encoder-decoder the decoder is changed, and its predictions are compared."""
    options_of_heads = {"--layers": layers, "--heads": heads, "--strongest": strongest}
    _check_heads(what, options_of_heads | {"--control": None if control == "any" else control})
    options.check_written(figure)
    chosen_layers, chosen_heads = _layers(layers), _pairs(heads)
    medium = options.medium_of(context)
    reading = medium[0] if medium else kind
    folder = results_folder("intervene", out, [model], [what, *([] if reading == "natural" else [reading])], context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope import interventions
    from sinkscope.cli.measuring.job import loaded, reading_of
    from sinkscope.hooks import Stream, is_encoder_decoder, row_length
    from sinkscope.interventions import NAMED, Subject, named

    if what not in NAMED:
        raise unknown("intervention", what, NAMED)
    disable_progress_bar()
    with only_json(as_json):
        changed = loaded(model, device, runs)
        read = reading_of(changed, model, kind, reads, runs, medium, text)
        given, stack = of_one_size(read), Stream.of(changed).stack
        note(f"{model}: {read.description}; first: {read.first}")
        length = row_length(changed, given)
        _check_position(position, length)
        subject = Subject(
            changed,
            given,
            position,
            length // 2 if to is None else to,
            reads.epsilon,
            tuple(band or (19,)),
            spare_sink,
            runs.batch_size,
            chosen_layers,
            chosen_heads,
            strongest,
            control,
        )
        chosen = named(what, subject)
        where = f", in the {stack} alone" if is_encoder_decoder(changed) else ""
        note(f"{what}{where}: {chosen.remark}")
        with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
            task = bar.add_task("intervening", total=None)
            found = interventions.effect(
                changed,
                given,
                chosen.intervention,
                controls=controls,
                seed=runs.seed,
                epsilon=reads.epsilon,
                position=position if chosen.position is None else chosen.position,
                batch_size=runs.batch_size,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        summary = {**found.to_json(), "model": model, "what": what, "found": chosen.remark, "input": read.description}
        summary |= {"stack": stack}
        summary |= {"control": chosen.control} if chosen.control else {}
        paths = _write(found, folder, summary, figure)
    if as_json:
        show_json(summary)
    else:
        _show(found)
        if chosen.control:
            show(plain(f"control: {chosen.control}"))
        show(plain(f"written: {', '.join(map(str, paths))}"))


def _check_heads(what: str, given: dict[str, Any]) -> None:
    """Options that would say nothing are an error: they choose heads, and only one intervention acts on heads."""
    if what != "zero-sink-heads" and (name := next((name for name, value in given.items() if value is not None), None)):
        raise InputError(f"{name} chooses heads, which --what zero-sink-heads acts on, and not {what}")


def _layers(text: str | None) -> tuple[int, ...] | None:
    """Layers of "0,4-7"."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        bounds = part.strip().split("-")
        if not all(bound.isdecimal() for bound in bounds) or len(bounds) > 2 or int(bounds[0]) > int(bounds[-1]):
            raise InputError(f"--layers {text}: '{part}' is no layer and no range of layers; write 0,4-7")
        found += range(int(bounds[0]), int(bounds[-1]) + 1)
    return tuple(dict.fromkeys(found))


def _pairs(text: str | None) -> tuple[tuple[int, int], ...] | None:
    """Heads of "3.0,3.2"."""
    if text is None:
        return None
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        layer, point, head = part.strip().partition(".")
        if not point or not layer.isdecimal() or not head.isdecimal():
            raise InputError(f"--heads {text}: '{part}' is no head; write layer.head, as in 3.0,3.2")
        found.append((int(layer), int(head)))
    return tuple(dict.fromkeys(found))


def of_one_size(read: Reading) -> dict[str, Tensor]:
    """The arguments of all samples. Raises `InputError` where these have several sizes."""
    if len(read.parts) == 1:
        return read.parts[0]
    name = next(iter(read.parts[0]))
    sizes = ", ".join(
        f"{len(part[name])} of {' × '.join(str(size) for size in part[name].shape[1:])}" for part in read.parts[:4]
    )
    more = f" and {len(read.parts) - 4} more" if len(read.parts) > 4 else ""
    raise InputError(
        f"the samples have {len(read.parts)} sizes ({name}: {sizes}{more}): controls act at positions that every "
        "sample has, so give files of one size"
    )


def _check_position(position: int, tokens: int) -> None:
    if position >= tokens:
        raise InputError(f"--position {position}: the samples have positions 0 to {tokens - 1}")


def _write(found: Effect, folder: Path, summary: dict, figure: str | None) -> list[Path]:
    """Write its files, in the place of an earlier intervention's; where they are."""
    from functools import partial

    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.pictures import write_figure
    from sinkscope.report.effects import effect_page
    from sinkscope.report.page import write_page

    page = effect_page(found, summary)
    with replacing(folder, partial(old_files, "intervene")) as draft:
        write_json(draft / "effect.json", summary)
        write_text(draft / "table.csv", found.table().to_csv(index=False))
        write_page(page, draft / "figure.html")
        if figure is not None:
            write_figure(found.plot(), draft / f"figure.{figure}")
        names = sorted(path.name for path in draft.iterdir())
    return [folder / name for name in names]


def _show(found: Effect) -> None:
    """A row per metric with the controls beside it, then the finding in words."""
    from sinkscope.interventions.outcome import METRICS
    from sinkscope.report.effects import said

    shown = [metric for metric in METRICS if getattr(found.intervened, metric) is not None]
    rows = [
        (
            row.metric.replace(" to the baseline", ""),
            f"{row.baseline:.4g}",
            f"{row.intervened:.4g}",
            f"{row.control_mean:.4g}",
            f"{row.control_low:.4g} – {row.control_high:.4g}",
            said(found, metric),
        )
        for metric, row in zip(shown, found.table().itertuples(), strict=True)
    ]
    columns = ("", "baseline", "intervened", "controls", "their range", "stands out")
    show(table(columns, rows))
    show(plain(found.verdict))
