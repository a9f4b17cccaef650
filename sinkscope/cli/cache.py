"""`sinkscope cache`: which eviction policy at which budget, for one model: what it costs, and what it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperOption

from sinkscope.cli import options
from sinkscope.cli.commands import Command
from sinkscope.cli.measuring.cache_texts import TOKENS, Task, Texts, Wanted
from sinkscope.cli.measuring.folders import FILES, old_files, results_folder
from sinkscope.errors import InputError, unknown
from sinkscope.report.terminal import note, only_json, plain, show, show_json, stderr, table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sinkscope.evaluate import CacheComparison
    from sinkscope.evaluate.policies import Protection

POLICIES = "streaming,h2o,snapkv,keydiff"  # compared where none is named
PROTECTIONS = ("none", "measured", "online", "first:N")
MEASURED_ON = 32  # texts whose contexts are measured for `--protect measured`
SEEN_BY = 16  # queries of the context at least that must see a token before it counts as a sink
SMALLEST_RECALL = 0.5  # of the full cache, below which recall says little about caches

ABOUT_TABLE = (
    "kept, MiB: bytes that a text holds behind its context. nats lost: a token, against the full cache, with the 95 % "
    "interval over texts. same: most likely token as with the full cache; alike: tokens written until it differs. ms: "
    "a token's time. Controls: random, and +place, which protects random places instead."
)

When = Literal["prefill", "always"]


class ListingPolicies(Command):
    """A command whose help lists the policies, looked up only then: that imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sinkscope.caches import POLICIES

        for param in self.params:
            if param.name == "policy" and isinstance(param, TyperOption):
                param.help = f"One policy: {', '.join(POLICIES)}."
        super().format_help(ctx, formatter)


def cache(
    context: options.Context,
    model: options.Model,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One policy.")] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="LIST", help=f"Several policies beside each other. Default: {POLICIES}.")
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="LIST", help="Keys that each head keeps: shares of the context, or numbers: 10%,64.")
    ] = "25%",
    protect: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Tokens that stay whatever a policy says. measured: where sinks are in these texts; online: what is a "
            "sink in each prompt; first:N; none.",
        ),
    ] = "none",
    recent: Annotated[
        int | None,
        typer.Option(min=0, help="Newest tokens that stay. Default: 32, or a quarter of the smallest budget if less."),
    ] = None,
    when: Annotated[
        When, typer.Option(help="prefill: drop behind the context; always: at every token after it as well.")
    ] = "prefill",
    task: Annotated[
        Task,
        typer.Option(
            help="perplexity: texts alone; recall: pairs hidden in texts as well, asked for at the end; auto: recall "
            "for nano-recall, which was trained to answer."
        ),
    ] = "auto",
    text: options.OneText = None,
    field: options.TextField = None,
    corpus: options.CorpusName = "python",
    split: options.SplitName = "validation",
    tokens: Annotated[
        int | None, typer.Option(min=4, help=f"Tokens in a text. Default: {TOKENS}; of nano-recall 224.")
    ] = None,
    scored: Annotated[int, typer.Option(min=3, help="How many of them, at the end, are predicted one at a time.")] = 32,
    windows: Annotated[int, typer.Option(min=2, help="Number of texts.")] = 64,
    written: Annotated[
        int, typer.Option(min=0, help="Tokens written behind each context, compared with the full cache's; 0: none.")
    ] = 16,
    rounds: Annotated[int, typer.Option(min=0, help="How often each cache is timed; 0: no times.")] = 3,
    epsilon: options.Epsilon = 0.3,
    bos: options.BosToken = "auto",
    device: options.Device = None,
    dtype: options.Precision = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    device_map: options.DeviceMap = None,
    batch_size: options.BatchSize = 8,
    attn: options.Attn = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results, where they take the place of an earlier comparison's. Default: "
            "sinkscope-cache/MODEL, with a hash of the options that are not at their defaults."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare eviction policies with the full cache and with controls: predictions, recall, memory, time."""
    names = _policies(policy, compare)
    budgets = _budgets(budget)
    protection = _protection(protect)
    folder = results_folder("cache", out, [model], [], context)
    from sinkscope.evaluate import compare_caches
    from sinkscope.evaluate.policies import policy_arms
    from sinkscope.metrics import check_epsilon

    check_epsilon(epsilon)
    with only_json(as_json):
        loaded = options.loaded(model, context)
        batch_size = options.batch_of(batch_size, tokens or TOKENS)
        wanted = Wanted(model, tokens, scored, windows, task, seed)
        source = {"text": text, "corpus": corpus, "split": split, "field": field, "bos": bos, "revision": revision}
        texts = wanted.texts(loaded, {**source, "trust_remote_code": trust_remote_code})
        arms = policy_arms(
            names,
            budgets,
            context=texts.context,
            protection=protection(loaded, texts, epsilon, seed),
            recent=recent,
            when=when,
            seed=seed,
        )
        note(f"{model}: {texts.said}; {len(arms)} caches beside the full one")
        with _watching() as watch:
            found = compare_caches(
                loaded,
                texts.ids,
                arms,
                context=texts.context,
                needles=texts.needles,
                generate=written,
                rounds=rounds,
                batch_size=batch_size,
                about={"model": model, "input": texts.said, "protect": protect, "when": when, "seed": seed},
                progress=watch,
            )
        paths = _write(found, folder)
    if as_json:
        show_json(found.to_json())
    else:
        _show(found)
        show(plain(f"written: {', '.join(map(str, paths))}"))


def _policies(policy: str | None, compare: str | None) -> list[str]:
    if policy is not None and compare is not None:
        raise InputError("--policy and --compare exclude each other: name one policy, or a list of them")
    from sinkscope.caches import POLICIES as KNOWN

    names = [name.strip() for name in (policy or compare or POLICIES).split(",")]
    for name in names:
        if name not in KNOWN:
            raise unknown("policy", name, KNOWN)
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


def _protection(what: str) -> Callable[[PreTrainedModel, Texts, float, int], Protection]:
    """What builds the protection, once there is a model. Raises `InputError` for a name that there is not."""
    kind, colon, number = what.partition(":")
    if what not in ("none", "measured", "online") and not (kind == "first" and number.isdecimal() and int(number)):
        raise (
            unknown("protection", what, PROTECTIONS)
            if not colon
            else InputError(
                f"--protect {what}: write first:N with N of at least 1, or one of {', '.join(PROTECTIONS[:3])}"
            )
        )

    def build(model: PreTrainedModel, texts: Texts, epsilon: float, seed: int) -> Protection:
        from sinkscope.evaluate.policies import Protection
        from sinkscope.probes import AttentionReceived, measure

        if what == "none":
            return Protection.none(texts.context, seed)
        if what == "online":
            return Protection.online(epsilon, texts.context, seed)
        if kind == "first":
            return Protection.first(int(number), texts.context, seed)
        ids = texts.ids[:MEASURED_ON, : texts.context]
        # Of what only a few queries see, such as the last tokens, attention says nothing yet.
        seen = max(1, texts.context - SEEN_BY)
        found = measure(model, ids, observers=[AttentionReceived(f"first:{seen}")])
        made = Protection.measured(found, epsilon, texts.context, seed)
        places = [", ".join(map(str, part)) for part in (made.positions, made.elsewhere.positions)]
        note(f"measured sinks stand at {places[0]}; the controls protect {places[1]} instead")
        return made

    return build


@contextmanager
def _watching() -> Iterator[Callable[[int, int, str], None]]:
    """A bar over the tokens to be read, with the losses so far; on a terminal only."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(bar_width=30), TaskProgressColumn(), TimeRemainingColumn())
    label = TextColumn("{task.description}", markup=False)
    with Progress(*columns, label, console=stderr(), transient=True, disable=not stderr().is_terminal) as bar:
        task = bar.add_task("", total=None)

        def watch(done: int, total: int, said: str) -> None:
            bar.update(task, completed=done, total=total, description=said)

        yield watch


