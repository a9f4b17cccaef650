"""`sinkscope cache`: which eviction policy at which budget, for one model: what it costs, and what it saves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command, When
from sinkscope.cli.given import AUTO, Reads, Runs
from sinkscope.cli.measuring.cache_texts import RECALL_MODEL, TOKENS, Task, Texts, Wanted
from sinkscope.cli.measuring.folders import results_folder
from sinkscope.cli.trials import Cost, about, peak, show_cost, show_trial, watching, write_trial
from sinkscope.errors import InputError, unknown
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

    from sinkscope.sinks import Choice
    from sinkscope.trials.texts import Uses

POLICIES = "streaming,h2o,snapkv,keydiff"  # compared where none is named
WINDOWS = 24
BASIC = (
    *("policy", "compare", "budget", "protect", "without_sinks", "task", "text", "corpus", "tokens", "windows"),
    *("tolerance", "explain", "out", "as_json", "help"),
)

Dropping = Literal["prefill", "always"]


class ListingPolicies(Command):
    """A command whose help lists the policies, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.caches import ENGINES, POLICIES, Renumbered

        for param in self.params:
            if isinstance(param, TyperOption) and param.name not in BASIC:
                param.rich_help_panel = "Advanced"
            if param.name == "policy" and isinstance(param, TyperOption):
                engines = ", ".join(ENGINES)
                param.help = f"One policy: {', '.join([*POLICIES, Renumbered.name])}; as engines cache: {engines}."
        super().format_help(ctx, formatter)


def _protects(values: Mapping[str, Any]) -> bool:
    return values["protect"] != "none"


def _noise(values: Mapping[str, Any]) -> bool:
    return Path(values["model"]).name == RECALL_MODEL and values["text"] is None


OF_SINKS = When(_protects, "goes with protected tokens, of which --protect none leaves none")
OF_TEXTS = When(
    lambda values: not _noise(values), f"is not read: {RECALL_MODEL} reads noise with needles, unless --text is given"
)


def cache(
    context: options.Context,
    model: options.Model,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One policy.")] = None,
    compare: Annotated[str | None, typer.Option(metavar="LIST", help=f"Several policies. Default: {POLICIES}.")] = None,
    budget: Annotated[
        str, typer.Option(metavar="LIST", help="Keys that each head keeps: shares of the context, or numbers: 10%,64.")
    ] = "25%",
    protect: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Tokens that stay in every cache, random ones included: measured[@0.2] | online | first:4 | "
            "positions:0,5 | ids:2 | none, joined by +. Default: measured, or nothing where there is no sink.",
        ),
    ] = None,
    without_sinks: Annotated[
        bool,
        typer.Option(
            "--without-sinks", help="Also run each policy without its sinks, with random tokens kept in their place."
        ),
        OF_SINKS,
    ] = False,
    task: Annotated[
        Task,
        typer.Option(
            help="perplexity: texts alone; recall: pairs hidden in texts as well, asked for at the end; auto: recall "
            "for nano-recall, which was trained to answer."
        ),
    ] = "auto",
    text: options.OneText = None,
    corpus: Annotated[options.CorpusName, OF_TEXTS] = AUTO,
    tokens: Annotated[
        int | None,
        typer.Option(min=4, help=f"Tokens in a text. Default: {TOKENS}, or what the model was trained for if less."),
    ] = None,
    windows: Annotated[
        int, typer.Option(min=2, help="Texts that are scored; measured sinks take a quarter more, at least 8.")
    ] = WINDOWS,
    tolerance: Annotated[float, typer.Option(min=0, help="KL in nats a token that counts as free.")] = 0.02,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what the words of the verdict mean."), options.OF_PEOPLE
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where they replace an earlier comparison's. Default: sinkscope-cache/MODEL, "
            "with a hash of the options that are not at their defaults."
        ),
    ] = None,
    plan_only: options.PlanOnly = False,
    as_json: options.AsJson = False,
    scored: Annotated[
        int | None,
        typer.Option(min=3, help="Tokens at the end of a text that are predicted. Default: half of them."),
    ] = None,
    recent: Annotated[
        int | None,
        typer.Option(min=0, help="Newest tokens that stay. Default: 32, or a quarter of the smallest budget if less."),
    ] = None,
    when: Annotated[
        Dropping,
        typer.Option(help="prefill: drop keys after the context; always: at every token after it as well."),
    ] = "prefill",
    controls: Annotated[int, typer.Option(min=0, help="Draws of the random policy.")] = 1,
    rounds: Annotated[int, typer.Option(min=0, help="How often each cache is timed; 0: no times.")] = 0,
    epsilon: Annotated[float | None, typer.Option(help="Threshold of measured and online sinks.")] = None,
    field: Annotated[options.TextField, OF_TEXTS] = None,
    split: Annotated[options.SplitName, OF_TEXTS] = "validation",
    bos: Annotated[options.BosToken, OF_TEXTS] = "auto",
    device: options.Device = None,
    dtype: options.Precision = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    device_map: options.DeviceMap = None,
    batch_size: options.BatchSize = 8,
    attn: options.Attn = None,
    chat_template: Annotated[options.ChatTemplate, OF_TEXTS] = None,
    seed: options.Seed = 0,
) -> None:
    """Compare eviction policies at equal bytes with the full cache and with random ones: predictions, recall, time."""
    names = _policies(policy, compare)
    budgets = _budgets(budget)
    choice = _choice(protect, epsilon)
    folder = results_folder("cache", out, [model], [], context)
    from sinkscope.caches import POLICIES as KEPT
    from sinkscope.trials import eviction_trial, needed

    chooses: Uses = "chooses" if protect is None or "measured" in protect else "nothing"
    with only_json(as_json):
        loaded = options.loaded(model, context)
        wanted = Wanted(model, tokens, scored, windows, needed(windows, chooses), task, seed)
        reads = Reads(field=field, corpus=corpus, split=split, bos=bos)
        runs = Runs(revision=revision, trust_remote_code=trust_remote_code, chat_template=chat_template, seed=seed)
        texts = wanted.texts(loaded, reads, runs, text)
        batch_size = options.batch_of(batch_size, texts.ids.shape[1])
        arms = 1 + len(budgets) * (len(names) * (2 if without_sinks else 1) + controls)
        one_by_one = when == "always" or any(name not in KEPT for name in names)
        seconds = _seconds(loaded, texts, windows, batch_size, rounds, one_by_one=one_by_one) * arms
        cost = Cost(arms * windows, seconds, peak(loaded))
        note(f"{short(model)}: {texts.said}, {texts.context} of them read at once; {arms} caches")
        if plan_only:
            show_cost(cost, as_json, model=model, caches=arms)
            return
        note(str(cost))
        with watching() as watch:
            trial = eviction_trial(
                loaded,
                texts.ids,
                names,
                budgets,
                context=texts.context,
                protect=choice,
                recent=recent,
                when=when,
                without_sinks=without_sinks,
                controls=controls,
                seed=seed,
                tolerance=tolerance,
                batch_size=batch_size,
                needles=texts.needles,
                rounds=rounds,
                about=about("cache", model=model, input=texts.said),
                progress=watch,
            )
        paths = write_trial(trial, "cache", folder)
    show_trial(trial, paths, as_json=as_json, explain=explain)


