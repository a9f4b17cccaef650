"""`sinkscope cache`: eviction policies at several budgets for one model: what they cost, and what they save."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sinkscope.cli import options
from sinkscope.cli.command import ADVANCED, LateHelp, When
from sinkscope.cli.opening import open_model, open_tokenizer, token_rows
from sinkscope.cli.options import OUTPUT, RUNNING, InputOptions, OutputOptions, RunningOptions, TextOptions
from sinkscope.cli.showing import Cost, peak_memory, show_cost, show_trial, watching
from sinkscope.cli.writing import clear_unfinished, results_folder, unfinished_folder, write_trial
from sinkscope.errors import InputError, unknown
from sinkscope.names import short
from sinkscope.report.terminal import note, only_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from sinkscope.sinks import Choice
    from sinkscope.trials import Asked
    from sinkscope.trials.texts import Uses

POLICIES = "streaming,h2o,snapkv,keydiff"  # compared by default
RECALL_MODEL = "nano-recall"
SAMPLES = 24
TOKENS = 128  # per text, by default
SCORED = 32  # tokens after a context with needles
TOKENS_PER_PAIR = 24  # of a context in which needles are hidden

Dropping = Literal["prefill", "always"]
Task = Literal["auto", "perplexity", "recall"]


def _policies_help() -> str:
    from sinkscope.caches import ENGINES, POLICIES, Renumbered

    return f"One policy: {', '.join([*POLICIES, Renumbered.name])}; as engines cache: {', '.join(ENGINES)}."


def _reads_needles(values: Mapping[str, Any]) -> bool:
    return Path(values["model"]).name == RECALL_MODEL and values["text"] is None


PROTECTS = When(
    lambda values: values["protect"] != "none", "goes with protected tokens, of which --protect none leaves none"
)
READS_TEXT = When(
    lambda values: not _reads_needles(values),
    f"is not read: {RECALL_MODEL} reads noise with needles, unless --text is given",
)


@dataclass(frozen=True, kw_only=True)
class CacheTexts(TextOptions):
    """Texts, where the model does not read needles."""

    corpus: Annotated[options.CorpusName, READS_TEXT] = options.AUTO
    field: Annotated[options.TextField, READS_TEXT] = None
    split: Annotated[options.SplitName, READS_TEXT] = "validation"
    bos: Annotated[options.BosToken, READS_TEXT] = "auto"
    chat_template: Annotated[options.ChatTemplate, READS_TEXT] = None


CACHE_TEXTS = CacheTexts()


def cache(
    context: options.Context,
    model: options.Model,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One policy."), LateHelp(_policies_help)] = None,
    compare: Annotated[str | None, typer.Option(metavar="LIST", help=f"Several policies. Default: {POLICIES}.")] = None,
    budget: Annotated[
        str, typer.Option(metavar="LIST", help="Keys that each head keeps: shares of the context, or numbers: 10%,64.")
    ] = "25%",
    protect: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Tokens that stay in every cache, random ones included: measured[@0.2] | online | first:4 | "
            "positions:0,5 | ids:2 | none, joined by +. Default: measured, or none where there is no sink.",
        ),
    ] = None,
    without_sinks: Annotated[
        bool,
        typer.Option(
            "--without-sinks", help="Also run each policy without its sinks, with random tokens kept in their place."
        ),
        PROTECTS,
    ] = False,
    task: Annotated[
        Task,
        typer.Option(
            help="perplexity: texts only; recall: also pairs hidden in the texts, asked for at the end; auto: recall "
            "for nano-recall, which was trained to answer.",
            rich_help_panel=ADVANCED,
        ),
    ] = "auto",
    tokens: Annotated[
        int | None,
        typer.Option(min=4, help=f"Tokens per text. Default: {TOKENS}, or what the model was trained for if less."),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(min=2, help="Number of texts that are scored; measured sinks take a quarter more, at least 8."),
    ] = SAMPLES,
    explain: options.Explain = False,
    scored: Annotated[
        int | None,
        typer.Option(
            min=3,
            help="Tokens at the end of a text that are predicted. Default: half of them.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    recent: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Newest tokens that stay. Default: 32, or a quarter of the smallest budget if less.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    when: Annotated[
        Dropping,
        typer.Option(
            help="prefill: drop keys after the context; always: also at every token after it.",
            rich_help_panel=ADVANCED,
        ),
    ] = "prefill",
    controls: Annotated[int, typer.Option(min=0, help="Draws of the random policy.", rich_help_panel=ADVANCED)] = 1,
    rounds: Annotated[
        int,
        typer.Option(min=0, help="How often each cache is timed; 0: not at all.", rich_help_panel=ADVANCED),
    ] = 0,
    epsilon: options.SinkEpsilon = None,
    tolerance: options.Tolerance = 0.02,
    texts: CacheTexts = CACHE_TEXTS,
    running: RunningOptions = RUNNING,
    output: OutputOptions = OUTPUT,
) -> None:
    """Compare eviction policies at equal bytes with the full cache and with random ones: predictions, recall, time."""
    names = _policies(policy, compare)
    budgets = _budgets(budget)
    choice = _choice(protect, epsilon)
    folder = results_folder("cache", output.out, [model], [], context)
    from sinkscope.caches import POLICIES as EVICTING
    from sinkscope.trials import eviction_trial, needed

    chooses: Uses = "chooses" if protect is None or "measured" in protect else "nothing"
    with only_json(output.as_json):
        subject = open_model(model, running)
        draw = _CacheTexts(model, subject, texts, running, samples, needed(samples, chooses), task)
        rows = draw.texts(tokens, scored)
        batch_size = running.batch_of(rows.ids.shape[1])
        arms = 1 + len(budgets) * (len(names) * (2 if without_sinks else 1) + controls)
        one_by_one = when == "always" or any(name not in EVICTING for name in names)
        seconds = arms * _seconds(subject, rows, samples, batch_size, rounds, one_by_one=one_by_one)
        cost = Cost(arms * samples, seconds, peak_memory(subject))
        note(f"{short(model)}: {rows.description}, {rows.context} of them read at once; {arms} caches")
        if output.plan_only:
            show_cost(cost, output.as_json, model=model, caches=arms)
            return
        note(str(cost))
        with watching() as watch:
            trial = eviction_trial(
                subject,
                rows.ids,
                names,
                budgets,
                context=rows.context,
                protect=choice,
                recent=recent,
                when=when,
                without_sinks=without_sinks,
                controls=controls,
                seed=running.seed,
                tolerance=tolerance,
                batch_size=batch_size,
                needles=rows.needles,
                rounds=rounds,
                out=unfinished_folder(folder, context, rows.description),
                about={"command": "cache", "model": model, "input": rows.description},
                progress=watch,
            )
        paths = write_trial(trial, "cache", folder)
        clear_unfinished(folder)
    show_trial(trial, paths, as_json=output.as_json, explain=explain)


@dataclass(frozen=True, eq=False)
class _CacheRows:
    """What is read: token ids, how many of each row are the context, and needles where recall is measured."""

    ids: Tensor
    context: int
    needles: Asked | None
    description: str


@dataclass(frozen=True, eq=False)
class _CacheTexts:
    """What a model reads: noise with needles if it was trained on that, natural text otherwise.

    `samples` texts are scored; `count` are drawn, those in which sinks are measured included.
    """

    name: str
    model: PreTrainedModel
    source: TextOptions
    running: RunningOptions
    samples: int
    count: int
    task: Task

    def texts(self, tokens: int | None, scored: int | None) -> _CacheRows:
        """Texts of `tokens` tokens, the last `scored` of which are predicted."""
        if Path(self.name).name == RECALL_MODEL and self.source.text is None:
            return self._noise(tokens, scored)
        length = tokens or self._default_length()
        context = _context(length, scored)
        inputs = InputOptions(**vars(self.source), tokens=length, samples=self.count)
        rows = token_rows(self.model, self.name, inputs, self.running)
        needles = self._needles(rows.input_ids, context) if self.task == "recall" else None
        return _CacheRows(rows.input_ids, context, needles, f"{rows.description}; first: {rows.first}")

    def _needles(self, ids: Tensor, context: int) -> Asked:
        """Pairs hidden in the scored texts, half of which are asked for."""
        from sinkscope.data import ordinary_tokens, vocabulary_of
        from sinkscope.trials.needles import hidden_in

        tokenizer = open_tokenizer(self.name, self.running, required=True)
        words = ordinary_tokens(tokenizer, vocabulary_of(self.model))
        pairs = max(4, context // TOKENS_PER_PAIR)
        scored = ids[self.count - self.samples :, :context]
        return hidden_in(scored, words, pairs=pairs, asked=pairs // 2, seed=self.running.seed)

    def _noise(self, tokens: int | None, scored: int | None) -> _CacheRows:
        from sinkscope.trials import Needles

        length = Needles().length + SCORED if tokens is None else tokens
        context = _context(length, scored or min(SCORED, length // 2))
        seed = self.running.seed
        ids = Needles(length).draw(self.count, seed=seed).context
        asked = None if self.task == "perplexity" else Needles(context).draw(self.samples, seed=seed + 1)
        return _CacheRows(ids, context, asked, f"{self.count} texts of {length} tokens of noise with needles")

    def _default_length(self) -> int:
        """No more tokens than the model was trained for."""
        from sinkscope.hooks import text_config

        trained = getattr(text_config(self.model), "max_position_embeddings", None)
        return min(TOKENS, trained if isinstance(trained, int) and trained > 3 else TOKENS)


def _context(length: int, scored: int | None) -> int:
    """How many tokens precede those that are predicted, by default half of them."""
    scored = scored or length - length // 2
    if scored >= length:
        raise InputError(f"--scored {scored}: a text has {length} tokens, and some must be the context")
    return length - scored


def _choice(words: str | None, epsilon: float | None) -> Choice | str | None:
    """The choice of --protect and --epsilon; None for the default."""
    from sinkscope.sinks import Measured, Online, parse

    choice = Measured() if words is None else parse(words)
    if epsilon is None:
        return words
    if choice == Measured():
        return Measured(epsilon)
    if choice == Online():
        return Online(epsilon)
    raise InputError(f"--epsilon goes with --protect measured or online: write {words} without it, or measured@0.2")


def _seconds(
    model: PreTrainedModel, rows: _CacheRows, samples: int, batch_size: int, rounds: int, *, one_by_one: bool
) -> float:
    """About how long one cache takes, from one text read in one pass and one step of a batch."""
    from sinkscope.trials import feeding, unchanged

    ids = rows.ids[:batch_size]
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
    batches, rest = -(-samples // batch_size), rows.ids.shape[1] - rows.context
    seconds = whole * samples * (rows.context / rows.ids.shape[1] if one_by_one else 1.0)
    seconds += batches * rest * step if one_by_one else 0.0
    if rows.needles is not None:
        seconds += batches * 2 * rows.needles.keys.shape[1] * step + 2 * whole * len(rows.needles)
    return seconds + (rounds + 1 if rounds else 0) * (rest * step + whole * len(ids))


def _policies(policy: str | None, compare: str | None) -> list[str]:
    if policy is not None and compare is not None:
        raise InputError("--policy and --compare exclude each other: name one policy, or a list of them")
    from sinkscope.caches import ENGINES, Renumbered
    from sinkscope.caches import POLICIES as REGISTERED

    known = [*REGISTERED, Renumbered.name, *ENGINES]
    names = [name.strip() for name in (policy or compare or POLICIES).split(",")]
    for name in names:
        if name not in known:
            raise unknown("policy", name, known)
    if policy is not None and len(names) > 1:
        raise InputError(f"--policy {policy}: one policy; --compare takes several")
    return list(dict.fromkeys(names))


def _budgets(text: str) -> list[int | float]:
    """Budgets of "10%,64"."""
    budgets: list[int | float] = []
    for word in (word.strip() for word in text.split(",")):
        number = word.removesuffix("%")
        is_share = number != word
        try:
            value = float(number) / 100 if is_share else int(number)
        except ValueError:
            raise InputError(
                f"--budget {text}: '{word}' is neither a share nor a number of keys; write 25% or 64"
            ) from None
        if value <= 0 or (is_share and not value <= 1):
            raise InputError(f"--budget {text}: '{word}' must be above 0{' and at most 100%' if is_share else ''}")
        if (type(value), value) not in [(type(each), each) for each in budgets]:  # 1 key is not 100 % of them
            budgets.append(value)
    return budgets
