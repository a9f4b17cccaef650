"""A question as a value: variations of a job, how many models decide, and claims fixed before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

from pydantic import ValidationError

from sinkscope.errors import InputError, unknown
from sinkscope.errors.invalid import in_one_line
from sinkscope.experiments.effects import Contrast, Property, SeedEffect, Shares
from sinkscope.experiments.registration import Registration
from sinkscope.statistics.claims import Claim, Count, Size

if TYPE_CHECKING:  # jobs load torch, without which findings can be read
    from sinkscope.experiments.jobs import Job

Scale = Literal["nano", "mini", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
RECIPE_OF: dict[Scale, str] = {"nano": "nano", "mini": "mini", "paper": "60m"}
TIMES = "times "  # before a factor: a change to a multiple of the recipe's own value
SHOWN = ("loss", "sink_mass", "lift", "sink_0", "sink_1", "sink_2", "strongest", "slot_mass", "slot", "norm_ratio")
SEEDS = "write seeds=6 into the question, before its first run (or which: seeds=range(6, 12))"

Base = Callable[[str, Mapping[str, Any]], "Job"]  # of a scale and changed fields
Seeds = int | Sequence[int]  # how many from 0 on, or which


@dataclass(frozen=True)
class FromRecipe:
    """A question's base: training by a recipe, with dotted fields changed.

    `name`: of the recipe; that of the scale where none is given. `job`: what is read of a model: `recipe`, or the name
    of a task that extends it. A change made with `times` is a multiple of the recipe's own value.
    """

    name: str = ""
    job: str = "recipe"

    def __call__(self, scale: str, changes: Mapping[str, Any]) -> Job:
        """The job of a scale. Raises `InputError` for unknown names and wrong fields."""
        from sinkscope.experiments.jobs import LabTraining, task_named

        kind = LabTraining if self.job == LabTraining.kind else task_named(self.job)
        if not issubclass(kind, LabTraining):
            raise InputError(f"'{self.job}' does not train by a recipe: use task('{self.job}') as `base`")
        name = self.name or RECIPE_OF[scale]  # type: ignore[index]
        recipe_fields = (
            kind.changed(name, {}).model_dump(mode="json") if any(map(_is_multiple, changes.values())) else {}
        )
        return kind.changed(name, {field: _multiplied(recipe_fields, field, value) for field, value in changes.items()})


recipe = FromRecipe()  # what questions vary unless they say otherwise


def _is_multiple(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(TIMES)


def _multiplied(recipe_fields: Mapping[str, Any], field: str, value: Any) -> Any:
    """A change as the recipe takes it; whole numbers stay whole, so that 750 steps are `times(0.5)` of 1,500."""
    if not _is_multiple(value):
        return value
    base: Any = recipe_fields
    for part in field.split("."):
        base = base.get(part) if isinstance(base, Mapping) else None
    if not isinstance(base, int | float) or isinstance(base, bool):
        raise InputError(f"'{field}' = {value}: the recipe has no number there to multiply: give the value itself")
    product = float(value.removeprefix(TIMES)) * base
    return round(product) if isinstance(base, int) else product


def task(name: str) -> Base:
    """A question's base: a task (`sinkscope.task`), by its name, with fields changed."""

    def at_scale(scale: str, changes: Mapping[str, Any]) -> Job:
        from sinkscope.experiments.jobs import Task, task_named

        kind = task_named(name)
        if not issubclass(kind, Task):
            raise InputError(f"'{name}' is a job without scales of its own: give a function that makes it as `base`")
        return kind.at_scale(scale, changes)

    return at_scale


def times(factor: float) -> str:
    """A change to `factor` times the recipe's own value: `{"optimizer.lr": times(2.0)}`. Whole numbers stay whole."""
    return f"{TIMES}{factor}"


@dataclass(frozen=True)
class Variation:
    """A job with fields changed: dotted fields and their values.

    `published`: what the source found, by metric. `seeds`: how many models of it decide, or which; those of the
    question if it is None.
    """

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    seeds: Seeds | None = None