def _choice(words: str | None, epsilon: float | None) -> Choice | str | None:
    """What --protect and --epsilon say together; None for the default."""
    from sinkscope.sinks import Measured, Online, parse

    if words is not None:
        choice = parse(words)
    if epsilon is None:
        return words
    if words is None:
        return Measured(epsilon)
    if choice == Measured():
        return Measured(epsilon)
    if choice == Online():
        return Online(epsilon)
    raise InputError(f"--epsilon goes with --protect measured or online: write {words} without it, or measured@0.2")


def _seconds(
    model: PreTrainedModel, texts: Texts, windows: int, batch_size: int, rounds: int, *, one_by_one: bool
) -> float:
    """About how long one cache takes: one text is read once in one pass, and one batch a token."""
    from sinkscope.trials import feeding, unchanged

    ids = texts.ids[:batch_size]
    with feeding(model, unchanged(), ids) as feed:
        feed.read(ids[:, :2])  # the first pass of a process is slower
    marks = [time.perf_counter()]
    with feeding(model, unchanged(), ids[:1]) as feed:
        feed.read(ids[:1])
        marks.append(time.perf_counter())
    with feeding(model, unchanged(), ids) as feed:
        feed.read(ids[:, :2])
        marks.append(time.perf_counter())
        feed.read(ids[:, 2:3])
        marks.append(time.perf_counter())
    whole, step = marks[1] - marks[0], marks[3] - marks[2]
    batches, rest = -(-windows // batch_size), texts.ids.shape[1] - texts.context
    seconds = whole * windows * (texts.context / texts.ids.shape[1] if one_by_one else 1.0)
    seconds += batches * rest * step if one_by_one else 0.0
    if texts.needles is not None:
        seconds += batches * 2 * texts.needles.keys.shape[1] * step + 2 * whole * len(texts.needles)
    return seconds + (rounds + 1 if rounds else 0) * (rest * step + whole * len(ids))


def _policies(policy: str | None, compare: str | None) -> list[str]:
    if policy is not None and compare is not None:
        raise InputError("--policy and --compare exclude each other: name one policy, or a list of them")
    from sinkscope.caches import ENGINES, Renumbered
    from sinkscope.caches import POLICIES as KNOWN

    names = [name.strip() for name in (policy or compare or POLICIES).split(",")]
    for name in names:
        if name not in (known := [*KNOWN, Renumbered.name, *ENGINES]):
            raise unknown("policy", name, known)
    if policy is not None and len(names) > 1:
        raise InputError(f"--policy {policy}: one policy; --compare takes several")
    return list(dict.fromkeys(names))


def _budgets(text: str) -> list[int | float]:
    """Budgets of "10%,64"."""
    found: list[int | float] = []
    for part in (part.strip() for part in text.split(",")):
        number = part.removesuffix("%")
        share = number != part
        try:
            value = float(number) / 100 if share else int(number)
        except ValueError:
            raise InputError(f"--budget {text}: '{part}' is no share and no number of keys; write 25% or 64") from None
        if value <= 0 or (share and not value <= 1):
            raise InputError(f"--budget {text}: '{part}' must be above 0{' and at most 100%' if share else ''}")
        found.append(value)
    return list(dict.fromkeys(found))
