"""Heads chosen on one half of the texts, the effect reported on the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import nn

from sinkscope.calibration.editing import Head
from sinkscope.calibration.scoring import Progress, Scores, scores
from sinkscope.errors import InputError, unknown
from sinkscope.hooks import checked_inputs, part, samples_of, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.interventions.head_controls import every_head
from sinkscope.metrics import Interval, bootstrap

Objective = Literal["loss", "entropy", "error"]
OfHeads = Callable[[tuple[Head, ...] | None], Intervention]
"""Makes a calibration of these heads; None: of all."""

CHOSEN, ALL, NOTHING = "chosen", "all heads", "nothing"


@dataclass(frozen=True)
class Option:
    """One setting that may be chosen, by name, for whatever heads. `whole`: it finds its heads by itself."""

    name: str
    of_heads: OfHeads
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen, and what it does to texts that had no part in it.

    `option`: its name; `heads`: those that it was chosen for, none where no head got better, and of an option that
    finds its heads by itself; `intervention`: None where nothing was chosen. `arms`: scores per text of `nothing`,
    `chosen`, `all heads`, and the controls, on the texts to choose on and on those held out.
    """

    option: str
    heads: tuple[Head, ...]
    intervention: Intervention | None
    objective: Objective
    arms: Mapping[str, tuple[Scores, Scores]]
    gains: Mapping[str, Mapping[Head, float]]
    record: Mapping[str, Any] = field(default_factory=dict)

    def difference(self, arm: str, *, held_out: bool = True, of: str = "loss", level: float = 0.95) -> Interval:
        """By how much an arm's scores differ from those of nothing, paired by text, with a bootstrap interval."""
        if arm not in self.arms:
            raise unknown("arm", arm, self.arms)
        own, none = (self.arms[name][int(held_out)].of(of) for name in (arm, NOTHING))
        values = own - none
        low, high = bootstrap(values, level)
        return Interval(float(values.mean()), float(low), float(high))

    def table(self) -> pd.DataFrame:
        """A row per arm: loss and its differences on both halves, accuracy and entropy on the one held out."""
        rows = []
        for arm, (_, after) in self.arms.items():
            first, held = self.difference(arm, held_out=False), self.difference(arm)
            row: dict[str, Any] = {"arm": arm, "control": arm.startswith("control"), "loss": float(after.loss.mean())}
            row |= {"chosen_on": first.value, "held_out": held.value, "low": held.low, "high": held.high}
            row |= {"right": float(after.right.mean()), "entropy": float(after.entropy.mean())}
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def verdict(self) -> str:
        """The finding in a sentence: what the texts held out say, not those that it was chosen on."""
        if self.intervention is None:
            what = "No head" if any(self.gains.values()) else "Nothing"
            return f"{what} got better by {self.option}: nothing was chosen."
        held, first = self.difference(CHOSEN), self.difference(CHOSEN, held_out=False)
        controls = [self.difference(arm).value for arm in self.arms if arm.startswith("control")]
        sure = "cannot be told from zero" if held.low <= 0 <= held.high else "better" if held.value < 0 else "worse"
        beside = f"; controls {min(controls):+.4f} to {max(controls):+.4f}" if controls else ""
        where = f"in {len(self.heads)} heads" if self.heads else "in the heads that it finds"
        return (
            f"{self.option} {where}: {held.value:+.4f} nats on texts held out "
            f"({held.low:+.4f} to {held.high:+.4f}), {sure}; {first.value:+.4f} on those it was chosen on{beside}."
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the scores of single texts."""
        return {
            "option": self.option,
            "heads": [list(head) for head in self.heads],
            "objective": self.objective,
            "intervention": None if self.intervention is None else self.intervention.describe(),
            "arms": self.table().to_dict("records"),
            "verdict": self.verdict,
            "gains": {name: {f"{a}.{b}": gain for (a, b), gain in own.items()} for name, own in self.gains.items()},
            **self.record,
        }


def choose(
    model: nn.Module,
    inputs: Any,
    options: Sequence[Option],
    *,
    choose_on: int | None = None,
    objective: str = "loss",
    heads: Sequence[Head] | None = None,
    controls: int = 3,
    seed: int = 0,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Choice:
    """Of some calibrations, the one that helps most in the heads that it helps in, and what it does elsewhere.

    On the first `choose_on` texts (half of them) every option is tried in every head alone (`heads`: only in these). An
    option's heads are those whose `objective` gets smaller by it; an option that finds its heads by itself is tried as
    a whole. Of the options, with these heads, the one with the
    smallest objective is chosen. Then nothing, the choice, the option in all heads, and `controls` controls of the
    choice are scored on both parts. The objective is "loss", "entropy" (needs no truth; not a quality), or "error".

    One pass over the texts to choose on for each option and head. Raises `InputError` where a part would have fewer
    than 2 texts, and for names that do not exist.
    """
    model = unwrapped(model)
    if objective not in get_args(Objective):
        raise unknown("objective", objective, get_args(Objective))
    if not options:
        raise InputError("nothing to choose from: give at least one option")
    given, samples = checked_inputs(model, inputs, batch_size)
    count = samples // 2 if choose_on is None else choose_on
    if not 2 <= count <= samples - 2:
        raise InputError(f"choose_on = {count} of {samples} texts: at least 2 to choose on, and 2 that are held out")
    device = torch.device("cpu")
    first, rest = (part(given, rows, samples, device) for rows in (slice(0, count), slice(count, samples)))
    every = list(every_head(model))
    tried = every if heads is None else [head for head in every if head in {*map(tuple, heads)}]
    if heads is not None and len(tried) < len(heads):
        absent = next(head for head in heads if tuple(head) not in every)
        raise InputError(f"head {absent} does not exist: heads are {every[0]} to {every[-1]}")
    if heads is not None and any(option.whole for option in options):
        raise InputError("heads are chosen by the calibration itself, query by query: leave out heads")
    none = scores(model, first, None, batch_size)
    gains, done = {}, 0
    total = sum(1 if option.whole else len(tried) + 1 for option in options)
    best: tuple[float, Option, tuple[Head, ...] | None] = (float(none.of(objective).mean()), options[0], None)
    for option in options:
        own: dict[Head, float] = {}
        for head in () if option.whole else tried:
            found = scores(model, first, option.of_heads((head,)), batch_size)
            own[head] = float((none.of(objective) - found.of(objective)).mean())
            done += 1
            if progress is not None:
                progress(done, total)
        gains[option.name] = own
        better = tuple(head for head, gain in own.items() if gain > 0)
        if better or option.whole:
            changed = option.of_heads(None if option.whole else better)
            together = float(scores(model, first, changed, batch_size).of(objective).mean())
            best = min(best, (together, option, better), key=lambda found: found[0])
        done += 1
        if progress is not None:
            progress(done, total)
    _, option, chosen = best
    return _reported(model, (first, rest), none, option, chosen, objective, gains, controls, seed, batch_size)


def _reported(
    model: nn.Module,
    parts: tuple[dict[str, Any], dict[str, Any]],
    none: Scores,
    option: Option,
    chosen: tuple[Head, ...] | None,
    objective: Any,
    gains: Mapping[str, Mapping[Head, float]],
    controls: int,
    seed: int,
    batch_size: int,
) -> Choice:
    arms: dict[str, Intervention] = {ALL: option.of_heads(None)}
    intervention = None if chosen is None else option.of_heads(None if option.whole else chosen)
    if intervention is not None:
        generator = torch.Generator().manual_seed(seed)
        arms = {CHOSEN: intervention, **({} if option.whole else arms)}
        for number in range(controls):
            arms[f"control {number + 1}"] = intervention.control(generator, model, parts[0])
    found = {NOTHING: (none, scores(model, parts[1], None, batch_size))}
    for name, arm in arms.items():
        found[name] = tuple(scores(model, each, arm, batch_size) for each in parts)  # type: ignore[assignment]
    about: dict[str, Any] = {"chosen_on": samples_of(parts[0]), "held_out": samples_of(parts[1]), "seed": seed}
    about |= {"tokens": parts[0]["input_ids"].shape[1]}
    about |= {"controls": {name: arms[name].describe() for name in arms if name.startswith("control")}}
    return Choice(option.name, chosen or (), intervention, objective, found, gains, about)
