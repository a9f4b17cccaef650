"""`sinkscope intervene`: does the sink matter? A changed model compared with random controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, LateHelp, When
from sinkscope.cli.opening import open_model, parse_heads, read_inputs, single_batch
from sinkscope.cli.options import OUTPUT, RUNNING, InputOptions, OutputOptions, RunningOptions
from sinkscope.cli.showing import estimate_cost, show_cost, show_trial, watching
from sinkscope.cli.writing import check_formats, clear_unfinished, results_folder, unfinished_folder, write_trial
from sinkscope.errors import InputError, unknown
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json

if TYPE_CHECKING:
    from sinkscope.trials import Trial

SINK_ARMS = ("hide-sink", "mute-sink", "mean-sink", "fold-sink", "swap-sink", "trim-sink")
FOLDS = ("fold-logit", "fold-key")  # the other forms of fold-sink
ARMS = (*SINK_ARMS, *FOLDS)
ORIGIN = "origin"  # a trial of several tests
WITHOUT_SEARCH = ("first-view", "swap-position", "replace-position", "suppress-bands")  # nothing is looked for in texts
FORMER = {"forbid-sink": "hide-sink"}
LAST_BAND = 19

By = Literal["after", "layer", "band"]
HeadsControl = Literal["any", "layer", "norm"]


def _what_help() -> str:
    from sinkscope.interventions import NAMED

    return (
        f"What to change. Arms on the sink, repeatable (default: all): {', '.join(SINK_ARMS)}; or other forms of "
        f"fold-sink: {', '.join(FOLDS)}. Or {ORIGIN}: the tests of what makes the sink. Or one of "
        f"{', '.join(NAMED)}; heads and entries are found on texts that are not scored."
    )


def _names(values: Mapping[str, Any]) -> set[str]:
    return {FORMER.get(name, name) for name in values["what"] or SINK_ARMS}


def read_by(*names: str) -> When:
    """The condition of an option that only these interventions read."""
    return When(lambda values: _names(values) & {*names}, f"is read by {', '.join(names)}, and none of them runs")


@dataclass(frozen=True, kw_only=True)
class ChangedInputs(InputOptions):
    """One kind of input, of which every arm and control reads all samples: six arms take minutes on 135M at 24."""

    samples: options.Samples = 24


CHANGED_INPUTS = ChangedInputs()
ON_ARMS = read_by(*ARMS)
ON_HEADS = When(
    lambda values: "zero-sink-heads" in _names(values), "chooses heads, which --what zero-sink-heads acts on"
)
ON_LAYERS = When(
    lambda values: _names(values) & {*ARMS, "zero-sink-heads"},
    "chooses heads, which --what zero-sink-heads acts on, or layers of arms on the sink",
)
ON_OTHERS = When(
    lambda values: not _names(values) & {*ARMS, "first-view"},
    "is read by interventions that are no arms on the sink (there: --on), and not by first-view (there: --to)",
)
ON_TWO = read_by("swap-position", "replace-position", "first-view", ORIGIN)
ON_BANDS = read_by("suppress-bands")


def intervene(
    context: options.Context,
    model: options.Model,
    what: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What to change; arms on the sink are repeatable."),
        LateHelp(_what_help),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="For arms on the sink: which tokens, as in measured@0.2, first:1 or positions:0,5. Default: measured.",
        ),
        ON_ARMS,
    ] = None,
    after: Annotated[
        int,
        typer.Option(min=1, help="For arms on the sink: change the queries from N tokens after it on."),
        ON_ARMS,
    ] = 8,
    by: Annotated[
        By | None,
        typer.Option(
            help="For arms on the sink: a curve over --after 1 to 32, each layer separately, or sixths of them.",
            rich_help_panel=ADVANCED,
        ),
        ON_ARMS,
    ] = None,
    position: Annotated[
        int,
        typer.Option(min=0, help="For everything else: the sink's position.", rich_help_panel=ADVANCED),
        ON_OTHERS,
    ] = 0,
    to: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The other position of swap-position, replace-position, first-view (default: the middle), and the "
            "place at which origin tries to make a sink (default: a quarter).",
            rich_help_panel=ADVANCED,
        ),
        ON_TWO,
    ] = None,
    band: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="Which of 20 spectral bands to suppress; repeatable. Default: 19, the last.",
            rich_help_panel=ADVANCED,
        ),
        ON_BANDS,
    ] = None,
    protect_sink: Annotated[
        bool,
        typer.Option(
            "--protect-sink/--no-protect-sink",
            help="Leave the sink's own residual stream unchanged.",
            rich_help_panel=ADVANCED,
        ),
        ON_BANDS,
    ] = True,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Change these layers only, as in 0,4-7; for zero-sink-heads: sink heads of these layers.",
        ),
        ON_LAYERS,
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="For zero-sink-heads: these heads, sinks or not, as in 3.0,3.2 (layer.head).",
            rich_help_panel=ADVANCED,
        ),
        ON_HEADS,
    ] = None,
    strongest: Annotated[
        int | None,
        typer.Option(min=1, help="For zero-sink-heads: only the N strongest. Default: all.", rich_help_panel=ADVANCED),
        ON_HEADS,
    ] = None,
    control: Annotated[
        HeadsControl,
        typer.Option(
            help="For zero-sink-heads: other heads of any layer, of the same layer, or of about the same norm.",
            rich_help_panel=ADVANCED,
        ),
        ON_HEADS,
    ] = "any",
    controls: Annotated[
        int, typer.Option(min=1, help="Random controls of the same budget.", rich_help_panel=ADVANCED)
    ] = 2,
    tolerance: options.Tolerance = 0.02,
    explain: options.Explain = False,
    inputs: ChangedInputs = CHANGED_INPUTS,
    running: RunningOptions = RUNNING,
    figure: options.Figure = None,
    config: options.Config = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Does the sink matter? Change it, and compare predictions with those of random controls on the same texts.

    For an encoder-decoder, the decoder is changed and its predictions are compared."""
    names = _checked_names(what)
    named = names[0] if names[0] not in ARMS else None
    check_formats(figure)
    chosen_layers, chosen_heads = _layers(layers), parse_heads("--heads", heads)
    words = [*(names if what else ()), *([] if inputs.name == "natural" else [inputs.name])]
    folder = results_folder("intervene", output.out, [model], words, context)
    from sinkscope.hooks import Stream, is_encoder_decoder, row_length
    from sinkscope.interventions import NAMED, Subject
    from sinkscope.interventions import named as build_named
    from sinkscope.trials import changed, matters, needed, origin_trial, split
    from sinkscope.trials.changes import uses

    if named is not None and named not in (ORIGIN, *NAMED):
        raise unknown("intervention", named, [*ARMS, ORIGIN, *NAMED])
    batch_size = running.batch_of(inputs.tokens)
    with only_json(output.as_json):
        subject = open_model(model, running)
        purpose = uses(names, on) if named is None else "nothing" if named in WITHOUT_SEARCH else "chooses"
        drawn = replace(inputs, samples=needed(inputs.samples, purpose))
        reading = read_inputs(subject, model, drawn, running)
        batch, stack = single_batch(reading), Stream.of(subject).stack
        note(f"{short(model)}: {reading.description}; first: {reading.first}")
        if is_encoder_decoder(subject):
            note(f"changed: the {stack} alone")
        count = len(next(iter(batch.values())))
        scored = count * inputs.samples // drawn.samples
        cost = estimate_cost(
            subject, batch, _readings(names, scored, count - scored, controls, by, subject), batch_size
        )
        if output.plan_only:
            show_cost(cost, output.as_json, model=model, what=list(names))
            return
        note(str(cost))
        about: dict[str, Any] = {
            "command": "intervene",
            "model": model,
            "what": list(names),
            "input": reading.description,
            "stack": stack,
        }
        shared: dict[str, Any] = {
            "controls": controls,
            "seed": running.seed,
            "epsilon": inputs.epsilon,
            "tolerance": tolerance,
            "batch_size": batch_size,
        }
        with watching() as watch:
            if named is None:
                trial = matters(
                    subject,
                    batch,
                    names,
                    on=on,
                    after=after,
                    by=by,
                    layers=chosen_layers,
                    out=unfinished_folder(folder, context, reading.description),
                    about=about,
                    progress=watch,
                    **shared,
                )
            elif named == ORIGIN:
                trial = origin_trial(subject, batch, sink=position, test=to, about=about, progress=watch, **shared)
            else:
                texts = split(subject, batch, purpose)
                searched = (texts.calibration or texts.scored).inputs
                length = row_length(subject, texts.scored.inputs)
                if position >= length:
                    raise InputError(f"--position {position}: the samples have positions 0 to {length - 1}")
                change = build_named(
                    named,
                    Subject(
                        subject,
                        searched,
                        position,
                        length // 2 if to is None else to,
                        inputs.epsilon,
                        tuple(band or (LAST_BAND,)),
                        protect_sink,
                        batch_size,
                        chosen_layers,
                        chosen_heads,
                        strongest,
                        control,
                    ),
                )
                note(f"{named}: {change.remark}")
                about["acts_on"] = change.remark
                if change.control:
                    about["notes"] = [f"Controls: {change.control}."]
                trial = changed(
                    subject,
                    texts.scored,
                    change.intervention,
                    name=named,
                    position=position if change.position is None else change.position,
                    drawn_in=searched,
                    calibrated_on=texts.record,
                    out=unfinished_folder(folder, context, reading.description),
                    about=about,
                    progress=watch,
                    **shared,
                )
        paths = write_trial(trial, "intervene", folder, extra=_picture(trial, figure))
        clear_unfinished(folder)
    show_trial(trial, paths, as_json=output.as_json, explain=explain)


