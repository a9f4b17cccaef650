"""`sinkscope measure` with several models or inputs: one table, and each model compared with the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.progress import TimeElapsedColumn

from sinkscope.cli import options
from sinkscope.cli.command import was_given
from sinkscope.cli.opening import observer_names, usable_device
from sinkscope.cli.options import AUTO, OutputOptions, RunningOptions, SamplingOptions
from sinkscope.cli.showing import show_plans, show_written, summary_json
from sinkscope.cli.writing import old_files, results_folder
from sinkscope.errors import InputError
from sinkscope.files import write_json, write_text
from sinkscope.live import LiveView, bars
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.measurement import Comparison, Survey, SurveyProgress, SurveyRow, SurveySpec

HEADS_SHOWN = 8  # those that differ most
ROWS_SHOWN = 20  # of the growing table, which must fit on a screen
DETAILED = 4  # comparisons whose heads are drawn on the page
ABOUT_TEXT = (
    "text: code for models of this package, prose for others (--corpus), in a user's message if a model has a chat "
    "template (--raw-text)"
)
PER_MODEL = ("revision", "chat_template")  # fields of each model in a file


def measure_several(
    context: options.Context,
    models: list[str],
    runs: list[str],
    sampling: SamplingOptions,
    running: RunningOptions,
    output: OutputOptions,
    position: int,
) -> None:
    """Measure models one at a time, without repeating finished results, and compare each with the first.

    Args:
        context: What is on the command line.
        models: Names, saved measurements, or one YAML file.
        runs: Folders of training runs, all checkpoints of which are measured.
        sampling: What the models read.
        running: How they are loaded and run.
        output: What is written and printed.
        position: The position whose attention received is compared head by head.
    """
    spec = survey_spec(context, models, runs, running.batch_of(sampling.tokens))
    if sampling.medium is None and options.MEASURES.holds(context.params) and position >= spec.tokens:
        raise InputError(f"--position {position}: samples have positions 0 to {spec.tokens - 1}")
    words = [] if _is_file(models) else [*spec.inputs]
    folder = results_folder("measure", output.out, _folder_names(models, runs), words, context)
    if output.plan_only:
        _show_plans(spec, running, output.as_json)
        return
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.interventions import load
    from sinkscope.measurement import measure_models

    disable_progress_bar()  # of loading weights; downloads keep theirs
    for path in old_files("measure", folder):  # of one model, or of other models
        path.unlink(missing_ok=True)
    with only_json(output.as_json):
        if spec.corpus == AUTO and spec.text is None and {*options.TEXT_KINDS} & {*spec.inputs}:
            note(ABOUT_TEXT)
        with watching_models() as watch:
            survey = measure_models(spec, folder, watch, others=None if output.out else folder.parent, loader=load)
        comparisons, differences = _compared(survey, position)
        paths = _write(survey, comparisons, differences, position)
    if output.as_json:
        rows = [_row_json(survey, row) for row in survey.rows]
        show_json({"epsilon": survey.epsilon, "folder": str(folder), "models": rows, "differences": differences})
        return
    _show_rows(survey)
    if len(comparisons) == 1:
        _show_comparison(comparisons[0][1], survey.epsilon, position)
    elif comparisons:
        _show_differences(comparisons, survey.epsilon, position)
    show_written(paths)


def survey_spec(context: options.Context, models: list[str], runs: list[str], batch_size: int) -> SurveySpec:
    """A file with the options on the command line in place of its fields, or a survey of the models named."""
    from sinkscope.measurement import SurveySpec, load_survey

    values = {
        "inputs" if name == "kinds" else name: value
        for name, value in context.params.items()
        if was_given(context, name)
    }
    changes = {name: value for name, value in values.items() if name in SurveySpec.model_fields and name != "models"}
    if "batch_size" in changes:
        changes["batch_size"] = batch_size
    if "observers" in changes:
        changes["observers"] = observer_names(changes["observers"])
    per_model = {name: values[name] for name in PER_MODEL if name in values}
    if _is_file(models):
        if per_model or runs:
            option = next(iter(per_model), "checkpoints").replace("_", "-")
            raise InputError(f"--{option} goes with models; in {models[0]} it is a field of each entry of 'models'")
        spec = load_survey(models[0], **changes)
    else:
        chat = {name: value for name, value in per_model.items() if name == "chat_template"}
        entries = [{"model": model, **per_model} for model in models] + [{"checkpoints": run, **chat} for run in runs]
        spec = SurveySpec(models=entries, **changes)
    return spec if spec.device_map else spec.model_copy(update={"device": usable_device(spec.device)})


def _is_file(models: list[str]) -> bool:
    if len(models) > 1 and (lists := [name for name in models if options.is_list(name)]):
        raise InputError(f"{lists[0]}: a file of models goes alone")
    return len(models) == 1 and options.is_list(models[0])


def _folder_names(models: list[str], runs: list[str]) -> list[str]:
    if _is_file(models):
        file = Path(models[0])
        return [file.stem if file.parent == Path() else str(file.with_suffix(""))]
    return [*models, *runs]


def _show_plans(spec: SurveySpec, running: RunningOptions, as_json: bool) -> None:
    """What each model would take, on all inputs."""
    from sinkscope.measurement import survey_models

    sampling = SamplingOptions(tokens=spec.tokens, samples=spec.samples * len(spec.inputs))
    loading = replace(
        running,
        dtype=spec.dtype,
        batch_size=spec.batch_size,
        trust_remote_code=spec.trust_remote_code,
        device=spec.device,
    )
    models = {model.model: model.revision for model in survey_models(spec) if model.saved is None}
    show_plans(models, sampling, loading, as_json)


def _compared(survey: Survey, position: int) -> tuple[list[tuple[str, Comparison]], list[dict[str, Any]]]:
    """Each model compared with the first on the same input, and the same as JSON."""
    comparisons, differences = [], []
    try:
        for kind, comparison in survey.comparisons():
            comparisons.append((kind, comparison))
            differences.append({"input": kind, **comparison.to_json(survey.epsilon, position)})
    except InputError as error:
        note(f"not compared: {error}")
    return comparisons, differences


def _write(
    survey: Survey, comparisons: Sequence[tuple[str, Comparison]], differences: list[dict[str, Any]], position: int
) -> list[Path]:
    """Add the page and the differences to the tables that are there; returns the files."""
    from sinkscope.measurement import SURVEY_JSON, SURVEY_MARKDOWN, SURVEY_PAGE, SURVEY_TABLE, Comparisons
    from sinkscope.report.comparison_page import comparison_page
    from sinkscope.report.page import write_page
    from sinkscope.report.survey_page import survey_page

    page, names = survey_page(survey), [SURVEY_PAGE, SURVEY_MARKDOWN, SURVEY_TABLE, SURVEY_JSON]
    if comparisons:
        write_json(survey.folder / "differences.json", differences)
        write_text(survey.folder / "differences.csv", _joined(differences, "table").to_csv(index=False))
        names += ["differences.csv", "differences.json"]
        heads = _joined(differences, "heads")
        if len(heads):
            write_text(survey.folder / "heads.csv", heads.to_csv(index=False))
            names.append("heads.csv")
        if len(comparisons) <= DETAILED:
            parts = Comparisons(tuple(comparison for _, comparison in comparisons))
            more = comparison_page(parts, survey.epsilon, position).sections
            page = replace(page, sections=[*page.sections, *more])
    write_page(page, survey.folder / SURVEY_PAGE)
    return [survey.folder / name for name in names]


def _joined(differences: list[dict[str, Any]], part: str) -> pd.DataFrame:
    """One table or the heads of all comparisons, with the names of input and models in front."""
    import pandas as pd

    frames = [
        pd.DataFrame(each[part]).assign(input=each["input"], base=each["names"][0], model=each["names"][1])
        for each in differences
        if each[part]
    ]
    if not frames:
        return pd.DataFrame()
    frame = pd.concat(frames, ignore_index=True)
    keys = ["input", "base", "model"]
    return frame[[*keys, *(name for name in frame.columns if name not in keys)]]


def _row_json(survey: Survey, row: SurveyRow) -> dict[str, Any]:
    """A row as JSON: the numbers of one model on one input as `measure` gives them, or why there are none."""
    names = ("label", "model", "input", "status", "reason", "revision", "pair", "curve", "step", "seconds", "results")
    about = {name: getattr(row, name) for name in names}
    if row.results is None:
        return about
    return {**summary_json(survey.measurement(row), row.model, row.input, survey.epsilon), **about}


def _show_rows(survey: Survey) -> None:
    frame = survey.wide()
    show(table(frame.columns.tolist(), frame.values.tolist()))
    for row in survey.rows:
        if row.status != "measured":
            show(plain(f"{row.label}, {row.input} input: {row.status}, {row.reason}"))
    count = len(survey.failures)
    if count:
        show(plain(f"{count} of {len(survey.rows)} rows failed; run the same command to try them again"))


def _show_differences(comparisons: Sequence[tuple[str, Comparison]], epsilon: float, position: int) -> None:
    """One line per comparison: the difference of the sink rate, and how many heads differ."""
    rows = []
    for kind, comparison in comparisons:
        frame = comparison.table(epsilon).set_index("quantity")
        rate = f"sink rate at position {position}, %"
        cells = ("–", "–", "–") if rate not in frame.index else _signed(frame.loc[rate])
        heads = comparison.heads(position) if comparison.has_partners else None
        differing = "–" if heads is None else f"{int(heads['differs'].sum())} of {len(heads)}"
        rows.append((comparison.names[1], kind, *cells, differing))
    title = f"less {comparisons[0][1].names[0]}"
    show(table((title, "input", "sink rate, points", "from", "to", "heads that differ"), rows, numbers_from=2))
    if not all(comparison.paired for _, comparison in comparisons):
        show(plain(UNPAIRED))


UNPAIRED = (
    "where models read different tokens, differences are of independent samples; --raw-text and --corpus make models "
    "of one tokenizer read the same"
)


def _signed(row: Any) -> tuple[str, str, str]:
    return f"{row['difference']:+.3g}", f"{row['low']:+.3g}", f"{row['high']:+.3g}"


def _show_comparison(comparison: Comparison, epsilon: float, position: int) -> None:
    frame = comparison.table(epsilon)
    differs = (frame["low"] > 0) | (frame["high"] < 0)
    zero = (frame["first"] == 0) & (frame["second"] == 0)
    shown = frame[~zero].assign(differs=differs).sort_values("differs", ascending=False, kind="stable")
    rows = [
        (row["quantity"], f"{row['first']:.3g}", f"{row['second']:.3g}", *_signed(row)) for _, row in shown.iterrows()
    ]
    show(plain(f"{int(differs.sum())} of {len(frame)} numbers have an interval that excludes 0; they come first"))
    show(table(("", *comparison.names, "difference", "from", "to"), rows))
    if zero.any():
        show(plain(f"{int(zero.sum())} more are 0 in both"))
    if not comparison.paired:
        show(plain(UNPAIRED))
    if not comparison.has_partners:
        show(plain("heads are not compared: the models have different numbers of layers or heads"))
        return
    heads = comparison.heads(position)
    largest = heads.reindex(heads["difference"].abs().nlargest(HEADS_SHOWN).index)
    rows = [
        (
            f"layer {row.layer}, head {row.head}",
            f"{row.first:.3f}",
            f"{row.second:.3f}",
            f"{row.difference:+.3f}",
            f"{row.low:+.3f}",
            f"{row.high:+.3f}",
        )
        for row in largest.itertuples()
    ]
    show(table((f"attention received by position {position}", *comparison.names, "difference", "from", "to"), rows))
    show(plain(f"{int(heads['differs'].sum())} of {len(heads)} heads have an interval that excludes 0"))


def watching_models() -> LiveView[SurveyProgress]:
    """The progress of `measure_models`: a live view on a terminal, one line per finished row elsewhere."""
    view = _ModelsView()
    return LiveView(view.draw, view.lines, stderr(), transient=True, status=view.status)


class _ModelsView:
    """A bar over the models, one over the samples of the current model, and the newest rows."""

    def __init__(self) -> None:
        self.bars = bars(TimeElapsedColumn(), width=30)
        self.models = self.bars.add_task("models", total=None)
        self.samples = self.bars.add_task("", total=None)

    def lines(self, progress: SurveyProgress) -> Iterator[tuple[int, str]]:
        for index, row in enumerate(progress.rows):
            yield index, f"{row.label}, {row.input} input: {_outcome(row)}"

    def status(self, progress: SurveyProgress) -> str:
        """The current model, and how much of it is done."""
        done = f"{progress.done} of {progress.samples} samples" if progress.samples else "loading"
        return f"{progress.label}, {progress.input} input: {done} (model {progress.model} of {progress.models})"

    def draw(self, progress: SurveyProgress) -> Group:
        ended = not progress.label
        self.bars.update(self.models, completed=progress.model - (not ended), total=progress.models)
        name = plain(f"{progress.label}, {progress.input} input").plain
        self.bars.update(
            self.samples,
            description=name if progress.samples else f"loading {name}",
            completed=progress.done,
            total=progress.samples or None,
            visible=not ended,
        )
        rows = [(row.label, row.input, _outcome(row)) for row in progress.rows[-ROWS_SHOWN:]]
        return Group(table(("model", "input", "sink rate at position 0"), rows, numbers_from=3), self.bars)


def _outcome(row: SurveyRow) -> str:
    if row.sink_rate is None:
        return row.status
    if row.stacks:
        return ", ".join(
            "–" if rate.sink_rate is None else f"{rate.stack} {rate.sink_rate:.2f} %" for rate in row.stacks
        )
    return f"{row.sink_rate:.2f} % ({row.low:.2f} to {row.high:.2f})"
