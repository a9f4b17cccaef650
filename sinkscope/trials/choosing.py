"""Chooses heads and a setting on some texts: by derivatives, with the best verified, or by a pass for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float
from torch import nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import checked_inputs, row_length, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.interventions.head_controls import every_head
from sinkscope.interventions.reweigh import Head
from sinkscope.trials.derivatives import HeadEstimate, derivable, estimated_gains
from sinkscope.trials.journal import Journal, identity
from sinkscope.trials.predictions import means

Objective = Literal["loss", "entropy", "error"]
OfHeads = Callable[[tuple[Head, ...] | None], Intervention]
"""Makes a calibration of these heads; None for all."""
Progress = Callable[[int, int, str], object]
"""Called with the number of texts read, their total, and what is being done."""

VERIFIED = 8  # heads of the best setting that get a pass of their own, the most doubtful ones
DERIVATIVE = 4  # the cost of scoring all heads in passes: one forward, and backward for the loss and each draw


@dataclass(frozen=True)
class Option:
    """A setting that may be chosen, by name, for any heads. `whole`: it selects its heads itself."""

    name: str
    of_heads: OfHeads
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Chosen:
    """The setting and the heads that minimize an objective on some texts.

    Attributes:
        option: The setting's name.
        heads: Its heads; none if no head improved, and for an option that selects its own.
        intervention: The calibration; None if nothing was chosen.
        objective: What was minimized.
        before: The objective of the unchanged model, a mean over texts.
        after: The objective under the choice.
        estimated: By how much each head alone would lower the objective, by derivatives, for each option by name.
        gains: The same by a pass of its own, for the heads that had one.
    """

    option: str
    heads: tuple[Head, ...]
    intervention: Intervention | None
    objective: Objective
    before: float
    after: float
    estimated: Mapping[str, Mapping[Head, float]]
    gains: Mapping[str, Mapping[Head, float]]


def choose_heads(
    model: nn.Module,
    inputs: Any,
    options: Sequence[Option],
    *,
    objective: str = "loss",
    heads: Sequence[Head] | None = None,
    exhaustive: bool = False,
    from_token: int = 0,
    batch_size: int = 8,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Chosen:
    """The option, and its heads, that minimize an objective on these texts.

    An option's heads are those that lower the objective each on its own; an option that selects its own heads is tried
    as a whole. The option with the smallest objective in its heads is chosen, or none. A head's gain is estimated from
    derivatives with respect to its factor c in (1 − c) o + c o' (`derivatives`). Then each option is tried in its
    heads, and 8 heads of the best option by passes of their own: those in which slope and curvature disagree most or,
    for entropy, those with the largest gains. `exhaustive`, few heads, and options without derivatives take a pass for
    each option and head.

    Args:
        model: Any causal model whose attention can be changed.
        inputs: The texts to choose on, as `measure` takes them.
        options: The settings to choose from.
        objective: "loss"; "entropy", which needs no targets and is no measure of quality; "error", 1 − accuracy, which
            has no derivative: the loss ranks heads, and passes decide by the error.
        heads: Only these, (layer, head).
        exhaustive: A pass for each option and head.
        from_token: Only predictions from this token on count.
        batch_size: Texts per forward pass.
        out: A folder whose `heads.jsonl` records what is done, so that an interrupted search resumes from there.
        progress: Called as passes end.

    Raises `InputError` for names that do not exist, no options, and a folder of another search.
    """
    model = unwrapped(model)
    if objective not in get_args(Objective):
        raise unknown("objective", objective, get_args(Objective))
    if not options:
        raise InputError("options: give at least one")
    checked, samples = checked_inputs(model, inputs, batch_size)
    if named := [place for option in options for place in option.of_heads(None).positions_named]:
        length = row_length(model, checked)
        if beyond := next((place for place in named if not 0 <= place < length), None):
            raise InputError(f"position {beyond} is in no row: rows have positions 0 to {length - 1}")
    tried = _tried(model, options, heads)
    by_derivative = ranked(options, len(tried), exhaustive=exhaustive)
    search = "" if out is None else identity(model, checked, options, tried, objective, from_token)
    journal = Journal.open(out, search)
    run = _Run(
        model,
        checked,
        samples,
        objective,
        batch_size,
        journal,
        progress,
        _passes(options, tried, by_derivative),
        from_token,
    )
    before = run.passed("", None, None)
    whole: dict[str, float] = {}
    gains: dict[str, dict[Head, float]] = {option.name: {} for option in options}
    for option in options:
        if option.whole:
            whole[option.name] = run.passed(option.name, option, None)
        elif option not in by_derivative:
            gains[option.name] = {head: before - run.passed(option.name, option, (head,)) for head in tried}
    estimates: dict[str, dict[Head, HeadEstimate]] = {}
    if by_derivative:
        estimates = estimated_gains(
            model,
            checked,
            {option.name: option.of_heads(None) for option in by_derivative},
            tried,
            "entropy" if objective == "entropy" else "loss",
            batch_size,
            journal,
            lambda rows: run.counted(DERIVATIVE * rows, "scoring heads"),
            from_token,
        )

    estimated = {name: {head: one.gain for head, one in heads.items()} for name, heads in estimates.items()}

    def together(option: Option) -> tuple[float, Option, tuple[Head, ...] | None]:
        if option.whole:
            return whole[option.name], option, ()
        by_head = {**estimated.get(option.name, {}), **gains[option.name]}  # a pass takes precedence over an estimate
        better = tuple(head for head, gain in sorted(by_head.items()) if gain > 0)
        return (run.passed(option.name, option, better), option, better) if better else (before, option, None)

    results = [together(option) for option in options]
    after, option, chosen = min(results, key=lambda one: one[0])
    if chosen is None and by_derivative:  # no estimate is positive, which the most doubtful heads may contradict
        option = max(by_derivative, key=lambda one: max(estimated[one.name].values()))
    if option.name in estimates:
        scored = estimates[option.name]
        doubtful = sorted(scored, key=lambda head: (scored[head].doubt, scored[head].gain), reverse=True)[:VERIFIED]
        gains[option.name] = {head: before - run.passed(option.name, option, (head,)) for head in doubtful}
        results[options.index(option)] = together(option)
        after, option, chosen = min(results, key=lambda one: one[0])
    if not after < before:
        option, chosen, after = options[0], None, before
    intervention = None if chosen is None else option.of_heads(None if option.whole else chosen)
    run.finished()
    return Chosen(option.name, chosen or (), intervention, objective, before, after, estimated, gains)  # type: ignore[arg-type]


def ranked(options: Sequence[Option], heads: int, *, exhaustive: bool) -> list[Option]:
    """The options whose heads are ranked by derivatives: none if a pass for each is no more work."""
    if exhaustive or heads * len(options) <= VERIFIED:
        return []
    return [option for option in options if not option.whole and derivable(option.of_heads(None))]


def passes(model: nn.Module, options: Sequence[Option], heads: Sequence[Head] | None, *, exhaustive: bool) -> int:
    """The cost of `choose_heads` in passes over the texts, at most."""
    tried = _tried(unwrapped(model), options, heads)
    return _passes(options, tried, ranked(options, len(tried), exhaustive=exhaustive))


def _passes(options: Sequence[Option], tried: Sequence[Head], by_derivative: Sequence[Option]) -> int:
    each = sum(1 if option.whole else len(tried) + 1 for option in options if option not in by_derivative)
    return 1 + each + (DERIVATIVE + len(by_derivative) + VERIFIED + 1 if by_derivative else 0)


def _tried(model: nn.Module, options: Sequence[Option], heads: Sequence[Head] | None) -> list[Head]:
    all_heads = list(every_head(model))
    tried = all_heads if heads is None else [head for head in all_heads if head in {*map(tuple, heads)}]
    if heads is not None and len(tried) < len({*map(tuple, heads)}):
        absent = next(head for head in heads if tuple(head) not in all_heads)
        raise InputError(f"head {absent} does not exist: heads are {all_heads[0]} to {all_heads[-1]}")
    if heads is not None and any(option.whole for option in options):
        raise InputError("this calibration selects its heads itself, query by query: leave out heads")
    return tried


@dataclass(eq=False)
class _Run:
    """Passes over the texts to choose on; each is made once and recorded."""

    model: nn.Module
    inputs: Mapping[str, Any]
    samples: int
    objective: str
    batch_size: int
    journal: Journal
    progress: Progress | None
    total: int
    from_token: int
    done: int = 0

    def passed(self, name: str, option: Option | None, heads: tuple[Head, ...] | None) -> float:
        """The objective under an option in these heads, a mean over texts."""
        key = [name, None if heads is None else [list(head) for head in heads]]
        what = "the model as it is" if option is None else f"{name} in {_count(heads)}"
        scores: Float[np.ndarray, " text"] | None = self.journal.scores(key)
        if scores is not None:
            self.counted(self.samples, what)
            return float(scores.mean())
        changed = None if option is None else option.of_heads(heads)
        names = (self.objective,)

        def counted(texts: int) -> None:
            self.counted(texts, what)

        by_objective = means(self.model, self.inputs, changed, self.batch_size, names, counted, self.from_token)
        scores = by_objective[self.objective]
        self.journal.keep({"pass": key, "scores": scores.tolist()})
        return float(scores.mean())

    def counted(self, readings: int, what: str) -> None:
        self.done += readings
        if self.progress is not None:
            self.progress(min(self.done, self.total * self.samples), self.total * self.samples, what)

    def finished(self) -> None:
        if self.progress is not None:
            self.progress(self.total * self.samples, self.total * self.samples, "chosen")


def _count(heads: tuple[Head, ...] | None) -> str:
    if heads is None:
        return "the heads that it finds"
    return f"head {heads[0][0]}.{heads[0][1]}" if len(heads) == 1 else f"{len(heads)} heads"