def _checked_names(what: list[str] | None) -> tuple[str, ...]:
    """The interventions to run, former names replaced. Raises `InputError` for a mixture of kinds."""
    names = []
    for name in what or SINK_ARMS:
        if name in FORMER:
            note(
                "forbid-sink is now hide-sink: the sink stays for the first queries, or the next token takes its place"
            )
        names.append(FORMER.get(name, name))
    if len(names) > 1 and (other := next((name for name in names if name not in ARMS), None)):
        raise InputError(f"--what {other}: one at a time; together run {', '.join(ARMS)}")
    return tuple(dict.fromkeys(names))


def _readings(names: Sequence[str], scored: int, searched: int, controls: int, by: str | None, model: Any) -> int:
    """About how often a text is read: by arms, controls and the unchanged model, and to find the sink before and after.

    A pass in which attention is measured counts twice.
    """
    from sinkscope.hooks import Stream
    from sinkscope.trials.changes import AFTER_CURVE, BANDS

    if names == (ORIGIN,):
        from sinkscope.trials import ORIGIN as TESTS

        return 2 * scored * (1 + len(TESTS) * (1 + controls)) + 2 * searched
    arms = len(names) + ("trim-sink" in names)  # which also runs on other tokens
    if by is not None:
        layers = len(Stream.of(model).attention(model))
        steps = {"after": len(AFTER_CURVE), "layer": layers, "band": min(BANDS, layers)}[by]
        return scored * (1 + arms * steps) + 4 * searched
    return scored * (1 + arms * (1 + controls)) + 4 * searched + 2 * scored * (1 + arms)


def _picture(trial: Trial, figure: str | None) -> Callable[[Path], None]:
    """Writes the figure in a format for papers, if --figure names one."""

    def write(draft: Path) -> None:
        if figure is not None:
            from sinkscope.files.pictures import write_figure

            write_figure(trial.plot(), draft / f"figure.{figure}")

    return write


def _layers(text: str | None) -> tuple[int, ...] | None:
    """Layers of "0,4-7"."""
    if text is None:
        return None
    layers: list[int] = []
    for word in text.split(","):
        bounds = word.strip().split("-")
        if not all(bound.isdecimal() for bound in bounds) or len(bounds) > 2 or int(bounds[0]) > int(bounds[-1]):
            raise InputError(f"--layers {text}: '{word}' is neither a layer nor a range of layers; write 0,4-7")
        layers += range(int(bounds[0]), int(bounds[-1]) + 1)
    return tuple(dict.fromkeys(layers))
