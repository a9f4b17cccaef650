"""`sinkscope measure`: the attention sink of one model, of every domain of a folder, or of many models compared."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, When
from sinkscope.cli.measure_many import measure_several, survey_spec
from sinkscope.cli.opening import observer_names, open_model, open_tokenizer, parse_heads, read_inputs
from sinkscope.cli.options import (
    OUTPUT,
    RUNNING,
    InputOptions,
    OutputOptions,
    RunningOptions,
    SamplingOptions,
)
from sinkscope.cli.showing import show_plans, show_written, summary_json, watching
from sinkscope.cli.writing import call_digest, check_formats, old_files, results_folder
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.files import is_intact, manifest_of, replacing, write_json, write_text
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json, plain, show, show_json, table

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.data import InputReading
    from sinkscope.measurement import Measurement
    from sinkscope.report.observatory import HeadMaps

MAPS = 6  # heads whose maps are drawn by default
MAP_TOKENS = 64
DOMAINS = ("figure.html", "domains.csv", "domains.json")  # files over all domains
TOKENS_SHOWN = 8  # rows of a table of tokens on the terminal
HEADS_SHOWN = 5  # columns of the table of heads

ABOUT_DOMAINS = (
    "The sink rate at position 0 on texts of each domain, with 95 % intervals over samples. The paper found "
    "little difference between 17 domains of the Pile."
)
Head = tuple[int, int]


def measures_many(values: Mapping[str, Any]) -> bool:
    """Whether a command line asks for one table over several models or inputs."""
    models, kinds = values.get("models") or [], values.get("kinds") or []
    lists = any(options.is_list(name) for name in models)
    return len(models) > 1 or len(kinds) > 1 or lists or bool(values.get("checkpoints"))


ONE_RUN = When(
    lambda values: not measures_many(values) and not (values["text"] is not None and values["text"].is_dir()),
    "goes with one model on one input",
)
ONE_MODEL = When(lambda values: not measures_many(values), "goes with one model on one input")
MANY_MODELS = When(measures_many, "goes with several models, which are compared")


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions(SamplingOptions):
    """What models read; one model reads the entries of a folder one by one."""

    text: Annotated[
        Path | None,
        typer.Option(
            help="Read this file instead of a corpus: plain text, or JSON lines, CSV or Parquet with one document per "
            "row. Each entry of a folder is measured separately; several models read a folder as one text."
        ),
        options.READS_TEXT,
        options.READS_WORDS,
        options.MEASURES,
    ] = None


MEASURING = MeasuringOptions()


def measure(
    context: options.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="Hub ids, folders, GGUF files, shipped models (nano), saved measurements, or a YAML file of models.",
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="|".join(get_args(options.InputKind)),
            help="What the models read; repeatable. Default: natural.",
        ),
        options.READS_TEXT,
        options.MEASURES,
    ] = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="Measure all checkpoints of a run's folder; repeatable.")
    ] = None,
    sampling: MeasuringOptions = MEASURING,
    running: RunningOptions = RUNNING,
    observers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="all: every definition and mechanism but those of SpectralBands; few: sink rate and norms, faster. "
            "Add others by class name, and your own as module:Name: all,my_module:Mine. Default: all for one model, "
            "few for several.",
        ),
        options.MEASURES,
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            help="Draw the attention map of a head, LAYER.HEAD; repeatable. Default: the strongest heads.",
            rich_help_panel=ADVANCED,
        ),
        ONE_RUN,
        options.MEASURES,
    ] = None,
    position: Annotated[
        int,
        typer.Option(min=0, help="Compare the attention that this position receives.", rich_help_panel=ADVANCED),
        MANY_MODELS,
    ] = 0,
    full: Annotated[
        bool,
        typer.Option("--full", help="Print every layer, definition and metric, not only the summary."),
        options.PRINTS,
        ONE_MODEL,
    ] = False,
    figure: Annotated[options.Figure, ONE_RUN, options.MEASURES] = None,
    tables: Annotated[
        options.TableFormat,
        ONE_RUN,
        options.MEASURES,
    ] = "csv",
    config: options.Config = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Measure where a model has an attention sink, how strong it is, and by which mechanism; compare several models."""
    names = models or []
    for kind in kinds or []:
        if kind not in get_args(options.InputKind):
            raise unknown("input", kind, get_args(options.InputKind))
    for option, values in (("--input", kinds), ("MODEL", names), ("--checkpoints", checkpoints)):
        if twice := [value for value, times in Counter(values).items() if times > 1]:
            raise InputError(f"{option} {twice[0]} is given twice")
    if not names and not checkpoints:
        raise InputError("missing MODEL: name models, a YAML file of models, or --checkpoints RUN")
    if measures_many(context.params):
        measure_several(context, names, checkpoints or [], sampling, running, output, position)
        return
    inputs = InputOptions(**vars(sampling), kind=cast(options.InputKind, kinds[0] if kinds else "natural"))
    if options.is_saved(names[0]):
        _show_saved(names[0], inputs.epsilon, full, output)
        return
    by_domain = inputs.text is not None and inputs.text.is_dir()
    words = [inputs.name, *(["domains"] if by_domain else [])]
    folder = results_folder("measure", output.out, names, words, context)
    if output.plan_only:
        show_plans({names[0]: running.revision}, inputs, running, output.as_json)
        return
    check_formats(figure, tables)
    run = _MeasuringRun(names[0], inputs, running, observer_names(observers or "all"))
    if by_domain:
        run.measure_domains(folder, output.as_json)
        return
    heads = parse_heads("--maps", ",".join(maps) if maps else None) or ()
    if output.out is not None:
        run.manifest = run.manifest_of_call(context)
    run.measure_one(folder, heads, tables, figure, full, output.as_json)


