"""`sinkscope measure`: the attention sink of one model on one input, or on every domain of a folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import options
from sinkscope.cli.commands import When
from sinkscope.cli.given import READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.cli.measuring.job import MeasuringJob
from sinkscope.cli.measuring.planning import show_plans
from sinkscope.names import short
from sinkscope.report.terminal import only_json, plain, show, show_json

if TYPE_CHECKING:
    from sinkscope.cli.measuring.maps import Head
    from sinkscope.measurement import Measurement


OF_ONE = When(
    lambda values: values["text"] is None or not values["text"].is_dir(),
    "is of one measurement: --text names a folder, each entry of which is measured by itself",
)


@sharing
def measure(
    context: options.Context,
    models: options.Models,
    kind: options.Kind = "natural",
    text: options.TextFile = None,
    reads: Reads = READS,
    windows: options.WindowsOf = "within",
    device: options.Device = None,
    runs: Runs = RUNS,
    observers: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="all: every definition and mechanism; few: sink rate and norms, faster. Further ones by their class, "
            "and your own as module:Name, stand behind: all,my_module:Mine.",
        ),
    ] = "all",
    maps: Annotated[
        list[str] | None,
        typer.Option(help="A head whose attention map is drawn, as LAYER.HEAD; repeatable. Default: the strongest."),
        OF_ONE,
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where they take the place of an earlier measurement's. Default: "
            "sinkscope-measure/MODEL-INPUT, with a hash of the options that are not at their defaults."
        ),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Say what it would take in memory, disk and time; load and measure nothing.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Print every layer, definition and metric, not the summary alone."),
        options.OF_PEOPLE,
    ] = False,
    figure: Annotated[options.Figure, OF_ONE] = None,
    tables: Annotated[options.Tables, OF_ONE] = "csv",
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure where a model has an attention sink, how strong it is, and by which mechanism it works."""
    medium = options.medium_of(context)
    by_domain = text is not None and text.is_dir()
    words = [medium[0] if medium else kind, *(["domains"] if by_domain else [])]
    places = {name: out if out is None or len(models) == 1 else out / options.slug(name) for name in models}
    folders = {name: results_folder("measure", place, [name], words, context) for name, place in places.items()}
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.cli.measuring.job import loaded, tokenizer_of
    from sinkscope.cli.measuring.maps import heads_of
    from sinkscope.cli.measuring.results import show_results
    from sinkscope.measurement import resolve_observers
    from sinkscope.measurement.metrics import check_epsilon

    check_epsilon(reads.epsilon)
    if plan_only:
        show_plans({name: (name, runs.revision) for name in folders}, reads, runs, device, as_json)
        return
    options.check_written(figure, tables)
    resolve_observers(_names(observers))  # before a model is loaded
    wanted = heads_of(maps or [])
    disable_progress_bar()  # of loading weights; downloads keep theirs

    def measured(name: str) -> dict[str, Any]:
        """The summary of one model, which is shown."""
        folder = folders[name]
        with only_json(as_json):
            job = MeasuringJob(
                name=name,
                model=loaded(name, device, runs),
                tokenizer=tokenizer_of(name, runs.revision, trust_remote_code=runs.trust_remote_code),
                kind=kind,
                reads=reads,
                runs=runs,
                observers=_names(observers),
                windows=windows,
                medium=medium,
            )
            if by_domain and text is not None:
                rows = _by_domain(job, text, folder)
            else:
                found, written = _at_once(job, text, folder, wanted, tables, figure)
        if by_domain:
            if not as_json:
                _show_domains(rows, folder)
            return {"model": name, "input": job.input, "epsilon": job.epsilon, "domains": rows}
        if not as_json:
            show_results(
                found, f"{short(name)} on {job.input} input", reads.epsilon, _again("intervene", job, text), full
            )
            page = folder / "figure.html"
            others = ", ".join(path.name for path in written if path != page)
            show(plain(f"written: {page}, and in its folder {others}"))
        summary = found.to_json(reads.epsilon)
        return {**summary, "model": name, "input": job.input, "input_details": summary["input"]}

    summaries = [measured(name) for name in folders]
    if as_json:
        show_json(summaries[0] if len(summaries) == 1 else {"measurements": summaries})


def _names(observers: str) -> list[str]:
    """Observers of "all,my_module:Mine"; the tables need the few."""
    names = [name.strip() for name in observers.split(",")]
    return list(dict.fromkeys(["few", *(name for name in names if name)]))


def _at_once(
    job: MeasuringJob, text: Path | None, folder: Path, wanted: list[Head], tables: str, figure: str | None
) -> tuple[Measurement, list[Path]]:
    """The measurement on one input, and the files that it left."""
    from sinkscope.cli.measuring.maps import head_maps
    from sinkscope.cli.measuring.results import write_results

    given = job.reading(text)
    found = job.measured(given, short(job.name))
    maps = head_maps(job.model, given, found, wanted)
    again, change = f"{_again('measure', job, text)} --maps", _again("intervene", job, text)
    title = f"{short(job.name)}, {job.input} input"
    return found, write_results(found, folder, title, job.epsilon, maps, again, change, tables, figure)


def _again(command: str, job: MeasuringJob, text: Path | None) -> str:
    """The command line that does something else with this model and what it read."""
    words = [f"--{job.medium[0]}", str(job.medium[1])] if job.medium is not None else ["--input", job.kind]
    words += ["--text", str(text)] if text is not None else []
    words += ["--field", job.reads.field] if job.reads.field is not None else []
    return shlex.join(["sinkscope", command, job.name, *words])


def _by_domain(job: MeasuringJob, places: Path, folder: Path) -> list[dict[str, Any]]:
    """A row per domain."""
    from sinkscope.cli.measuring.domains import measure_domains
    from sinkscope.data import domains

    return measure_domains(job, domains(places), folder)


def _show_domains(rows: list[dict[str, Any]], folder: Path) -> None:
    from sinkscope.cli.measuring.domains import show_domains

    show_domains(rows, folder)
