"""`sinkscope survey`: many models on several inputs, one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sinkscope.cli import options
from sinkscope.cli.given import AUTO, READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.errors import InputError
from sinkscope.report.terminal import note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.measurement import Survey, SurveySpec

ABOUT_TEXT = (
    "text: code for models of this package, prose for others (--corpus), in a user's message where a model has a chat "
    "template (--raw-text)"
)
PER_MODEL = ("revision", "chat_template")


@sharing
def survey(
    context: options.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.yaml | MODEL...", help="A survey's file, or hub ids, folders, shipped models."),
    ] = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="All checkpoints of a run's folder; repeatable.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="|".join(get_args(options.InputKind)),
            help="What the models read; repeatable. Default: natural.",
        ),
    ] = None,
    text: options.OneText = None,
    reads: Reads = READS,
    device: options.Device = None,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where tables of an earlier survey are replaced and its results are kept. "
            "Default: sinkscope-survey/NAME of the file or the models, with a hash of what is not at its default."
        ),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Say what it would take in memory, disk and time; load and measure nothing.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure the attention sinks of many models, one at a time; finished ones are not measured again."""
    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    if "batch_size" in given:
        given["batch_size"] = runs.batch_size
    options.medium_of(context)
    folder = results_folder("survey", out, _names(models or [], checkpoints or []), [], context)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of loading weights; downloads keep theirs
    with only_json(as_json):
        spec = _spec(models or [], given)
        if plan_only:
            _plan(spec, as_json)
            return
        if spec.corpus == AUTO and spec.text is None and {"natural", "first-token"} & {*spec.inputs}:
            note(ABOUT_TEXT)
        found = _run(spec, folder, None if out else folder.parent)
    if as_json:
        show_json({"survey": str(folder), **found.to_json()})
    else:
        _show(found)


def _was_given(context: options.Context, name: str) -> bool:
    """Whether an option was set by hand, so that a file's own field counts where it was not."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _names(models: list[str], runs: list[str]) -> list[str]:
    """What the survey's folder is called after."""
    if _is_file(models):
        file = Path(models[0])
        return [file.stem if file.parent == Path() else str(file.with_suffix(""))]
    return [*models, *runs]


def _is_file(models: list[str]) -> bool:
    return len(models) == 1 and Path(models[0]).suffix in options.SPEC_FILES


def _spec(models: list[str], given: dict[str, Any]) -> SurveySpec:
    """A file with the options that were given in place of its fields, or a survey of the models named."""
    from sinkscope.measurement import SurveySpec, load_survey

    changes = {name: value for name, value in given.items() if name in SurveySpec.model_fields and name != "models"}
    per_model = {name: given[name] for name in PER_MODEL if name in given}
    runs = given.get("checkpoints") or []
    if _is_file(models):
        if per_model or runs:
            wrong = next(iter(per_model), "checkpoints").replace("_", "-")
            raise InputError(f"--{wrong} goes with models; in {models[0]} it is a field of each entry of 'models'")
        spec = load_survey(models[0], **changes)
    elif models or runs:
        chat = {name: value for name, value in per_model.items() if name == "chat_template"}
        entries = [{"model": model, **per_model} for model in models] + [{"checkpoints": run, **chat} for run in runs]
        spec = SurveySpec(models=entries, **changes)
    else:
        raise InputError("nothing to survey: name models, a survey's YAML file, or --checkpoints RUN")
    return spec if spec.device_map else spec.model_copy(update={"device": options.usable_device(spec.device)})


def _plan(spec: SurveySpec, as_json: bool) -> None:
    """What each model would take, on all inputs."""
    from sinkscope.cli.measuring.planning import show_plans
    from sinkscope.measurement import survey_models

    read = Reads(tokens=spec.tokens, samples=spec.samples * len(spec.inputs))
    runs = Runs(dtype=spec.dtype, batch_size=spec.batch_size, trust_remote_code=spec.trust_remote_code)
    models = {subject.label: subject for subject in survey_models(spec)}
    show_plans({label: (one.model, one.revision) for label, one in models.items()}, read, runs, spec.device, as_json)


def _run(spec: SurveySpec, folder: Path, others: Path | None) -> Survey:
    from sinkscope.cli.live.survey import watching
    from sinkscope.measurement import measure_models
    from sinkscope.report.survey_page import write_survey_page

    with watching() as watch:
        found = measure_models(spec, folder, watch, others=others)
    write_survey_page(found)
    return found


def _show(found: Survey) -> None:
    from sinkscope.measurement import SURVEY_JSON, SURVEY_MARKDOWN, SURVEY_PAGE, SURVEY_TABLE

    frame = found.wide()
    show(table(frame.columns.tolist(), frame.values.tolist()))
    for row in found.rows:
        if row.status != "measured":
            show(plain(f"{row.label}, {row.input} input: {row.status}, {row.reason}"))
    count = len(found.failures)
    if count:
        show(plain(f"{count} of {len(found.rows)} rows failed; run the same command to try them again"))
    files = ", ".join(str(found.folder / name) for name in (SURVEY_PAGE, SURVEY_MARKDOWN, SURVEY_TABLE, SURVEY_JSON))
    show(plain(f"written: {files}"))