class _MeasuringRun:
    """One model, loaded, and how it is measured."""

    def __init__(self, name: str, inputs: InputOptions, running: RunningOptions, observers: Sequence[str]) -> None:
        self.name, self.inputs, self.running, self.observers = name, inputs, running, observers
        self.manifest: str | None = None

    def manifest_of_call(self, context: options.Context) -> str | None:
        """The name of the file that shows that a folder is the result of this very call on the same model and text.

        It changes with the options, the files of the model, what is read, and the versions that compute. None where
        the model or the text cannot be identified: measuring tells what is wrong with it.
        """
        from sinkscope.measurement import result_key

        try:
            spec = survey_spec(context, [self.name], [], self.running.batch_of(self.inputs.tokens))
            key = result_key(spec.model_copy(update={"observers": self.observers}))
        except (OSError, ValueError):
            return None
        return f"manifest-{call_digest(context, key.hash)[:12]}.json"

    def measure_one(
        self, folder: Path, heads: Sequence[Head], tables: str, figure: str | None, full: bool, as_json: bool
    ) -> None:
        """Measure one input and write the files, unless the manifest shows that they are there; show the summary."""
        from sinkscope.measurement import Measurement

        epsilon = self.inputs.epsilon
        paths: list[Path] = []
        with only_json(as_json):
            if self.manifest is not None and is_intact(folder, self.manifest):
                stored = folder / "measurement.nc"
                measurement = Measurement.load(stored)
                note(f"not measured again: {folder} holds this measurement (delete {stored} to measure anew)")
            else:
                self._open()
                reading = read_inputs(self.model, self.name, self.inputs, self.running)
                measurement = self._measured(reading, short(self.name))
                maps = head_maps(self.model, reading, measurement, heads)
                paths = self._write(measurement, folder, maps, tables, figure)
        if as_json:
            show_json(summary_json(measurement, self.name, self.inputs.name, epsilon))
            return
        title = f"{short(self.name)} on {self.inputs.name} input"
        show_measurement(measurement, title, epsilon, command_line("intervene", self.name, self.inputs), full)
        if paths:
            show_written(paths)

    def measure_domains(self, folder: Path, as_json: bool) -> None:
        """Measure each entry of the text's folder separately, write one table over all, and show it.

        An entry that is too short, or no text, is a row with the reason. Raises `InputError` if all of them are.
        """
        from dataclasses import replace

        from sinkscope.data import domains

        assert self.inputs.text is not None
        rows: list[dict[str, Any]] = []
        measurements: dict[str, Measurement] = {}
        with only_json(as_json):
            places = domains(self.inputs.text)
            if taken := next((place for name, place in places.items() if name in DOMAINS), None):
                raise InputError(f"{taken}: the results need this name for a file of their own: rename the entry")
            self._open()
            for domain, place in places.items():
                try:
                    reading = read_inputs(self.model, self.name, replace(self.inputs, text=place), self.running)
                except UnsupportedModelError:
                    raise  # no text would help
                except InputError as error:
                    note(f"{domain}: left out: {error}")
                    rows.append({"domain": domain, "reason": str(error)})
                    continue
                measurements[domain] = self._measured(reading, domain)
                rows.append(_domain_row(domain, measurements[domain], self.inputs.epsilon))
            if not measurements:
                raise InputError(f"no domain can be measured; {rows[0]['domain']}: {rows[0]['reason']}")
            self._write_domains(rows, measurements, folder)
        if as_json:
            show_json({"model": self.name, "input": self.inputs.name, "epsilon": self.inputs.epsilon, "domains": rows})
            return
        cells = [
            (row["domain"], row["reason"], "", "")
            if "reason" in row
            else (row["domain"], f"{row['sink_rate']:.1f}", f"{row['low']:.1f} – {row['high']:.1f}", row["samples"])
            for row in rows
        ]
        show(plain("each entry of the folder was measured separately:"))
        show(table(("domain", "sink rate, %", "95 % interval", "samples"), cells))
        show_written([folder / name for name in DOMAINS])

    def _open(self) -> None:
        self.model = open_model(self.name, self.running)
        self.tokenizer = open_tokenizer(self.name, self.running)

    def _measured(self, reading: InputReading, label: str) -> Measurement:
        from sinkscope.measurement import measure

        note(f"{label}: {reading.description}; first: {reading.first}")
        with watching() as watch:
            return measure(
                self.model,
                reading.parts,
                observers=self.observers,
                batch_size=self.running.batch_of(self.inputs.tokens),
                progress=lambda done, total: watch(done, total, "measuring"),
                about={
                    "kind": self.inputs.name,
                    "description": reading.description,
                    "first": reading.first,
                    "seed": self.running.seed,
                },
                tokenizer=self.tokenizer,
            )

    def _write(
        self, measurement: Measurement, folder: Path, maps: HeadMaps, form: str, figure: str | None
    ) -> list[Path]:
        """Replace the measurement in `folder` with this one, its tables, page and picture; returns the files."""
        from sinkscope.files.pictures import write_figure
        from sinkscope.measurement.tables import write_tables
        from sinkscope.report.observatory import observatory_page
        from sinkscope.report.page import write_page

        epsilon = self.inputs.epsilon
        tables = measurement.tables(epsilon)
        page = observatory_page(
            measurement,
            f"Attention sink of {short(self.name)}, {self.inputs.name} input",
            epsilon,
            maps,
            definitions=tables["definitions"],
            tokens=tables.get("tokens"),
            map_command=f"{command_line('measure', self.name, self.inputs)} --maps",
            intervene=command_line("intervene", self.name, self.inputs),
        )
        with replacing(folder, partial(old_files, "measure")) as draft:
            measurement.save(draft / "measurement.nc")
            written = [path.name for path in write_tables(tables, draft, form)]
            write_page(page, draft / "figure.html")
            if figure is not None:
                write_figure(measurement.plot(epsilon=epsilon), draft / f"figure.{figure}")
            if self.manifest is not None:
                write_json(draft / self.manifest, manifest_of(draft))
        pictures = [] if figure is None else [f"figure.{figure}"]
        return [folder / name for name in ("figure.html", "measurement.nc", *written, *pictures)]

    def _write_domains(self, rows: list[dict[str, Any]], measurements: Mapping[str, Measurement], folder: Path) -> None:
        import pandas as pd

        from sinkscope.report import sections
        from sinkscope.report.page import Page, write_page
        from sinkscope.report.provenance import facts

        frame = pd.DataFrame(rows)
        measured = frame[frame["sink_rate"].notna()].rename(columns={"domain": "input"})
        page = Page(
            title=f"Attention sink of {short(self.name)}, by domain",
            lead=f"One model on {len(measurements)} domains of text; a head counts where position 0 receives over "
            f"{self.inputs.epsilon:g}.",
            sections=[sections.inputs(measured[["input", "sink_rate", "low", "high", "samples"]], ABOUT_DOMAINS)],
            provenance=facts([], {name: measurement.record for name, measurement in measurements.items()}),
        )
        with replacing(folder, partial(old_files, "measure")) as draft:
            for name, measurement in measurements.items():
                measurement.save(draft / name / "measurement.nc")
            write_text(draft / "domains.csv", frame.to_csv(index=False))
            write_json(draft / "domains.json", rows)
            write_page(page, draft / "figure.html")