@dataclass(frozen=True)
class Assertion:
    """A claim and what decides it: for counts the `Shares` of models, for sizes an effect.

    `among`: the models that are asked, by label; the others are left out and counted.

    Raises `InputError` for a rule that does not fit, a margin that no effect can be compared with, and an unread label.
    """

    claim: Claim
    effect: SeedEffect | Contrast | Shares
    among: Mapping[str, Property] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rule, counts = self.claim.rule, isinstance(self.effect, Shares)
        if not isinstance(rule, Count | Size):
            raise InputError(f"claim '{self.claim.name}': {type(rule).__name__} is for identities, not for models")
        if isinstance(rule, Count) != counts:
            raise InputError(f"claim '{self.claim.name}': a Count is decided by Shares, a Size by an effect")
        if isinstance(rule, Size) and (rule.ratio or rule.side == "within") and rule.margin <= 0:
            raise InputError(f"claim '{self.claim.name}': margin={rule.margin:g}, expected more than 0")
        if isinstance(self.effect, Contrast | Shares):
            read = self.effect.labels
            if other := next((label for label in self.among if label not in read), None):
                what = f"claim '{self.claim.name}': among={{'{other}': …}}, whose models it does not read"
                raise InputError(f"{what}: choose from {', '.join(read)}")


def more_models(
    label: str | Sequence[str],
    than: str | Sequence[str],
    has: Property,
    name: str,
    statement: str,
    source: str,
    *,
    fewest: int = 3,
    among: Mapping[str, Property] | None = None,
) -> Assertion:
    """The claim that more models of one variation have something than of another, by Fisher's exact test.

    Args:
        label: the variation that is claimed to have it more often, or several, whose models are counted together.
        than: the other one, or several.
        has: what a model has, such as `Has("sink_0", 3.0)`.
        name: of the claim, in a few words.
        statement: the claim as a sentence.
        source: where it comes from.
        fewest: models of each variation without which the claim stays open.
        among: by label, what a model must have to be asked: "among the 5 of 6 models with a sink".
    """
    shares = Shares((_group(label), _group(than)), has)
    return Assertion(_claim(name, statement, source, Count, fewest=fewest), shares, among or {})


def most_models(
    label: str | Sequence[str],
    has: Property,
    name: str,
    statement: str,
    source: str,
    *,
    share: float = 0.5,
    fewest: int = 3,
    among: Mapping[str, Property] | None = None,
) -> Assertion:
    """The claim that more than a share of a variation's models have something, by the exact binomial test.

    Args:
        label: the variation, or several, whose models are counted together.
        has: what a model has, such as `Has("sink_0", 3.0)`.
        name: of the claim, in a few words.
        statement: the claim as a sentence.
        source: where it comes from.
        share: 0 to 1; a half takes at least 7 models.
        fewest: models without which the claim stays open.
        among: by label, what a model must have to be asked: "among the 5 of 6 models with a sink".
    """
    claim = _claim(name, statement, source, Count, share=share, fewest=fewest)
    return Assertion(claim, Shares((_group(label),), has), among or {})


def _claim(name: str, statement: str, source: str, rule: type[Count] | type[Size], **fields: Any) -> Claim:
    try:
        return Claim(name=name, statement=statement, source=source, rule=rule(**fields))
    except ValidationError as error:
        raise in_one_line(error, rule, f"claim '{name}'") from error


def _group(label: str | Sequence[str]) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else tuple(label)


class SizeOptions(TypedDict, total=False):
    """What claims about sizes may also say."""

    symmetric: bool
    fewest: int | None
    among: Mapping[str, Property] | None


def above(
    margin: float, effect: SeedEffect, name: str, statement: str, source: str, **options: Unpack[SizeOptions]
) -> Assertion:
    """The claim that an effect exceeds a margin, by its interval over models.

    Args:
        margin: in the units of the metric.
        effect: a `Contrast` such as `gap`, or a function of the runs of one seed.
        name: of the claim, in a few words.
        statement: the claim as a sentence, with its numbers.
        source: where it comes from.
        options: `symmetric`: whether the scale has no long tail, as losses have none: 6 models decide, else 12;
            `fewest`: models of each variation without which the claim stays open; `among`: by label, what a model must
            have to be asked: "among the 5 of 6 models with a sink".
    """
    return _sized("above", False, margin, effect, name, statement, source, **options)


