"""`sinkscope check`: the report card of a model, with what to do about each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, LateHelp
from sinkscope.cli.opening import open_model, open_tokenizer, usable_device
from sinkscope.cli.options import MEDIA, OUTPUT, RUNNING, MediaOptions, OutputOptions, RunningOptions
from sinkscope.cli.showing import show_written, watching
from sinkscope.cli.writing import FILES, old_files, results_folder
from sinkscope.errors import InputError
from sinkscope.files import check_writable
from sinkscope.live import duration
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table, width

if TYPE_CHECKING:
    from sinkscope.checks import Card, CheckSection
    from sinkscope.checks.planning import CheckPlan

LINES = 30  # of a card on a terminal, at most
FLAGGED = 1  # the exit code where a flag of --fail-on is raised
SUBMITTED = 24  # texts of each kind that the atlas takes, at least


def _sections_help() -> str:
    from sinkscope.checks import SECTIONS

    return f"Run these sections, whatever the tier: {', '.join(SECTIONS)}."


def _flags_help() -> str:
    from sinkscope.checks import FLAGS

    return f"Exit with 1 if one is found: {', '.join(FLAGS)}, or KEY:WORD of a row, as in kv4:costs."


def check(
    context: options.Context,
    model: options.Model,
    text: options.Text = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Run every section, on two kinds of texts. Takes minutes, not seconds."),
        options.READS_TEXT,
    ] = False,
    count: Annotated[int, typer.Option("--texts", min=4, help="Texts, images or recordings that are scored.")] = 24,
    only: Annotated[
        str | None, typer.Option(metavar="LIST", help="Run these sections."), LateHelp(_sections_help)
    ] = None,
    skipped: Annotated[str | None, typer.Option("--skip", metavar="LIST", help="Leave these sections out.")] = None,
    explain: options.Explain = False,
    against: Annotated[
        Path | None, typer.Option(metavar="JSON", help="An earlier card: print paired differences, row by row.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Exit with 1 if one of these is found."),
        LateHelp(_flags_help),
    ] = None,
    submit: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write the card for the atlas: numbers with intervals, no text."),
    ] = None,
    field: options.TextField = None,
    controls: Annotated[
        int,
        typer.Option(min=0, help="Random controls per arm.", rich_help_panel=ADVANCED),
        options.READS_TEXT,
    ] = 1,
    media: MediaOptions = MEDIA,
    running: RunningOptions = RUNNING,
    output: OutputOptions = OUTPUT,
) -> None:
    """Report what a model does with its sink, its BOS and its cache, and what to do about it."""
    folder = results_folder("check", output.out, [model], [], context)
    from sinkscope.checks import Card, check_flags, check_raisable, chosen
    from sinkscope.checks import check as run_check

    sections = chosen(full=full, only=_names("--only", only), skip=_names("--skip", skipped))
    flags = _names("--fail-on", fail_on)
    check_flags(flags)
    check_raisable(flags, sections if media.medium is None else _of_media(sections, flags, media.medium[0]))
    reads_others = text is not None or media.medium is not None
    whole = full and only is None and skipped is None and not reads_others and controls > 0
    if submit is not None and (not whole or count < SUBMITTED):
        raise InputError(
            f"--submit: the atlas takes whole cards on the texts that come along: add --full, at least {SUBMITTED} "
            "--texts and 1 of --controls, and none of --only, --skip, --text, --images and --audio"
        )
    if submit is not None:
        check_writable(submit)
    earlier = None if against is None else Card.load(against)
    batch_size = running.batch_of(128)

    def planned() -> CheckPlan:
        from sinkscope.checks.planning import plan

        return plan(
            model,
            sections,
            full=full,
            media=media.medium is not None,
            count=count,
            batch_size=batch_size,
            dtype=running.dtype,
            device=usable_device(running.device),
            revision=running.revision,
            trust_remote_code=running.trust_remote_code,
        )

    if output.plan_only:
        show_json(planned().to_dict()) if output.as_json else _show_plan(planned())
        return
    with only_json(output.as_json):
        checked = open_model(model, running)
        tokenizer = open_tokenizer(model, running)
        name = short(model)
        inputs = None
        if media.medium is not None:
            from sinkscope.checks.subject import TOKENS
            from sinkscope.data.media import decoder_positions, media_reading

            reading = media_reading(
                *media.medium,
                checked,
                model,
                samples=count,
                tokens=min(TOKENS, decoder_positions(checked) or TOKENS),
                revision=running.revision,
                prompt=media.prompt,
            )
            inputs = reading.parts
        takes = f"; about {duration(planned().seconds)}, less what is kept from before" if full else ""
        note(f"{name}: {', '.join(section.title.lower() for section in sections)}{takes}")
        with _watching_sections() as watch:
            card = run_check(
                checked,
                tokenizer,
                text,
                inputs=inputs,
                full=full,
                only=[section.name for section in sections],
                count=count,
                batch_size=batch_size,
                controls=controls,
                seed=running.seed,
                field=field,
                name=name,
                revision=running.revision,
                out=folder,
                against=earlier,
                progress=watch,
            )
        paths = _write(card, folder)
        if submit is not None:
            from sinkscope.checks.atlas import write_submission

            paths.append(write_submission(card, submit))
    _show(card, earlier, paths, explain, output.as_json)
    _exit_on([flag for flag in flags if card.raises(flag)])


def _of_media(sections: Sequence[CheckSection], flags: Sequence[str], what: str) -> tuple[CheckSection, ...]:
    """The sections that read images and recordings. Raises `InputError` for none, and for flags that are words."""
    from sinkscope.checks.row import ORDER

    reading = tuple(section for section in sections if section.media)
    if not reading:
        raise InputError(f"--{what}: section {sections[0].name} reads texts; of {what} sink alone is read")
    if words := [flag for flag in flags if flag in ORDER]:
        raise InputError(f"--fail-on {words[0]}: of {what} sink alone is read, whose rows have no words")
    return reading


def _names(option: str, text: str | None) -> list[str]:
    """The names in "a,b". Raises `InputError` for an option without one, which would mean the same as none at all."""
    names = [] if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if text is not None and not names:
        raise InputError(f"{option} '{text}' names nothing")
    return names


def _show(card: Card, earlier: Card | None, paths: list[Path], explain: bool, as_json: bool) -> None:
    differences = None if earlier is None else card.against(earlier)
    if as_json:
        more = {} if differences is None else {"against": differences.to_dict(orient="records")}
        show_json(card.to_json() | more)
        return
    lines, heads, cells = card.screen(LINES, width())
    for line in lines:
        show(plain(line))
    if cells:
        show(table(heads, cells))
    if explain:
        from sinkscope.trials import explained

        show(plain(explained()))
        show(
            plain(
                "A sink receives over 30 % of the attention of the queries that see it. Free and small costs give "
                "advice."
            )
        )
    if differences is not None:
        names = [str(name) for name in differences.columns]
        show(table(names, [[_cell(value) for value in row] for row in differences.itertuples(index=False)]))
    show_written(paths)


def _exit_on(flags: list[str]) -> None:
    from sinkscope.checks import FLAGS

    if flags:
        named = [f"{flag} ({FLAGS[flag]})" if flag in FLAGS else flag for flag in flags]
        stderr().print(plain(f"found: {'; '.join(named)}"))
        raise typer.Exit(FLAGGED)


def _show_plan(plan: CheckPlan) -> None:
    gib = 2**30
    rows = [(title, f"{seconds:.0f} s") for _, title, seconds in plan.sections]
    rows += [
        ("all sections", f"{plan.seconds:.0f} s on {plan.device}, after loading"),
        ("parameters", f"{plan.parameters:,} in {plan.dtype}"),
        ("in fp32 whatever the dtype", "scores of attention, statistics, logits that are compared"),
        ("memory: weights", f"{plan.weights / gib:.2f} GiB"),
        ("memory: activations", f"{plan.beside / gib:.2f} GiB"),
        ("download", f"{plan.download / gib:.2f} GiB" if plan.download else "none: the weights are here"),
    ]
    show(table((f"what {short(plan.model)} would take", ""), rows, numbers_from=2))


def _write(card: Card, folder: Path) -> list[Path]:
    """Replace the card in `folder` with this one, its table and its page; returns the files."""
    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.writing import write_report

    with replacing(folder, partial(old_files, "check")) as draft:
        write_json(draft / "card.json", card.to_json())
        write_text(draft / "table.csv", card.table().to_csv(index=False))
        write_report(card, draft / "figure.html")
    return [folder / name for name in FILES["check"]]


@contextmanager
def _watching_sections() -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar that names the section; in a pipe, one line per section and one every ten seconds."""
    begun: list[str] = []
    with watching() as watch:

        def watch_section(title: str, done: int, total: int, news: str) -> None:
            if title not in begun:
                begun.append(title)
                if not stderr().is_terminal:
                    note(f"{title} …")
            watch(done, total, ": ".join(filter(None, (title, news))))

        yield watch_section


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
