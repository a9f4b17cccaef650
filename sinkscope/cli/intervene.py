"""`sinkscope intervene`: does the sink matter? A changed model against random controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command, When
from sinkscope.cli.given import READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.errors import InputError, unknown
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json

if TYPE_CHECKING:
    from torch import Tensor

    from sinkscope.data import Reading
    from sinkscope.trials import Trial


QUESTION = ("hide-sink", "mute-sink", "mean-sink", "fold-sink", "swap-sink", "trim-sink")

AS_TOLD = ("first-view", "swap-position", "replace-position", "suppress-bands")  # nothing is looked for in texts


class ListingNames(Command):
    """A command whose help lists the interventions, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.interventions import NAMED

        for param in self.params:
            if param.name == "what" and isinstance(param, TyperOption):
                param.help = (
                    f"What to change. Arms on the sink, repeatable (default: all): {', '.join(QUESTION)}. Or one of "
                    f"{', '.join(NAMED)}; heads and entries are found on texts that are not scored."
                )
        super().format_help(ctx, formatter)


def _names(values: Mapping[str, Any]) -> set[str]:
    return {RENAMED.get(name, name) for name in values["what"] or QUESTION}


def of(*names: str) -> When:
    """Read by some interventions."""
    return When(lambda values: _names(values) & {*names}, f"is read by {', '.join(names)}, and none of them runs")


RENAMED = {"forbid-sink": "hide-sink"}
OF_ARMS = of(*QUESTION)
OF_HEADS = When(
    lambda values: "zero-sink-heads" in _names(values), "chooses heads, which --what zero-sink-heads acts on"
)
OF_LAYERS = When(
    lambda values: _names(values) & {*QUESTION, "zero-sink-heads"},
    "chooses heads, which --what zero-sink-heads acts on, or layers of arms on the sink",
)
OF_OTHERS = When(
    lambda values: not _names(values) & {*QUESTION},
    "is read by interventions that are no arms on the sink (there: --on)",
)
OF_TWO = of("swap-position", "replace-position", "first-view")
OF_BANDS = of("suppress-bands")

By = Literal["after", "layer"]
HeadsControl = Literal["any", "layer", "norm"]


