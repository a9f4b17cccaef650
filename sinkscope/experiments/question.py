"""A question as a value: variations of a job, and claims stated before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.observed import Observed
from sinkscope.statistics.claims import Above, Below, Claim, Within

if TYPE_CHECKING:  # jobs load torch, without which findings can be read
    from sinkscope.experiments.jobs import Job

Scale = Literal["nano", "mini", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
RECIPE_OF: dict[Scale, str] = {"nano": "nano", "mini": "mini", "paper": "60m"}
TIMES = "times "  # before a factor: a change to so many times the recipe's own value
SHOWN = ("loss", "sink_mass", "lift", "sink_0", "sink_1", "sink_2", "strongest", "slot_mass", "slot", "norm_ratio")

Runs = Mapping[str, Observed]  # of one seed, by the label of their variation
SeedEffect = Callable[[Runs], float]
Base = Callable[[str, Mapping[str, Any]], "Job"]  # of a scale and changed fields


def recipe(scale: str, changes: Mapping[str, Any]) -> Job:
    """The `Recipe` of a scale, with dotted fields changed: what questions vary unless they say otherwise."""
    from sinkscope.experiments.jobs import LabTraining

    return LabTraining.changed(RECIPE_OF[scale], changes)  # type: ignore[index]


def task(name: str) -> Base:
    """A question's base: a task (`sinkscope.task`), by its name, with fields changed."""

    def at_scale(scale: str, changes: Mapping[str, Any]) -> Job:
        from sinkscope.experiments.jobs import Task, task_named

        kind = task_named(name)
        if not issubclass(kind, Task):
            raise InputError(f"'{name}' is a job without scales of its own: give a function that makes it as `base`")
        return kind.at_scale(scale, changes)

    return at_scale


@dataclass(frozen=True)
class Variation:
    """A job with fields changed: dotted fields and their values. `published`: what the source found, by metric."""

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Assertion:
    """A claim and the number that decides it: `effect` makes one of the runs of a seed (label → what was observed).

    `from_seed`: at `nano` the runs of lower seeds do not count, since they were known when the claim was made.
    """

    claim: Claim
    effect: SeedEffect
    from_seed: int = 0

    def first_seed(self, scale: str) -> int:
        """The lowest seed that counts at a scale."""
        return self.from_seed if scale == "nano" else 0


@dataclass(frozen=True)
class Withdrawn:
    """A claim that is no longer judged: its name and statement as they were, and why."""

    name: str
    statement: str
    reason: str


def above(margin: float, effect: SeedEffect, name: str, statement: str, source: str, from_seed: int = 0) -> Assertion:
    """The claim that an effect exceeds a margin, in the units of its metric, by its interval over seeds."""
    return Assertion(Claim(name, statement, source, Above(margin)), effect, from_seed)


def above_ratio(
    margin: float, effect: SeedEffect, name: str, statement: str, source: str, from_seed: int = 0
) -> Assertion:
    """The claim that a ratio exceeds a margin; the effect is its logarithm, such as `log_ratio`."""
    return Assertion(Claim(name, statement, source, Above(margin, ratio=True)), effect, from_seed)


def below(limit: float, effect: SeedEffect, name: str, statement: str, source: str, from_seed: int = 0) -> Assertion:
    """The claim that an effect stays below a limit, in the units of its metric, by its interval over seeds."""
    return Assertion(Claim(name, statement, source, Below(limit)), effect, from_seed)


def within(
    tolerance: float, effect: SeedEffect, name: str, statement: str, source: str, from_seed: int = 0
) -> Assertion:
    """The claim that an effect is zero within a tolerance, in the units of its metric, by two one-sided tests."""
    return Assertion(Claim(name, statement, source, Within(tolerance)), effect, from_seed)


@dataclass(frozen=True)
class Question:
    """What is asked, of which variations, and what the source claims.

    `shared`: changes of every variation. `not_at`: scales at which the question cannot be asked, and why. `base`: what
    is varied, a recipe or a `task`. `shown`: metrics in a table of the runs. `note`: what a reader must know of how the
    question came about. The first claim is the primary one, the others are exploratory. `withdrawn`: claims that were
    judged once. `records`: a file of rows (`experiments.rows`) with runs that are known; `verdict`, `show` and `report`
    read it beside the user's own records.
    Raises `InputError` for two variations of one label.
    """

    name: str
    asks: str
    source: str
    variations: tuple[Variation, ...]
    assertions: tuple[Assertion, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)
    not_at: Mapping[Scale, str] = field(default_factory=dict)
    base: Base = recipe
    shown: tuple[str, ...] = SHOWN
    note: str = ""
    withdrawn: tuple[Withdrawn, ...] = ()
    records: Path | None = None

    def __post_init__(self) -> None:
        labels = [variation.label for variation in self.variations]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError(f"experiment '{self.name}': two variations are called '{label}'")
        if not self.variations or not self.assertions:
            raise InputError(f"experiment '{self.name}': needs variations and claims")

    @property
    def primary(self) -> str:
        """The name of the claim that answers the question."""
        return self.assertions[0].claim.name

    def recipes(self, scale: str, seeds: int | Sequence[int]) -> dict[tuple[str, int], Job]:
        """The job of every variation and seed at a scale; `seeds`: how many from 0 on, or which.

        Raises `InputError` for an unknown scale, one at which the question cannot be asked, and wrong recipes.
        """
        if scale not in RECIPE_OF:
            raise unknown("scale", scale, RECIPE_OF)
        if scale in self.not_at:
            raise InputError(f"experiment '{self.name}' is not run at scale '{scale}': {self.not_at[scale]}")
        wanted = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
        if not wanted or min(wanted) < 0:
            raise InputError(f"seeds = {seeds}: at least 1")
        made: dict[tuple[str, int], Job] = {}
        for variation in self.variations:
            first = made[variation.label, wanted[0]] = self.job(variation.label, wanted[0], scale)
            for seed in wanted[1:]:
                # Only `recipe` is known to change nothing but that field with the seed: no second validation.
                like = self.base is recipe
                made[variation.label, seed] = (
                    first.model_copy(update={"seed": seed}) if like else self.job(variation.label, seed, scale)  # type: ignore[attr-defined]
                )
        return made

    def job(self, label: str, seed: int, scale: str) -> Job:
        """The job of one variation and seed. Raises `InputError` for an unknown label and wrong recipes."""
        changes = {variation.label: variation.changes for variation in self.variations}
        if label not in changes:
            raise unknown(f"variation of experiment '{self.name}'", label, changes)
        return self.base(scale, {**self.shared, **changes[label], "seed": seed})