def above_ratio(
    margin: float,
    effect: SeedEffect,
    name: str,
    statement: str,
    source: str,
    *,
    fewest: int | None = None,
    among: Mapping[str, Property] | None = None,
) -> Assertion:
    """The claim that a ratio exceeds a margin. Its scale is symmetric, so 6 models decide.

    Args:
        margin: a ratio, such as 2.0.
        effect: its logarithm, such as `log_ratio`.
        name, statement, source, fewest, among: as in `above`.
    """
    options: SizeOptions = {"symmetric": True, "fewest": fewest, "among": among}
    return _sized("above", True, margin, effect, name, statement, source, **options)


def below(
    margin: float, effect: SeedEffect, name: str, statement: str, source: str, **options: Unpack[SizeOptions]
) -> Assertion:
    """The claim that an effect stays below a margin, by its interval over models.

    Args:
        margin, effect, name, statement, source, options: as in `above`.
    """
    return _sized("below", False, margin, effect, name, statement, source, **options)


def within(
    margin: float, effect: SeedEffect, name: str, statement: str, source: str, **options: Unpack[SizeOptions]
) -> Assertion:
    """The claim that an effect is zero within ± a margin, by its interval over models.

    Args:
        margin, effect, name, statement, source, options: as in `above`.
    """
    return _sized("within", False, margin, effect, name, statement, source, **options)


def _sized(
    side: Literal["above", "below", "within"],
    log: bool,
    margin: float,
    effect: SeedEffect,
    name: str,
    statement: str,
    source: str,
    *,
    symmetric: bool = False,
    fewest: int | None = None,
    among: Mapping[str, Property] | None = None,
) -> Assertion:
    sized = {"margin": margin, "side": side, "ratio": log, "symmetric": symmetric, "fewest": fewest}
    return Assertion(_claim(name, statement, source, Size, **sized), effect, among or {})


