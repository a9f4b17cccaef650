"""`sinkscope quantize`: what quantizing a model costs, which tokens to spare, and what that gives back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from typer.core import TyperCommand, TyperOption

from sinkscope.cli import options
from sinkscope.cli.given import READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.choices import WORDS, choices_of
from sinkscope.cli.measuring.folders import FILES, old_files, results_folder
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sinkscope.quantization import Hazards, Spared, Study

SHOWN = 8  # sites on a terminal


class ListingSchemes(TyperCommand):
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
        typer.Option(metavar="WHAT", help=f"Tokens to spare, repeatable: {', '.join(WORDS)}. Default: measured."),
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
            help="Folder for the results, and for the tokens to spare as JSON and safetensors. Default: "
            "sinkscope-quantize/MODEL-SCHEME, with a hash of the options that are not at their defaults."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Quantize a model in simulation, and find which tokens to spare: beside the first tokens and random ones."""
    if scheme is None and not hazards:
        raise InputError("give --scheme NAME for a study, --hazards for what to spare and why, or both")
    if scheme is None and behind is not None:
        raise InputError("--context goes with a --scheme of caches")
    builders = choices_of(spare or ["measured"])
    medium = options.medium_of(context)
    words = [scheme or "hazards", *([] if kind == "natural" and medium is None else [medium[0] if medium else kind])]
    folder = results_folder("quantize", out, [model], words, context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope import quantization
    from sinkscope.cli.intervene import of_one_size
    from sinkscope.cli.measuring.job import loaded, reading_of, tokenizer_of
    from sinkscope.metrics import check_epsilon
    from sinkscope.quantization.schemes import scheme_named

    check_epsilon(reads.epsilon)
    source = context.get_parameter_source("epsilon")
    epsilon = reads.epsilon if source is not None and source.name == "COMMANDLINE" else None
    chosen = None if scheme is None else scheme_named(scheme)
    disable_progress_bar()
    with only_json(as_json):
        quantized = loaded(model, device, runs)
        read = reading_of(quantized, model, kind, reads, runs, medium, text)
        given = of_one_size(read)
        tokenizer = tokenizer_of(model, runs.revision)
        _check_bos(given, tokenizer)
        note(f"{model}: {read.description}; first: {read.first}")
        choices = {word: build(quantized, given, epsilon) for word, build in builders.items()}
        looked = None
        if hazards:
            first = next(iter(choices.values()), None)
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
        exported = _exported(model, quantized, given, choices, tokenizer, looked)
        paths = _write(folder, found, study, looked, exported)
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


def _exported(
    name: str,
    model: nn.Module,
    given: Mapping[str, Tensor],
    choices: Mapping[str, Spared],
    tokenizer: Any,
    looked: Hazards | None,
) -> tuple[dict[str, Any], Any, Tensor | None] | None:
    """The first choice for other programs: as data, as masks, with the ids it is of; None where nothing is spared."""
    from sinkscope.cli.writing.spared import spared_as_data

    choice = next(iter(choices.values()), None)
    if choice is None or (looked is not None and looked.tokens.empty):
        return None
    known = choice.known(model, given)
    return spared_as_data(name, choice, known, known.text, tokenizer, looked), known, known.text


def _write(
    folder: Path,
    found: dict[str, Any],
    study: Study | None,
    looked: Hazards | None,
    exported: tuple[dict[str, Any], Any, Tensor | None] | None,
) -> list[Path]:
    """Whatever there is, in the place of an earlier call's."""
    from functools import partial

    from sinkscope.cli.writing.spared import write_masks
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.page import write_page
    from sinkscope.report.quantization_page import quantization_page

    page = quantization_page(found["model"], study, looked)
    with replacing(folder, partial(old_files, "quantize")) as draft:
        if study is not None:
            study.save(draft / "study.nc")
            write_json(draft / "study.json", _finite(study.to_json()))
            write_text(draft / "table.csv", study.table().to_csv(index=False))
        if looked is not None:
            write_json(draft / "hazards.json", looked.to_json())
            for name in ("sites", "casts", "advice"):
                write_text(draft / f"{name}.csv", getattr(looked, name).to_csv(index=False))
        if exported is not None:
            data, known, ids = exported
            write_json(draft / "spared.json", data)
            write_masks(draft / "spared.safetensors", known, ids)
        write_page(page, draft / "figure.html")
        written = {path.name for path in draft.iterdir()}
    return [folder / name for name in FILES["quantize"] if name in written]


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not known is null."""
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value


def _show(study: Study) -> None:
    """A row per arm, then the finding in words."""
    from sinkscope.report.quantization_page import COST, arm_rows

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
