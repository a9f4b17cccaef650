"""`sinkscope quantize`: what quantizing a model costs, which tokens to protect, and what that gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command, When
from sinkscope.cli.given import READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import FILES, old_files, results_folder
from sinkscope.cli.protecting import At, protecting
from sinkscope.cli.trials import about, cost_of, show_cost, show_trial, watching, write_trial
from sinkscope.errors import InputError
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.cli.protecting import Build
    from sinkscope.cli.writing.quantized import Exported
    from sinkscope.quantization import Hazards, Prefix
    from sinkscope.trials import Trial
    from sinkscope.trials.schemes import Find

SHOWN = 8  # sites on a terminal


class ListingSchemes(Command):
    """A command whose help lists the schemes, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.quantization import SCHEMES

        for param in self.params:
            if param.name == "scheme" and isinstance(param, TyperOption):
                param.help = f"How to quantize: {', '.join(SCHEMES)}; other bits and groups too; or MODULE:NAME."
        super().format_help(ctx, formatter)


def _named(values: Mapping[str, Any]) -> Any:
    from sinkscope.quantization import scheme_named

    return scheme_named(values["scheme"])


def _trains_on(values: Mapping[str, Any]) -> bool:
    """Whether a trial fits something, or looks for tokens, in texts that are not scored."""
    from sinkscope.sinks import Choice
    from sinkscope.trials.schemes import takes

    builders = protecting(values["protect"], values["spare"])
    found = None if builders is None else [one for one in builders.values() if isinstance(one, Choice)]
    return takes(_named(values), found) != "nothing"


OF_TRIALS = When(lambda values: values["scheme"] or not values["hazards"], "goes with a --scheme")
OF_CACHES = When(
    lambda values: values["scheme"] and _named(values).caches, "goes with a --scheme of caches, such as kv4-kivi"
)
OF_MAPS = When(
    lambda values: values["scheme"] and not _named(values).caches,
    "goes with a --scheme of linear maps: others round no linear map",
)
OF_CALIBRATED = When(
    lambda values: not values["scheme"] or _trains_on(values),
    "is not read: this --scheme fits nothing, and no token is looked for in texts",
)
OF_PROTECTED = When(lambda values: values["protect"] != ["none"], "goes with protected tokens, of which there are none")