def _write(found: CacheComparison, folder: Path) -> list[Path]:
    """Numbers, table and page, in the place of an earlier comparison's."""
    from functools import partial

    from sinkscope.files import replacing, write_json, write_text
    from sinkscope.report.caches_page import caches_page
    from sinkscope.report.page import write_page

    page = caches_page(found)
    with replacing(folder, partial(old_files, "cache")) as draft:
        found.save(draft / "comparison.nc")
        write_json(draft / "comparison.json", found.to_json())
        write_text(draft / "table.csv", found.table().to_csv(index=False))
        write_page(page, draft / "figure.html")
    return [folder / name for name in FILES["cache"]]


def _show(found: CacheComparison) -> None:
    """A row per cache."""
    frame = found.table()
    recalls, timed = "recall" in frame, "step_ratio" in frame
    columns = ["", "kept, %", "MiB", "perplexity", "nats lost", "from", "to", "same, %"]
    columns += (["alike"] if "agreed" in frame else []) + (["recall, %", "if seen"] if recalls else [])
    columns += ["ms", "× full"] if timed else []
    rows = []
    for row in frame.itertuples():
        cells = [row.arm, f"{100 * row.kept:.1f}", f"{row.held_mib:.3g}", f"{row.perplexity:.4g}", f"{row.loss:+.3f}"]
        cells += [f"{row.loss_low:+.3f}", f"{row.loss_high:+.3f}", f"{100 * row.same:.1f}"]
        cells += [f"{row.agreed:.1f}"] if "agreed" in frame else []
        cells += [f"{100 * row.recall:.1f}", f"{100 * row.recall_seen:.1f}"] if recalls else []
        cells += [f"{row.step_ms:.2f}", f"{row.step_ratio:.2f}"] if timed else []
        rows.append(cells)
    show(table(columns, rows))
    show(plain(ABOUT_TABLE))
    full = frame.iloc[0]
    if recalls and full["recall"] < SMALLEST_RECALL:
        show(
            plain(
                f"with the full cache the model answers {100 * full['recall']:.0f} %: recall says little about caches"
            )
        )
