"""`sinkscope intervene`: does the sink matter? One intervention beside its random controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import Progress
from typer.core import TyperCommand, TyperOption

from sinkscope.cli import options
from sinkscope.cli.measuring.folders import FILES, old_files, results_folder
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from typer import Context

    from sinkscope.interventions import Effect
else:
    Context = typer.Context.__base__  # what Typer hands over is of its public class's base


class ListingNames(TyperCommand):
    """A command whose help lists the interventions, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.interventions import NAMED

        for param in self.params:
            if param.name == "what" and isinstance(param, TyperOption):
                param.help = f"What to change; heads and entries are found in a first pass. One of {', '.join(NAMED)}."
        super().format_help(ctx, formatter)


HeadsControl = Literal["any", "layer", "norm"]


def intervene(
    context: Context,
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
    field: options.TextField = None,
    corpus: options.CorpusName = "python",
    split: options.SplitName = "validation",
    tokens: options.Tokens = 64,
    samples: options.Samples = 100,
    epsilon: options.Epsilon = 0.3,
    bos: options.BosToken = "auto",
    device: options.Device = None,
    dtype: options.Precision = "auto",
    revision: options.Revision = None,
    batch_size: options.BatchSize = 8,
    attn: options.Attn = None,
    chat_template: options.ChatTemplate = False,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where they take the place of an earlier intervention's. Default: "
            "sinkscope-intervene/MODEL-WHAT, with a hash of the options that are not at their defaults."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Change what makes the sink, and compare loss, predictions and sink rate with those of random controls."""
    options_of_heads = {"--layers": layers, "--heads": heads, "--strongest": strongest}
    _check_heads(what, options_of_heads | {"--control": None if control == "any" else control})
    chosen_layers, chosen_heads = _layers(layers), _pairs(heads)
    folder = results_folder("intervene", out, [model], [what, *([] if kind == "natural" else [kind])], context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope import interventions
    from sinkscope.cli.measuring.job import inputs_for
    from sinkscope.interventions import NAMED, Subject, named
    from sinkscope.model import load

    if what not in NAMED:
        raise unknown("intervention", what, NAMED)
    disable_progress_bar()
    with only_json(as_json):
        loaded = load(model, dtype=dtype, device=options.usable_device(device), revision=revision, attn=attn)
        if loaded.config.is_encoder_decoder:
            raise UnsupportedModelError(
                f"{type(loaded).__name__} has an encoder and a decoder: interventions on the command line take models "
                "with one stack"
            )
        inputs = inputs_for(
            loaded,
            model,
            kind,
            tokens=tokens,
            samples=samples,
            seed=seed,
            text=text,
            corpus=corpus,
            split=split,
            field=field,
            bos=bos,
            revision=revision,
            chat=chat_template,
        )
        note(f"{model}: {inputs.description}; first: {inputs.first}")
        subject = Subject(
            loaded,
            inputs.input_ids,
            position,
            inputs.input_ids.shape[1] // 2 if to is None else to,
            epsilon,
            tuple(band or (19,)),
            spare_sink,
            batch_size,
            chosen_layers,
            chosen_heads,
            strongest,
            control,
        )
        _check_position(position, inputs.input_ids.shape[1])
        chosen = named(what, subject)
        note(f"{what}: {chosen.remark}")
        with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
            task = bar.add_task("intervening", total=None)
            found = interventions.effect(
                loaded,
                inputs.input_ids,
                chosen.intervention,
                controls=controls,
                seed=seed,
                epsilon=epsilon,
                position=position if chosen.position is None else chosen.position,
                batch_size=batch_size,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        summary = {**found.to_json(), "model": model, "what": what, "found": chosen.remark, "input": inputs.description}
        summary |= {"control": chosen.control} if chosen.control else {}
        _write(found, folder, summary)
    if as_json:
        show_json(summary)
    else:
        _show(found)
        if chosen.control:
            show(plain(f"control: {chosen.control}"))
        show(plain(f"written: {', '.join(str(folder / name) for name in FILES['intervene'])}"))


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


def _check_position(position: int, tokens: int) -> None:
    if position >= tokens:
        raise InputError(f"--position {position}: the samples have positions 0 to {tokens - 1}")


def _write(found: Effect, folder: Path, summary: dict) -> None:
    """Write the three files, in the place of an earlier intervention's."""
    from functools import partial

    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.effects import effect_page
    from sinkscope.report.page import write_page

    page = effect_page(found, summary)
    with replacing(folder, partial(old_files, "intervene")) as draft:
        write_json(draft / "effect.json", summary)
        write_text(draft / "table.csv", found.table().to_csv(index=False))
        write_page(page, draft / "figure.html")


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