@dataclass(frozen=True)
class Question:
    """What is asked, of which variations, how many models decide, and what is claimed.

    `seeds`: how many models of each variation decide, from seed 0 on, or which; fixed before the first run. The claims
    are judged once all of them are there, and further ones do not count. `shared`: changes of every variation.
    `not_at`: scales at which the question cannot be asked, and why. `base`: what is varied, a recipe or a `task`.
    `shown`: metrics in a table of the runs. `one_model`: all runs start from one trained model and say nothing of
    others, so every claim stays open. `note`: what a reader must know. `records`: a file of rows
    (`experiments.rows`) with runs that are known; `verdict`, `show` and `report` read it as well as the user's own
    records. `registration`: the file that holds the question, which `find` notes.

    Raises `InputError` without seeds, for a change of the seed, and for two variations or claims of one name.
    """

    name: str
    asks: str
    source: str
    variations: tuple[Variation, ...]
    assertions: tuple[Assertion, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)
    not_at: Mapping[str, str] = field(default_factory=dict)
    base: Base = recipe
    shown: tuple[str, ...] = SHOWN
    one_model: bool = False
    note: str = ""
    records: Path | None = None
    seeds: Seeds | None = None
    registration: Registration | None = None

    def __post_init__(self) -> None:
        for what, words in (
            ("variations", [variation.label for variation in self.variations]),
            ("claims", [assertion.claim.name for assertion in self.assertions]),
        ):
            for word in words:
                if words.count(word) > 1:
                    raise InputError(f"experiment '{self.name}': two {what} are called '{word}'")
        if not self.variations or not self.assertions:
            raise InputError(f"experiment '{self.name}': needs variations and claims")
        if "seed" in self.shared or any("seed" in each.changes for each in self.variations):
            raise InputError(f"experiment '{self.name}': seeds are named by seeds=, not by a change")
        if self.seeds is None and any(variation.seeds is None for variation in self.variations):
            raise InputError(f"experiment '{self.name}' does not say how many models decide: {SEEDS}")
        for label in [*self.labels, *(label for assertion in self.assertions for label in assertion.among)]:
            self.seeds_of(label)

    @property
    def labels(self) -> list[str]:
        """The labels of its variations, in order."""
        return [variation.label for variation in self.variations]

    @property
    def values_sha256(self) -> str:
        """A hash of what decides, as it was built: changes and seeds of each variation, and the rule of each claim.

        The hash of the file does not change when a file that it reads does; this one does.
        """
        variations: dict[str, Any] = {
            each.label: [{**self.shared, **each.changes}, self.seeds_of(each.label)] for each in self.variations
        }
        claims = [
            [each.claim.name, str(each.claim.rule), str(getattr(each.effect, "has", ""))] for each in self.assertions
        ]
        # Values that JSON cannot hold count by their class alone: their own text may contain a memory address.
        text = json.dumps([variations, claims], sort_keys=True, default=lambda value: type(value).__name__)
        return hashlib.sha256(text.encode()).hexdigest()

    def seeds_of(self, label: str) -> tuple[int, ...]:
        """The seeds of a variation that decide. Raises `InputError` for an unknown label."""
        variations = {variation.label: variation for variation in self.variations}
        if label not in variations:
            raise unknown(f"variation of experiment '{self.name}'", label, variations)
        seeds = variations[label].seeds
        return self._numbered(self.seeds if seeds is None else seeds)

    def recipes(self, scale: str, seeds: Seeds | None = None) -> dict[tuple[str, int], Job]:
        """The job of every variation and seed at a scale; `seeds`: how many of the question's first ones, or which.

        Raises `InputError` for an unknown scale, one at which the question cannot be asked, wrong recipes, and runs of
        a variation that start from one trained model although the question does not say so.
        """
        if scale not in RECIPE_OF:
            raise unknown("scale", scale, RECIPE_OF)
        if scale in self.not_at:
            raise InputError(f"experiment '{self.name}' is not run at scale '{scale}': {self.not_at[scale]}")
        made: dict[tuple[str, int], Job] = {}
        for label in self.labels:
            deciding = self.seeds_of(label)
            if isinstance(seeds, int):
                if seeds < 1:
                    raise InputError(f"seeds = {seeds}: at least 1")
                if seeds > (most := max(len(self.seeds_of(each)) for each in self.labels)):
                    raise InputError(f"experiment '{self.name}' is decided by {most} seeds, not by {seeds}: {SEEDS}")
                wanted = deciding[:seeds]
            else:
                wanted = deciding if seeds is None else self._numbered(seeds)
            first = made[label, wanted[0]] = self.job(label, wanted[0], scale)
            for seed in wanted[1:]:
                # Only a recipe is known to change nothing but that field with the seed: no second validation.
                like = isinstance(self.base, FromRecipe)
                made[label, seed] = (
                    first.model_copy(update={"seed": seed}) if like else self.job(label, seed, scale)  # type: ignore[attr-defined]
                )
        self._check_starts(made)
        return made

    def _check_starts(self, jobs: Mapping[tuple[str, int], Job]) -> None:
        starts: dict[tuple[str, str], int] = {}
        for (label, _), job in jobs.items():
            if (start := getattr(job, "start_from", None)) is not None:
                starts[label, str(start)] = starts.get((label, str(start)), 0) + 1
        if not self.one_model and (shared := next((each for each, count in starts.items() if count > 1), None)):
            raise InputError(
                f"experiment '{self.name}': all models of '{shared[0]}' start from {shared[1]}, so they count as one: "
                "give one_model=True, which leaves claims open, or a start of their own to each seed"
            )

    def job(self, label: str, seed: int, scale: str) -> Job:
        """The job of one variation and seed. Raises `InputError` for an unknown label and wrong recipes."""
        changes = {variation.label: variation.changes for variation in self.variations}
        if label not in changes:
            raise unknown(f"variation of experiment '{self.name}'", label, changes)
        return self.base(scale, {**self.shared, **changes[label], "seed": seed})

    def _numbered(self, seeds: Seeds | None) -> tuple[int, ...]:
        given = range(seeds) if isinstance(seeds, int) else seeds
        numbered = tuple(given) if isinstance(given, Sequence) else ()
        whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in numbered)
        if not numbered or not whole or len({*numbered}) < len(numbered):
            raise InputError(f"experiment '{self.name}': seeds={seeds!r}: at least one, from 0 on, none twice")
        return numbered