@sharing
def quantize(
    context: options.Context,
    model: options.Model,
    scheme: Annotated[str | None, typer.Option(metavar="NAME", help="How to quantize.")] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="Tokens to keep in full precision, repeatable, each an arm: measured[@ε], outliers[:ratio], first:4, "
            "positions:0,5, ids:2,13, joined by +; prefix[:RATIO|bos|peak|DIR]; none. Default: sinks, outliers and "
            "both where activations are rounded, sinks for caches, none where weights alone are.",
        ),
    ] = None,
    spare: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Linear maps that stay as they are, repeatable: down_proj, layers.0, experts."
        ),
        OF_TRIALS,
        OF_MAPS,
    ] = None,
    hazards: Annotated[
        bool, typer.Option("--hazards", help="What to protect in this model, and why: ranges, site by site.")
    ] = False,
    controls: Annotated[
        int, typer.Option(min=1, help="Random choices of the same budget."), OF_TRIALS, OF_PROTECTED
    ] = 5,
    behind: Annotated[
        int | None,
        typer.Option("--context", min=1, help="For cache schemes: the prefill length. Default: half of a text."),
        OF_CACHES,
    ] = None,
    calibrate_on: Annotated[
        Path | None,
        typer.Option(
            help="A text to calibrate on. Default: other texts of the same source, as many as are scored where weights "
            "or ranges are fitted, a quarter more where tokens are chosen."
        ),
        OF_TRIALS,
        OF_CALIBRATED,
    ] = None,
    in_sample: Annotated[
        bool, typer.Option("--in-sample", help="Calibrate on the scored texts."), OF_TRIALS, OF_CALIBRATED
    ] = False,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Nats a token below which a change counts as free."), OF_TRIALS
    ] = 0.02,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what the words of the verdict mean."), OF_TRIALS, options.OF_PEOPLE
    ] = False,
    kind: options.Kind = "natural",
    text: options.OneText = None,
    reads: Reads = READS,
    device: options.Device = None,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, and for the protected tokens as JSON and safetensors, a prefix with keys and "
            "values. Default: sinkscope-quantize/MODEL-SCHEME, with a hash of the options that are not at their "
            "defaults."
        ),
    ] = None,
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Quantize a model in simulation, and find which tokens to keep in full precision, compared with random ones."""
    _check(scheme, hazards, calibrate_on, in_sample)
    source = context.get_parameter_source("epsilon")
    epsilon = reads.epsilon if source is not None and source.name == "COMMANDLINE" else None
    builders = protecting(protect, spare, epsilon)  # words that say nothing are refused before anything is loaded
    medium = options.medium_of(context)
    words = [scheme or "hazards", *([] if kind == "natural" and medium is None else [medium[0] if medium else kind])]
    folder = results_folder("quantize", out, [model], words, context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope import quantization
    from sinkscope.cli.intervene import of_one_size
    from sinkscope.cli.measuring.job import loaded, reading_of, tokenizer_of
    from sinkscope.cli.writing.quantized import exported_of
    from sinkscope.sinks import Choice, check_epsilon
    from sinkscope.trials import needed, scheme_trial
    from sinkscope.trials.schemes import default_choices, takes

    check_epsilon(reads.epsilon)
    chosen = None if scheme is None else quantization.scheme_named(scheme, skip or ())
    tokens = any(isinstance(one, Choice) for one in (builders or {}).values())
    if tokens and chosen is not None and chosen.protects == "nothing":
        raise InputError(
            f"--scheme {scheme} rounds weights alone, the same for all tokens: give --protect prefix:bos, whose keys "
            "and values stay in full precision, or --protect none"
        )
    disable_progress_bar()
    with only_json(as_json):
        quantized = loaded(model, device, runs)
        tokenizer = tokenizer_of(model, runs.revision)
        count = reads.samples
        if chosen is not None and calibrate_on is None and not in_sample and medium is None:
            wanted = None if builders is None else [one for one in builders.values() if getattr(one, "chooses", True)]
            count = needed(count, takes(chosen, wanted))
        read = reading_of(quantized, model, kind, replace(reads, samples=count), runs, medium, text)
        given = of_one_size(read)
        _check_bos(given, tokenizer)
        note(f"{short(model)}: {read.description}; first: {read.first}")
        if chosen is not None and builders is None and not default_choices(chosen):
            note(
                f"{scheme} rounds weights alone: its cost, with nothing protected; --protect prefix:bos tries a prefix"
            )
        protects = len(default_choices(chosen) if chosen is not None and builders is None else builders or {})
        scored = len(next(iter(given.values()))) * reads.samples // count
        readings = _readings(
            protects, scored, len(next(iter(given.values()))) - scored, controls, hazards, chosen is not None
        )
        cost = cost_of(quantized, given, readings, runs.batch_size)
        if plan_only:
            show_cost(cost, as_json, model=model, scheme=scheme)
            return
        note(f"{cost}; rounding comes on top")
        choices: dict[str, Choice | Prefix | Find] = {}
        prefixes: dict[str, Prefix] = {}

        def found(word: str, build: Build, inputs: Mapping[str, Any]) -> Prefix:
            prefixes[word] = build(At(quantized, inputs, tokenizer))
            return prefixes[word]

        for word, one in ({} if builders is None else builders).items():
            if isinstance(one, Choice):
                choices[word] = one
            elif one.chooses and chosen is not None:  # in texts that are not scored
                choices[word] = partial(found, word, one)
            else:
                choices[word] = found(word, one, given)
        looked = None
        if hazards:
            first = next((choice for choice in choices.values() if isinstance(choice, Choice)), None)
            looked = quantization.hazards(quantized, given, first, batch_size=runs.batch_size)
        trial = None
        if chosen is not None:
            others = None
            if calibrate_on is not None:
                others = of_one_size(reading_of(quantized, model, kind, reads, runs, None, calibrate_on))
            with watching() as watch:
                trial = scheme_trial(
                    quantized,
                    given,
                    chosen,
                    None if builders is None else choices,
                    controls,
                    calibrate_on=others,
                    calibrated_source=str(calibrate_on or read.description),
                    in_sample=in_sample,
                    context=behind,
                    tolerance=tolerance,
                    batch_size=runs.batch_size,
                    seed=runs.seed,
                    about=about("quantize", model=model, input=read.description),
                    progress=watch,
                )
        known = {} if chosen is None or builders is not None else default_choices(chosen)
        known |= {word: one for word, one in choices.items() if isinstance(one, Choice)}
        known |= prefixes
        exported = exported_of(model, quantized, given, known, tokenizer, looked)
        if exported is not None and exported.lacking:
            note(f"keys and values of the prefix are not written: {exported.lacking}")
        paths = _write(model, folder, trial, looked, exported)
    if as_json:
        both = {} if trial is None else trial.to_json()
        show_json({"model": model, **both, **({} if looked is None else {"hazards": looked.to_json()})})
        return
    if trial is not None:
        show_trial(trial, paths, as_json=False, explain=explain)
        _show_bytes(trial)
    if looked is not None:
        _show_hazards(looked)
        if trial is None:
            show(plain(f"written: {', '.join(map(str, paths))}"))


def _readings(choices: int, scored: int, fitted: int, controls: int, hazards: bool, tried: bool) -> int:
    """About how often a text is read: by the unchanged model, everything rounded, each choice with its controls and as
    many first tokens; and to fit, or to find tokens."""
    trial = scored * (2 + choices * (2 + controls)) + 2 * fitted if tried else 0
    return trial + (2 * scored if hazards else 0)


def _check(scheme: str | None, hazards: bool, calibrate_on: Path | None, in_sample: bool) -> None:
    if scheme is None and not hazards:
        raise InputError("give --scheme NAME for a trial, --hazards for what to protect and why, or both")
    if calibrate_on is not None and in_sample:
        raise InputError("--in-sample calibrates on the scored texts, --calibrate-on on others: give one of them")


def _check_bos(given: Mapping[str, Any], tokenizer: Any) -> None:
    """Raises `InputError` for rows that begin with two BOS: a server that adds one makes it three, or one too few."""
    ids, bos = given.get("input_ids"), getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids is not None and ids.shape[1] > 1 and bool((ids[:, :2] == bos).all(1).any()):
        row = int((ids[:, :2] == bos).all(1).nonzero()[0])
        raise InputError(
            f"row {row} begins with two BOS tokens (id {bos}): which of them is the sink then differs from what is "
            "served; leave one out (--bos auto, or a chat template that adds none)"
        )


def _write(
    model: str, folder: Path, trial: Trial | None, looked: Hazards | None, exported: Exported | None
) -> list[Path]:
    """Whatever there is, in the place of an earlier call's."""
    from sinkscope.cli.writing.quantized import write_extra
    from sinkscope.files import replacing
    from sinkscope.report.writing import write_report

    extra = partial(write_extra, looked=looked, exported=exported)
    if trial is not None:
        return write_trial(trial, "quantize", folder, hazards=looked, extra=extra)
    assert looked is not None
    with replacing(folder, partial(old_files, "quantize")) as draft:
        write_report(looked, draft / "figure.html")
        extra(draft)
    return [folder / name for name in FILES["quantize"] if (folder / name).exists()]


