"""`sinkscope quantize`: what quantizing a model costs, which tokens to spare, and what that gives back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command
from sinkscope.cli.given import READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.choices import WORDS, At, choices_of
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.quantization import Hazards, Study

SHOWN = 8  # sites on a terminal


class ListingSchemes(Command):
    """A command whose help lists the schemes, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.quantization import SCHEMES

        for param in self.params:
            if param.name == "scheme" and isinstance(param, TyperOption):
                param.help = f"How to quantize, other bits too: {', '.join(SCHEMES)}."
        super().format_help(ctx, formatter)


@sharing
def quantize(
    context: options.Context,
    model: options.Model,
    scheme: Annotated[str | None, typer.Option(metavar="NAME", help="How to quantize.")] = None,
    spare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help=f"Tokens to spare, repeatable: {', '.join(WORDS)}. Default: measured; none where a scheme rounds "
            "weights alone.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Linear maps that stay as they are, repeatable: down_proj, layers.0, experts."
        ),
    ] = None,
    hazards: Annotated[
        bool, typer.Option("--hazards", help="What to spare in this model, and why: ranges, site by site.")
    ] = False,
    controls: Annotated[int, typer.Option(min=1, help="Random choices of the same budget.")] = 5,
    behind: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Of schemes of caches: tokens read at once. Default: half of a sample."),
    ] = None,
    kind: options.Kind = "natural",
    text: options.OneText = None,
    reads: Reads = READS,
    device: options.Device = None,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, and for the tokens to spare as JSON and safetensors, a prefix with keys and "
            "values. Default: sinkscope-quantize/MODEL-SCHEME, with a hash of the options that are not at their "
            "defaults."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Quantize a model in simulation, and find which tokens to spare: beside the first tokens and random ones."""
    if scheme is None and not hazards:
        raise InputError("give --scheme NAME for a study, --hazards for what to spare and why, or both")
    if scheme is None and behind is not None:
        raise InputError("--context goes with a --scheme of caches")
    if scheme is None and skip:
        raise InputError("--skip goes with a --scheme of linear maps")
    choices_of(spare or [])  # words that say nothing are refused before anything is loaded
    medium = options.medium_of(context)
    words = [scheme or "hazards", *([] if kind == "natural" and medium is None else [medium[0] if medium else kind])]
    folder = results_folder("quantize", out, [model], words, context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope import quantization
    from sinkscope.cli.intervene import of_one_size
    from sinkscope.cli.measuring.job import loaded, reading_of, tokenizer_of
    from sinkscope.cli.writing.quantized import exported_of, write_quantized
    from sinkscope.metrics import check_epsilon
    from sinkscope.quantization import Spared
    from sinkscope.quantization.schemes import scheme_named

    check_epsilon(reads.epsilon)
    source = context.get_parameter_source("epsilon")
    epsilon = reads.epsilon if source is not None and source.name == "COMMANDLINE" else None
    chosen = None if scheme is None else scheme_named(scheme, skip or ())
    alone = chosen is not None and chosen.spares != "served"
    builders = choices_of(spare or (["none"] if alone else ["measured"]))
    disable_progress_bar()
    with only_json(as_json):
        quantized = loaded(model, device, runs)
        read = reading_of(quantized, model, kind, reads, runs, medium, text)
        given = of_one_size(read)
        tokenizer = tokenizer_of(model, runs.revision)
        _check_bos(given, tokenizer)
        note(f"{model}: {read.description}; first: {read.first}")
        if alone and not spare:
            note(f"{scheme} rounds weights alone: its cost, with nothing spared; --spare prefix:bos studies a prefix")
        at = At(quantized, given, epsilon, tokenizer)
        choices = {word: build(at) for word, build in builders.items()}
        looked = None
        if hazards:
            first = next((choice for choice in choices.values() if isinstance(choice, Spared)), None)
            looked = quantization.hazards(quantized, given, first, batch_size=runs.batch_size)
        study = None
        if chosen is not None:
            with Progress(console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
                task = bar.add_task("quantizing", total=None)
                study = quantization.study(
                    quantized,
                    given,
                    chosen,
                    choices,
                    controls,
                    context=behind,
                    batch_size=runs.batch_size,
                    seed=runs.seed,
                    about={"model": model, "input": read.description},
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                )
        found = _summary(model, study, looked)
        exported = exported_of(model, quantized, given, choices, tokenizer, looked)
        if exported is not None and exported.lacking:
            note(f"keys and values of the prefix are not written: {exported.lacking}")
        paths = write_quantized(folder, found, study, looked, exported)
    if as_json:
        show_json(found)
        return
    if study is not None:
        _show(study)
    if looked is not None:
        _show_hazards(looked)
    show(plain(f"written: {', '.join(map(str, paths))}"))


def _check_bos(given: Mapping[str, Any], tokenizer: Any) -> None:
    """Raises `InputError` for rows that begin with two BOS: a server that adds one makes it three, or one too few."""
    ids, bos = given.get("input_ids"), getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids is not None and ids.shape[1] > 1 and bool((ids[:, :2] == bos).all(1).any()):
        row = int((ids[:, :2] == bos).all(1).nonzero()[0])
        raise InputError(
            f"row {row} begins with two BOS tokens (id {bos}): which of them is the sink then differs from what is "
            "served; leave one out (--bos auto, or a chat template that adds none)"
        )


def _summary(model: str, study: Study | None, looked: Hazards | None) -> dict[str, Any]:
    found: dict[str, Any] = {"model": model}
    found |= {} if study is None else {"study": study.to_json()}
    return found | ({} if looked is None else {"hazards": looked.to_json()})


def _show(study: Study) -> None:
    """A row per arm, then the finding in words."""
    from sinkscope.report.changing import COST, arm_rows

    frame = study.table()
    show(table(["", "spared", COST[study.by], "from", "to", "given back, %", "from", "to"], arm_rows(frame, study.by)))
    show(plain(study.verdict))
    if "weight_bytes" in (record := study.record):
        whole, small = record["weight_bytes_16"], record["weight_bytes"]
        show(plain(f"matrices: {small / 2**20:.3g} MiB with scales, {whole / 2**20:.3g} MiB in 16 bits"))
    held = study.data["held"].values
    if held[1] == held[1]:
        show(
            plain(f"cache of a text at its end: {held[1] / 2**10:.3g} KiB with scales, {held[0] / 2**10:.3g} KiB full")
        )


def _show_hazards(looked: Hazards) -> None:
    rows = [
        (row.block, row.site, f"{row.max_median:.1f}", f"{row.max_median_without:.1f}", f"{row.bits_lost:.1f}",
         f"{row.channel_ratio:.1f}", row.set_by_position)
        for row in looked.worst(SHOWN).itertuples()
    ]  # fmt: skip
    show(table(["block", "site", "max/median", "without", "bits lost", "channel", "set by position"], rows))
    for row in looked.advice.itertuples():
        show(plain(f"{row.what}: {row.where}, since {row.why}"))