def command_line(command: str, name: str, inputs: InputOptions) -> str:
    """The command line that does something else with the same model and input."""
    words = ["--input", inputs.kind] if inputs.medium is None else [f"--{inputs.medium[0]}", str(inputs.medium[1])]
    for option in ("text", "field", "corpus", "split", "bos", "windows", "prompt"):
        if (value := getattr(inputs, option)) != getattr(options.INPUTS, option):
            words += [f"--{option}", str(value)]
    if inputs.chat_template is not None:
        words.append("--chat-template" if inputs.chat_template else "--raw-text")
    return shlex.join(["sinkscope", command, name, *words])


def _show_saved(name: str, epsilon: float, full: bool, output: OutputOptions) -> None:
    """Show a saved measurement; nothing is measured or written."""
    from sinkscope.measurement import Measurement, saved_measurement

    if output.out is not None or output.plan_only:
        option = "--out" if output.out is not None else "--plan"
        raise InputError(f"{option} goes with a model to measure: {name} is a saved measurement, which is only shown")
    path = saved_measurement(name)
    assert path is not None
    measurement = Measurement.load(path)
    model, kind = str(measurement.record["model"]), str(measurement.record["input"].get("kind", "saved"))
    if output.as_json:
        show_json(summary_json(measurement, model, kind, epsilon))
    else:
        show_measurement(
            measurement, f"{short(model)} on {kind} input", epsilon, shlex.join(["sinkscope", "intervene", model]), full
        )


