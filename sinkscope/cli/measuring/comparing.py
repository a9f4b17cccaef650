"""`sinkscope compare`: models, checkpoints and saved measurements side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import options
from sinkscope.cli.given import AUTO, READS, RUNS, Reads, Runs, sharing
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.errors import InputError
from sinkscope.names import short
from sinkscope.report.terminal import only_json, plain, show, show_json, table

if TYPE_CHECKING:
    from sinkscope.measurement import Comparison, Measurement

Things = Annotated[
    list[str],
    typer.Argument(
        metavar="A B ...",
        help="Models, checkpoints, saved measurements (.nc) or folders of them; the first is the base.",
    ),
]
HEADS = 8  # on the terminal, those that differ most


@sharing
def compare(
    context: options.Context,
    things: Things,
    kind: options.Kind = "natural",
    text: options.OneText = None,
    reads: Reads = READS,
    position: Annotated[int, typer.Option(min=0, help="Whose attention received is mapped, counted from 0.")] = 0,
    device: options.Device = None,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results. Default: sinkscope-compare/NAMES, with a hash of the options."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare models, checkpoints or saved measurements: numbers and heads, with intervals of the differences."""
    if len(things) < 2:
        raise InputError("compare takes at least two: models, checkpoints, or saved measurements")
    medium = options.medium_of(context)
    folder = results_folder("compare", out, things, [medium[0] if medium else kind], context)
    from transformers.utils.logging import disable_progress_bar

    from sinkscope.measurement import Comparisons, distinct, saved
    from sinkscope.measurement import compare as side_by_side

    disable_progress_bar()
    with only_json(as_json):
        stored = [saved(thing) for thing in things]
        shared: list[str] = [] if reads.corpus == AUTO else [reads.corpus]  # all read what the first one reads

        def measured(name: str) -> Measurement:
            from sinkscope.cli.measuring.job import NEEDS_TEXT, MeasuringJob, loaded, tokenizer_of
            from sinkscope.data import corpus_of

            model = loaded(name, device, runs)
            if not shared and text is None and kind in NEEDS_TEXT:
                shared.append(corpus_of(model.config))
            job = MeasuringJob(
                name=name,
                model=model,
                tokenizer=tokenizer_of(name, runs.revision, trust_remote_code=runs.trust_remote_code),
                kind=kind,
                reads=replace(reads, corpus=shared[0]) if shared else reads,
                runs=runs if runs.chat_template else replace(runs, chat_template=False),
                observers=["few"],
                medium=medium,
            )
            return job.measured(job.reading(text), short(name))

        found = [one or measured(name) for name, one in zip(things, stored, strict=True)]
        both = side_by_side(*found, names=distinct(things))
        parts = both.parts if isinstance(both, Comparisons) else (both,)
        summary = both.to_json(reads.epsilon, position)
        paths = _write(both, folder, summary, reads.epsilon, position)
    if as_json:
        show_json(summary)
        return
    for part in parts:
        _show(part, reads.epsilon, position)
    show(plain(f"written: {', '.join(map(str, paths))}"))


def _write(both: Any, folder: Path, summary: dict[str, Any], epsilon: float, position: int) -> list[Path]:
    """Numbers, tables and page, in the place of an earlier comparison's; where they are."""
    from functools import partial

    from sinkscope.cli.measuring.folders import old_files
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.comparison_page import comparison_page
    from sinkscope.report.page import write_page

    page = comparison_page(both, epsilon, position)
    with replacing(folder, partial(old_files, "compare")) as draft:
        write_json(draft / "compare.json", summary)
        write_text(draft / "table.csv", both.table(epsilon).to_csv(index=False))
        if all(part.has_partners for part in getattr(both, "parts", (both,))):
            write_text(draft / "heads.csv", both.heads(position).to_csv(index=False))
        write_page(page, draft / "figure.html")
        names = sorted(path.name for path in draft.iterdir())
    return [folder / name for name in names]


def _show(part: Comparison, epsilon: float, position: int) -> None:
    frame = part.table(epsilon)
    differs = (frame["low"] > 0) | (frame["high"] < 0)
    nothing = (frame["first"] == 0) & (frame["second"] == 0)
    shown = frame[~nothing].assign(differs=differs).sort_values("differs", ascending=False, kind="stable")
    rows = [
        (
            row.quantity,
            f"{row.first:.3g}",
            f"{row.second:.3g}",
            f"{row.difference:+.3g}",
            f"{row.low:+.3g}",
            f"{row.high:+.3g}",
        )
        for row in shown.itertuples()
    ]
    show(plain(f"{int(differs.sum())} of {len(frame)} numbers have an interval that excludes 0; they come first"))
    show(table(("", *part.names, "difference", "from", "to"), rows))
    if nothing.any():
        show(plain(f"{int(nothing.sum())} more are 0 in both"))
    if not part.paired:
        show(plain("they read other tokens: differences are of independent samples"))
    if not part.has_partners:
        show(plain("their heads have no partners: other numbers of layers or heads"))
        return
    heads = part.heads(position)
    most = heads.reindex(heads["difference"].abs().nlargest(HEADS).index)
    rows = [
        (
            f"layer {row.layer}, head {row.head}",
            f"{row.first:.3f}",
            f"{row.second:.3f}",
            f"{row.difference:+.3f}",
            f"{row.low:+.3f}",
            f"{row.high:+.3f}",
        )
        for row in most.itertuples()
    ]
    show(table((f"attention received by position {position}", *part.names, "difference", "from", "to"), rows))
    show(plain(f"{int(heads['differs'].sum())} of {len(heads)} heads have an interval that excludes 0"))