def _show_bytes(trial: Trial) -> None:
    """Bytes of matrices, and of caches that really hold what is rounded."""
    if "weight_bytes" in (record := trial.record):
        whole, small = record["weight_bytes_16"], record["weight_bytes"]
        show(plain(f"matrices: {size(small)} with scales, {size(whole)} in 16 bits"))
    if record.get("stored"):
        held = trial.data["bytes"]
        full, rounded = float(held.isel(arm=0)), float(held.sel(arm=str(trial.baseline)))
        show(plain(f"cache of a text after its context: {size(rounded)} with scales, {size(full)} full"))


def size(count: float) -> str:
    """Bytes in the unit that leaves one to four digits: 2.9 MiB, 3,070 KiB."""
    unit, power = ("MiB", 20) if count >= 10 * 2**20 else ("KiB", 10)
    value = count / 2**power
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def _show_hazards(looked: Hazards) -> None:
    rows = [
        (row.block, row.site, f"{row.max_median:.1f}", f"{row.max_median_without:.1f}", f"{row.bits_lost:.1f}",
         f"{row.channel_ratio:.1f}", row.set_by_position)
        for row in looked.worst(SHOWN).itertuples()
    ]  # fmt: skip
    show(table(["block", "site", "max/median", "without", "bits lost", "channel", "set by position"], rows))
    for row in looked.advice.itertuples():
        show(plain(f"{row.what}: {row.where}, since {row.why}"))