def _domain_row(name: str, measurement: Measurement, epsilon: float) -> dict[str, Any]:
    """A domain's numbers, with the rate of each stack where the model has several."""
    from sinkscope.measurement import rate_at, stack_rates

    rate, stacks = rate_at(measurement.data, epsilon), stack_rates(measurement.data, epsilon)
    by_stack = {f"sink_rate_{stack}": one.value for stack, one in stacks.items()} if len(stacks) > 1 else {}
    samples = measurement.record["samples"]
    return {"domain": name, "samples": samples, "sink_rate": rate.value, "low": rate.low, "high": rate.high, **by_stack}


def head_maps(model: Any, reading: InputReading, measurement: Measurement, heads: Sequence[Head]) -> HeadMaps:
    """The attention maps of `heads`, (row of the measurement's layers, head), by default of the strongest.

    They cover the first tokens of one sample. Raises `InputError` for a head that the model does not have.
    """
    from sinkscope.measurement import AttentionMaps, TokenTexts, layer_labels, measure
    from sinkscope.report.observatory import HeadMaps

    chosen = list(heads) or _strongest_heads(measurement)
    layer_count, head_count = measurement.data.sizes["layer"], measurement.data.sizes["head"]
    labels = layer_labels(measurement.data)
    for layer, head in chosen:
        if layer >= layer_count or head >= head_count:
            counted = "" if labels == [str(row) for row in range(layer_count)] else f" (in tables: {', '.join(labels)})"
            raise InputError(
                f"--maps {layer}.{head}: the model has attention layers 0 to {layer_count - 1}{counted} with heads 0 "
                f"to {head_count - 1}"
            )
    sample = reading.one(MAP_TOKENS)
    maps = measure(model, sample, observers=[AttentionMaps(MAP_TOKENS)]).data["attention_map"].values[0]
    # Not `input_ids`, which an encoder reads where there is a decoder.
    ids = measurement.data["token_id"].values[0].tolist() if "token_id" in measurement.data.coords else []
    row = [token for token in ids[:MAP_TOKENS] if token >= 0]
    texts = TokenTexts.of(measurement.record).line(row, range(len(row)))
    return HeadMaps(
        {(layer, head): maps[layer, head] for layer, head in chosen},
        [str(token) if text is None else text for token, text in zip(row, texts, strict=True)],
    )


def _strongest_heads(measurement: Measurement) -> list[Head]:
    """The heads in which one token receives the most attention, strongest first."""
    import numpy as np

    from sinkscope.measurement import comparable_places, received
    from sinkscope.measurement.metrics import nanmean

    counted = comparable_places(measurement.data)[:, :, None]
    by_head = np.nan_to_num(nanmean(np.where(counted, received(measurement.data), np.nan), 0)).max(-1)
    order = np.argsort(by_head, axis=None)[::-1][:MAPS]
    return [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, by_head.shape), strict=True)]


def show_measurement(measurement: Measurement, title: str, epsilon: float, intervene: str, full: bool) -> None:
    """Print the summary of a measurement.

    Args:
        measurement: The measurement.
        title: The model and its input, as the summary names them.
        epsilon: The attention, 0 to 1, above which a head has a sink.
        intervene: The command line that the summary gives as the next step.
        full: Also print one row per layer, the definitions, and every metric of the strongest heads.
    """
    from rich.text import Text

    from sinkscope.measurement.rates import warn_if_short
    from sinkscope.measurement.summary import summary

    answer = summary(measurement.data, epsilon, intervene=intervene, title=title)
    for number, line in enumerate(answer.lines()):
        show(Text.assemble(plain(line), style="bold" if number < len(answer.sentences) else ""))
    warn_if_short(measurement.data)
    if measurement.record["input"].get("kind") == "first-token":
        _show_first_tokens(measurement, epsilon)
    if not full:
        show(plain("--full shows every layer, definition and metric"))
        return
    _show_layers(measurement, epsilon)
    _show_definitions(measurement, epsilon)
    _show_heads(measurement, epsilon)
    for name, reason in measurement.record["not_measured"].items():
        show(plain(f"not measured: {name}: {reason}"))