@sharing
def intervene(
    context: options.Context,
    model: options.Model,
    what: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="What to change; arms on the sink are repeatable.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="For arms on the sink: which tokens, as in measured@0.2, first:1 or positions:0,5. Default: measured.",
        ),
        OF_ARMS,
    ] = None,
    after: Annotated[
        int, typer.Option(min=1, help="For arms on the sink: change queries from N tokens behind it on."), OF_ARMS
    ] = 8,
    by: Annotated[
        By | None,
        typer.Option(help="For arms on the sink: a curve over --after 1 to 32, or each layer by itself."),
        OF_ARMS,
    ] = None,
    position: Annotated[int, typer.Option(min=0, help="The sink's position, for everything else."), OF_OTHERS] = 0,
    to: Annotated[
        int | None,
        typer.Option(
            min=0, help="The other position of swap-position, replace-position, first-view. Default: the middle."
        ),
        OF_TWO,
    ] = None,
    band: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Which of 20 spectral bands to suppress; repeatable. Default: 19, the last."),
        OF_BANDS,
    ] = None,
    spare_sink: Annotated[
        bool,
        typer.Option("--spare-sink/--no-spare-sink", help="Leave the sink's own residual stream as it is."),
        OF_BANDS,
    ] = True,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Change these layers only, as in 0,4-7; for zero-sink-heads: sink heads of these layers.",
        ),
        OF_LAYERS,
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="For zero-sink-heads: these heads, sinks or not, as in 3.0,3.2 (layer.head)."
        ),
        OF_HEADS,
    ] = None,
    strongest: Annotated[
        int | None,
        typer.Option(min=1, help="For zero-sink-heads: so many sink heads, the strongest. Default: all."),
        OF_HEADS,
    ] = None,
    control: Annotated[
        HeadsControl,
        typer.Option(help="For zero-sink-heads: other heads of any layer, of the same layer, of about the same norm."),
        OF_HEADS,
    ] = "any",
    controls: Annotated[int, typer.Option(min=1, help="Random controls of the same budget.")] = 5,
    tolerance: Annotated[float, typer.Option(min=0, help="KL that counts as nothing, nats a token.")] = 0.02,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what the words of the verdict mean."), options.OF_PEOPLE
    ] = False,
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
    plan_only: options.PlanOnly = False,
    figure: options.Figure = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Does the sink matter? Change it, and compare predictions with those of random controls on the same texts.

    For an encoder-decoder, the decoder is changed and its predictions are compared."""
    asked = _asked(what)
    named_one = asked[0] if asked[0] not in QUESTION else None
    options.check_written(figure)
    chosen_layers, chosen_heads = _layers(layers), _pairs(heads)
    medium = options.medium_of(context)
    reading = medium[0] if medium else kind
    words = [*asked, *([] if reading == "natural" else [reading])]
    folder = results_folder("intervene", out, [model], words if what else words[len(asked) :], context)
    from dataclasses import replace

    from transformers.utils.logging import disable_progress_bar

    from sinkscope.cli.measuring.job import loaded, reading_of
    from sinkscope.cli.trials import about, cost_of, show_cost, show_trial, watching, write_trial
    from sinkscope.hooks import Stream, is_encoder_decoder, row_length
    from sinkscope.interventions import NAMED, Subject, named
    from sinkscope.trials import changed as run_changed
    from sinkscope.trials import matters, needed, split
    from sinkscope.trials.changes import uses

    if named_one is not None and named_one not in NAMED:
        raise unknown("intervention", named_one, [*QUESTION, *NAMED])
    disable_progress_bar()
    with only_json(as_json):
        subject_model = loaded(model, device, runs)
        purpose = uses(asked, on) if named_one is None else "nothing" if named_one in AS_TOLD else "chooses"
        more = replace(reads, samples=needed(reads.samples, purpose))
        read = reading_of(subject_model, model, kind, more, runs, medium, text)
        inputs, stack = of_one_size(read), Stream.of(subject_model).stack
        note(f"{short(model)}: {read.description}; first: {read.first}")
        said = about("intervene", model=model, what=list(asked), input=read.description, stack=stack)
        if is_encoder_decoder(subject_model):
            note(f"changed: the {stack} alone")
        count = len(next(iter(inputs.values())))
        scored = count * reads.samples // more.samples
        readings = _readings(
            asked,
            scored,
            count - scored,
            controls,
            by,
            subject_model,
        )
        cost = cost_of(subject_model, inputs, readings, runs.batch_size)
        if plan_only:
            show_cost(cost, as_json, model=model, what=list(asked))
            return
        note(str(cost))
        shared: dict[str, Any] = {"controls": controls, "seed": runs.seed, "epsilon": reads.epsilon}
        shared |= {"tolerance": tolerance, "batch_size": runs.batch_size}
        with watching() as watch:
            if named_one is None:
                trial = matters(
                    subject_model,
                    inputs,
                    asked,
                    on=on,
                    after=after,
                    by=by,
                    layers=chosen_layers,
                    about=said,
                    progress=watch,
                    **shared,
                )
            else:
                parts = split(subject_model, inputs, purpose)
                found_in = (parts.calibration or parts.scored).inputs
                length = row_length(subject_model, parts.scored.inputs)
                _check_position(position, length)
                subject = Subject(
                    subject_model,
                    found_in,
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
                chosen = named(named_one, subject)
                note(f"{named_one}: {chosen.remark}")
                said |= {"acts_on": chosen.remark} | (
                    {"notes": [f"Controls: {chosen.control}."]} if chosen.control else {}
                )
                trial = run_changed(
                    subject_model,
                    parts.scored,
                    chosen.intervention,
                    name=named_one,
                    position=position if chosen.position is None else chosen.position,
                    drawn_in=found_in,
                    calibrated_on=parts.record,
                    about=said,
                    progress=watch,
                    **shared,
                )
        paths = write_trial(trial, "intervene", folder, extra=_static(trial, figure))
    show_trial(trial, paths, as_json=as_json, explain=explain)


def _asked(what: list[str] | None) -> tuple[str, ...]:
    """The names that were asked for, old ones under their new name. Raises `InputError` for a mixture of kinds."""
    found = []
    for name in what or QUESTION:
        if name in RENAMED:
            note(
                "forbid-sink is now hide-sink: the sink stays for the first queries, or the next token takes its place"
            )
        found.append(RENAMED.get(name, name))
    if len(found) > 1 and (other := next((name for name in found if name not in QUESTION), None)):
        raise InputError(f"--what {other}: one at a time; together run {', '.join(QUESTION)}")
    return tuple(dict.fromkeys(found))


def _readings(asked: Sequence[str], scored: int, chosen: int, controls: int, by: str | None, model: Any) -> int:
    """About how often a text is read: by arms, controls and the unchanged model, and to find the sink, also afterwards.

    A pass in which attention is measured counts twice.
    """
    from sinkscope.hooks import Stream
    from sinkscope.trials.changes import AFTER_CURVE

    arms = len(asked) + ("trim-sink" in asked)  # which comes with the same on other tokens
    if by is not None:
        return (
            scored * (1 + arms * (len(AFTER_CURVE) if by == "after" else len(Stream.of(model).attention(model))))
            + 4 * chosen
        )
    return scored * (1 + arms * (1 + controls)) + 4 * chosen + 2 * scored * (1 + arms)


def _static(trial: Trial, figure: str | None) -> Callable[[Path], None]:
    """Writes the figure as a picture where one is asked for."""

    def write(draft: Path) -> None:
        if figure is not None:
            from sinkscope.pictures import write_figure

            write_figure(trial.plot(), draft / f"figure.{figure}")

    return write


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
