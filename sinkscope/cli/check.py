"""`sinkscope check`: the report card of a model: from a model to what to do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command
from sinkscope.cli.measuring.folders import FILES, old_files, results_folder
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from sinkscope.checks import Card
    from sinkscope.checks.planning import CheckPlan

LINES = 30  # of a card on a terminal, at most
RAISED = 1  # the exit code where a flag of --fail-on is raised
FIRST = (
    *("text", "full", "count", "only", "skipped", "plan_only", "explain", "as_json", "out"),
    *("against", "fail_on", "submit", "device", "help"),
)


class ListingSections(Command):
    """A command whose help lists sections and flags, looked up only then: that imports torch."""

    def format_help(self, ctx: object, formatter: object) -> None:
        from sinkscope.checks import FLAGS, SECTIONS

        for param in self.params:
            if isinstance(param, TyperOption) and param.name not in FIRST:
                param.rich_help_panel = "Advanced"
            if isinstance(param, TyperOption) and param.name == "only":
                param.help = f"Run these sections, whatever the tier: {', '.join(SECTIONS)}."
            if isinstance(param, TyperOption) and param.name == "fail_on":
                param.help = (
                    f"Exit with 1 where one is found: {', '.join(FLAGS)}, or KEY:WORD of a row, as in kv4:costs."
                )
        super().format_help(ctx, formatter)  # type: ignore[arg-type]


def check(
    context: options.Context,
    model: options.Model,
    text: options.OneText = None,
    full: Annotated[
        bool, typer.Option("--full", help="Run every section, on two kinds of texts. Minutes, not seconds.")
    ] = False,
    count: Annotated[int, typer.Option("--texts", min=4, help="Texts that are scored.")] = 24,
    only: Annotated[str | None, typer.Option(metavar="LIST", help="Run these sections.")] = None,
    skipped: Annotated[str | None, typer.Option("--skip", metavar="LIST", help="Leave these sections out.")] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Say what it would take in memory and seconds; load nothing.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print what the words mean."), options.OF_PEOPLE] = False,
    as_json: options.AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the card, its page and finished sections, which a later call reuses. Default: "
            "sinkscope-check/MODEL, with a hash of the options that change numbers."
        ),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="JSON", help="An earlier card: paired differences, row by row.")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(metavar="LIST", help="Exit with 1 where one of these is found.")
    ] = None,
    submit: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write the card for the atlas: numbers with intervals, no text."),
    ] = None,
    device: options.Device = None,
    dtype: options.Precision = "auto",
    field: options.TextField = None,
    controls: Annotated[int, typer.Option(min=0, help="Random controls of each arm.")] = 1,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    device_map: options.DeviceMap = None,
    batch_size: options.BatchSize = 8,
    attn: options.Attn = None,
    seed: options.Seed = 0,
) -> None:
    """Report what a model does with its sink, its BOS and its cache, and what to do about it."""
    folder = results_folder("check", out, [model], [], context)
    from sinkscope.checks import FLAGS, Card, check_flags, chosen
    from sinkscope.checks import check as run_check

    sections = chosen(full=full, only=_names(only), skip=_names(skipped))
    check_flags(_names(fail_on))
    old = None if against is None else Card.load(against)
    batch_size = options.batch_of(batch_size, 128)
    if plan_only:
        from sinkscope.checks.planning import plan

        found = plan(
            model,
            sections,
            full=full,
            count=count,
            batch_size=batch_size,
            dtype=dtype,
            device=options.usable_device(device),
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        show_json(found.to_dict()) if as_json else _show_plan(found)
        return
    with only_json(as_json):
        from sinkscope.cli.measuring.job import tokenizer_of

        loaded = options.loaded(model, context)
        tokenizer = tokenizer_of(model, revision, trust_remote_code=trust_remote_code)
        name = Path(model).name if Path(model).is_file() else model
        note(f"{name}: {', '.join(section.title.lower() for section in sections)}")
        with _watching() as watch:
            card = run_check(
                loaded,
                tokenizer,
                text,
                full=full,
                only=[section.name for section in sections],
                count=count,
                batch_size=batch_size,
                controls=controls,
                seed=seed,
                field=field,
                name=name,
                out=folder,
                progress=watch,
            )
        paths = _write(card, folder)
        if submit is not None:
            from sinkscope.checks.atlas import write_submission

            paths.append(write_submission(card, submit, revision))
    differences = None if old is None else card.against(old)
    raised = [flag for flag in _names(fail_on) if card.raises(flag)]
    if as_json:
        more = {} if differences is None else {"against": differences.to_dict(orient="records")}
        show_json(card.to_json() | more)
    else:
        _show(card, explain=explain)
        if differences is not None:
            names = [str(name) for name in differences.columns]
            show(table(names, [[_cell(value) for value in row] for row in differences.itertuples(index=False)]))
        show(plain(f"written: {', '.join(map(str, paths))}"))
    if raised:
        said = [f"{flag} ({FLAGS[flag]})" if flag in FLAGS else flag for flag in raised]
        stderr().print(plain(f"found: {'; '.join(said)}"))
        raise typer.Exit(RAISED)


def _names(text: str | None) -> list[str]:
    """The names of a,b."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _show(card: Card, *, explain: bool) -> None:
    lines = card.lines()
    for line in lines:
        show(plain(line))
    heads, cells = card.cells(LINES - len(lines) - 3)
    if cells:
        show(table(heads, cells))
    if explain:
        from sinkscope.trials import explained

        show(plain(explained()))
        show(
            plain(
                "A sink takes over 30 % of the attention of the queries that see it. Advice stands at free and small."
            )
        )


def _show_plan(found: CheckPlan) -> None:
    gib = 2**30
    rows = [(title, f"{seconds:.0f} s") for _, title, seconds in found.sections]
    rows += [
        ("all sections", f"{found.seconds:.0f} s on {found.device}, after loading"),
        ("parameters", f"{found.parameters:,} in {found.dtype}"),
        ("memory: weights", f"{found.weights / gib:.2f} GiB"),
        ("memory: beside", f"{found.beside / gib:.2f} GiB"),
        ("download", f"{found.download / gib:.2f} GiB" if found.download else "none: the weights are here"),
    ]
    show(table((f"what {found.model} would take", ""), rows, numbers_from=2))


def _write(card: Card, folder: Path) -> list[Path]:
    """The card, its table and its page, in the place of an earlier one's."""
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.writing import write_report

    with replacing(folder, partial(old_files, "check")) as draft:
        write_json(draft / "card.json", card.to_json())
        write_text(draft / "table.csv", card.table().to_csv(index=False))
        write_report(card, draft / "figure.html")
    return [folder / name for name in FILES["check"]]


@contextmanager
def _watching() -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar that names the section; in a pipe a line for each section, and one every ten seconds."""
    from sinkscope.cli.trials import watching

    before: list[str] = []
    with watching() as watch:

        def show_section(title: str, done: int, total: int, said: str) -> None:
            if title not in before:
                before.append(title)
                if not stderr().is_terminal:
                    note(f"{title} …")
            watch(done, total, ": ".join(filter(None, (title, said))))

        yield show_section


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