def _show_layers(measurement: Measurement, epsilon: float) -> None:
    frame = measurement.table(epsilon)
    several = frame["stack"].nunique() > 1
    rows = [
        (
            f"{row.stack} {row.layer}" if several else row.layer,
            _cell(row.sink_rate, ".1f"),
            _cell(row.low, ".1f", f" – {row.high:.1f}"),
            "–"
            if row.strongest_rate != row.strongest_rate
            else f"{row.strongest_position} ({row.strongest_rate:.1f} %)",
            f"{row.hidden_norm_ratio:.2f}",
            f"{row.value_norm_ratio:.2f}" if "value_norm_ratio" in frame else "–",
            *([_cell(100 * row.slot_mass, ".1f")] if "slot_mass" in frame else []),
        )
        for row in frame.itertuples()
    ]
    columns = ("layer", "sink rate, %", "95 % interval", "strongest at", "hidden norm ×", "value norm ×")
    show(table((*columns, "on slots, %") if "slot_mass" in frame else columns, rows))


def _show_definitions(measurement: Measurement, epsilon: float) -> None:
    """The definitions that apply; the file has their rules and sources, and what the others lack."""
    from sinkscope.measurement import TokenView

    frame = measurement.definitions(epsilon)
    frame = frame[~frame["note"].str.startswith("not observed")]
    several = len(set(measurement.data["stack"].values)) > 1
    title = f"definition of a sink{f' ({TokenView(measurement.data, epsilon).stack})' if several else ''}"
    rows = [
        (row.definition, _cell(row.sinks, ".2f"), _cell(row.position_0, ".0f", " %"), _cell(row.agreement, ".2f"))
        for row in frame.itertuples()
    ]
    show(table((title, "sinks per sample", "at position 0", "agreement"), rows))
    for remark, doubtful in frame[frame["note"] != ""].groupby("note", sort=False):
        show(plain(f"{', '.join(doubtful['definition'])}: {remark}"))


def _show_heads(measurement: Measurement, epsilon: float) -> None:
    """Every metric of the heads that give the most attention to position 0; the file has all heads."""
    from sinkscope.measurement import HEAD_METRICS

    frame = measurement.heads(epsilon)
    if "alpha" not in frame:
        return
    frame = frame.nlargest(HEADS_SHOWN, "alpha")
    several = len(set(measurement.data["stack"].values)) > 1
    names = [
        f"{row.stack} L{row.layer} H{row.head}" if several else f"L{row.layer} H{row.head}"
        for row in frame.itertuples()
    ]
    rows = [(metric.heading(), *map(_cell, frame[metric.name])) for metric in HEAD_METRICS if metric.name in frame]
    show(table(("strongest heads at position 0", *names), rows))


def _cell(value: Any, form: str = ".3g", unit: str = "") -> str:
    import pandas as pd

    if pd.isna(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:{form}}{unit}" if isinstance(value, float) else str(value)


def _show_first_tokens(measurement: Measurement, epsilon: float) -> None:
    """How first tokens differ, and which of them become no sink."""
    frame = measurement.first_tokens(epsilon)
    quartiles = frame["heads"].quantile([0, 0.25, 0.5, 0.75, 1]).tolist()
    show(plain(f"sink rate over {len(frame)} first tokens, quartiles: {', '.join(f'{q:.1f} %' for q in quartiles)}"))
    frame = frame[frame["becomes_sink"].notna()]
    sinks = frame[frame["becomes_sink"]]
    if 2 * len(sinks) > len(frame):
        show(plain(f"these do not become a sink (rate at most half the median): {_listed(frame.drop(sinks.index))}"))
    else:
        show(plain(f"only these become a sink (rate over half the median): {_listed(sinks[::-1])}"))


def _listed(tokens: pd.DataFrame) -> str:
    """The first tokens of a table, and how many more there are."""
    names = ", ".join(f"{row.token!r} ({row.id})" for row in tokens.head(TOKENS_SHOWN).itertuples())
    return f"{names}{f' and {len(tokens) - TOKENS_SHOWN} more' if len(tokens) > TOKENS_SHOWN else ''}" or "none"
