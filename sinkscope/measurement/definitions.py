"""Every published definition of a sink, applied to the same measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float, Int, Shaped

from sinkscope.measurement import metrics
from sinkscope.measurement.selection import TokenView, query_counts, visible_queries

# The published rules for sinks. Each gives one of three answers per token: 1 (a sink), 0 (not a sink), NaN (unknown).
#
# A NaN or an infinity in a sample leaves the answer open: it is never a "no". Missing heads and missing statistics of a
# layer leave the answers of the others intact.

Answers = Float[np.ndarray, "sample position"]
PerHead = Float[np.ndarray, "sample layer head position"]
PerDepth = Float[np.ndarray, "sample depth position"]


@dataclass(frozen=True)
class Definition:
    """A rule that calls some tokens sinks. `rule` may name {epsilon}; `needs` are variables of a measurement.

    `instead`: other variables from which the rule follows if those are missing.
    """

    name: str
    source: str
    rule: str
    needs: tuple[str, ...]
    answers: Callable[[TokenView], Answers]
    instead: tuple[str, ...] | None = None

    def missing(self, data: xr.Dataset) -> list[str]:
        """Variables that were not observed."""
        if self.instead is not None and all(name in data for name in self.instead):
            return []
        return [name for name in self.needs if name not in data]


def known(condition: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """1 and 0 for a condition on values; NaN where one of them is NaN."""
    unknown = np.zeros(condition.shape, dtype=bool)
    for value in values:
        unknown |= np.isnan(value)
    return np.where(unknown, np.nan, condition.astype(np.float64))


def both(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """And: 0 where either is 0, even if the other is unknown."""
    return np.where((one == 0) | (other == 0), 0.0, one * other)


def either(answers: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """Or: 1 where one is 1, even if the others are unknown."""
    return np.where((answers == 1).any(axes), 1.0, np.where(np.isnan(answers).any(axes), np.nan, 0.0))


def _some_head(view: TokenView, answers: PerHead) -> Answers:
    nothing = np.isnan(answers).all((0, 3))
    lacking = nothing & ~_unreadable(nothing.all(1), view.broken_layers)[:, None]
    return either(np.where(lacking[None, :, :, None], 0.0, answers), (1, 2))


def _some_depth(view: TokenView, answers: PerDepth) -> Answers:
    nothing = np.isnan(answers).all((0, 2))
    lacking = nothing & ~_unreadable(nothing, view.broken_depths)
    return either(np.where(lacking[None, :, None], 0.0, answers), 1)


def _unreadable(nothing: Bool[np.ndarray, "place"], broken: Bool[np.ndarray, "place"]) -> Bool[np.ndarray, "place"]:
    """Places without any number, because none was finite there, or because there is none anywhere."""
    return nothing & (broken | nothing.all())


def _received(threshold: float | None = None) -> Callable[[TokenView], Answers]:
    """Attention received above a threshold (default: the view's epsilon) in some head."""

    def answers(view: TokenView) -> Answers:
        received = view.per_head("attention_received")
        return _some_head(view, metrics.exceeds(received, view.epsilon if threshold is None else threshold))

    return answers


def _over_uniform_mass(view: TokenView) -> Answers:
    received = view.per_head("attention_received")
    with np.errstate(divide="ignore"):  # rows without a token, which are never used
        return _some_head(view, known(received > 5 / view.tokens[:, None, None, None], received))


def _initial(view: TokenView) -> Answers:
    """Those of the first four tokens that get more than uniform attention in a head with over half of its mass on the
    four.
    """
    received, uniform = view.per_head("attention_received"), view.per_head("uniform_received")[:, :, None]
    first = min(4, len(view.positions))
    if view.positions[:first].tolist() != list(range(first)):
        return np.full((len(received), len(view.positions)), np.nan)
    visible, queries = visible_queries(view.data)[:, view.layers], query_counts(view.data)[:, view.layers]
    mass = metrics.mass_on_first(received, visible, queries, first)
    heavy = known(mass > 0.5, mass)[..., None]
    answer = _some_head(view, both(heavy, known(received > uniform, received, uniform)))
    return _only_at(view, answer, view.positions < 4)


def _most_attended(view: TokenView) -> Answers:
    share = view.per_head("most_attended")
    return _some_head(view, known(share > 0.5, share))


def _massive(magnitude: float) -> Callable[[TokenView], Answers]:
    """The token holds a massive entry at some depth: its largest entry is one."""

    def answers(view: TokenView) -> Answers:
        if "hidden_max" not in view.data:
            return _some_depth(view, _among_the_largest(view, magnitude))
        peaks, median = view.per_depth("hidden_max"), view.per_depth("hidden_median")
        return _some_depth(
            view, known(metrics.is_massive(peaks, median, magnitude=magnitude), peaks, median[..., None])
        )

    return answers


def _among_the_largest(view: TokenView, magnitude: float) -> PerDepth:
    """From the largest entries of a row: if all kept entries are massive, other tokens may be as well."""
    top, median = view.per_depth("hidden_top"), view.per_depth("hidden_median")
    massive = metrics.is_massive(top, median, magnitude=magnitude)
    answer = (massive[..., None] & (view.per_depth("hidden_top_position")[..., None] == view.positions)).any(2)
    unknown = np.isnan(median) | massive.all(2)
    return np.where(unknown[..., None] & ~answer, np.nan, answer.astype(np.float64))


def _outlier_tokens(view: TokenView) -> Answers:
    return _some_depth(view, _above_median(view, view.per_depth("hidden_max"), 64.0))


def _high_norm(view: TokenView) -> Answers:
    return _above_median(view, view.per_depth("hidden_norm"), 3.0)[:, -1]


def _above_median(view: TokenView, values: PerDepth, times: float) -> PerDepth:
    """More than `times` the median token of the depth; unknown if some token of the row is."""
    with metrics.quiet(), np.errstate(over="ignore"):  # activations may be nearly infinite
        border = times * np.nanmedian(values, -1, keepdims=True)
    return np.where(view.incomplete(values)[..., None], np.nan, known(values > border, values))


def _like_the_first(view: TokenView) -> Answers:
    """Secondary sinks at most of these depths, and the first token itself, which they resemble."""
    cosines, norms = view.per_depth("cos_hidden_first"), view.per_depth("hidden_norm")
    secondary = metrics.secondary_sinks(cosines, norms)
    alike = (secondary.share > 0.5) | ((view.positions == 0) & ~np.isnan(secondary.jump)[:, None])
    unknown = (np.isnan(cosines) & (norms != 0)).any(1) & (view.positions != 0)
    unknown |= np.any(view.incomplete(norms), axis=1)[:, None]
    return np.where(unknown, np.nan, alike.astype(np.float64))


def _drained(view: TokenView) -> Answers:
    received, lengths = view.per_head("attention_received"), view.per_head("value_norm")
    short = known(lengths < 0.5 * metrics.nanmean(lengths, -1)[..., None], lengths)
    short = np.where(view.incomplete(lengths)[..., None], np.nan, short)
    return _some_head(view, both(metrics.exceeds(received, view.epsilon), short))


def _dark(view: TokenView) -> Answers:
    """The last band holds over half of the energy; only probed positions can be called one."""
    last, probes = view.per_depth("band_energy")[..., -1], view.data["probe_position"].values.tolist()
    answers = np.full((len(last), len(view.positions)), np.nan)
    for column, position in enumerate(probes):
        answers[:, view.positions == position] = _some_depth(view, known(last > 0.5, last)[..., [column]])
    return _only_at(view, answers, np.isin(view.positions, probes))


def _only_at(view: TokenView, answers: Answers, places: Bool[np.ndarray, "position"]) -> Answers:
    """Answers of a rule that can only name these places: "no" elsewhere, if these are known."""
    doubtful = (np.isnan(answers) & view.counted & places).any(1)
    return np.where(places, answers, np.where(doubtful, np.nan, 0.0)[:, None])


LARGEST = ("hidden_top", "hidden_top_position", "hidden_median")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "attention received",
        "Gu et al. 2025",
        "mean attention received > {epsilon} in some head",
        ("attention_received",),
        _received(),
    ),
    Definition(
        "strong sink",
        "Barbero et al. 2025",
        "mean attention received > 0.8 in some head",
        ("attention_received",),
        _received(0.8),
    ),
    Definition(
        "five times uniform",
        "Yu et al. 2024",
        "mean attention received > 5 / T in some head",
        ("attention_received",),
        _over_uniform_mass,
    ),
    Definition(
        "initial tokens",
        "Xiao et al. 2024",
        "one of the first four, with more than uniform attention, in a head with over half of its mass on these four",
        ("attention_received", "uniform_received"),
        _initial,
    ),
    Definition(
        "most attended",
        "Kaul et al. 2024",
        "the largest weight of more than half of the queries that see it, in some head",
        ("most_attended",),
        _most_attended,
    ),
    Definition(
        "massive activation",
        "Sun et al. 2024",
        "an entry |a| > 100 and > 1000 × the median, at some depth",
        ("hidden_max", "hidden_median"),
        _massive(100.0),
        instead=LARGEST,
    ),
    Definition(
        "massive, relative alone",
        "Sun et al. 2024, for models of any scale",
        "an entry > 1000 × the median, at some depth",
        ("hidden_max", "hidden_median"),
        _massive(1e-6),
        instead=LARGEST,
    ),
    Definition(
        "outlier token",
        "Chen et al. 2024 (PrefixQuant)",
        "its largest entry > 64 × the median token's, at some depth",
        ("hidden_max",),
        _outlier_tokens,
    ),
    Definition(
        "high-norm token",
        "Darcet et al. 2023, as a ratio",
        "norm > 3 × the median token's at the last depth",
        ("hidden_norm",),
        _high_norm,
    ),
    Definition(
        "like the first token",
        "secondary sinks",
        "|cos| to the first token's state > 0.9 between its norm's jump and drop",
        ("cos_hidden_first", "hidden_norm"),
        _like_the_first,
    ),
    Definition(
        "value-state drain",
        "Guo et al. 2024a",
        "attention received > {epsilon} and a value shorter than half the mean, in one head",
        ("attention_received", "value_norm"),
        _drained,
    ),
    Definition(
        "dark signal",
        "Cancedda 2024",
        "over half of its energy in the last band of the unembedding, at some depth; probed positions only",
        ("band_energy",),
        _dark,
    ),
)


def definition_table(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.definitions`."""
    view = TokenView(data, epsilon)
    answers = _all_answers(view)
    reference = next(iter(answers.values()), None)
    rows = []
    for definition in DEFINITIONS:
        row: dict[str, str | float] = {
            "definition": definition.name,
            "source": definition.source,
            "rule": definition.rule.format(epsilon=f"{epsilon:g}"),
        }
        if (verdict := answers.get(definition.name)) is not None and reference is not None:
            numbers = _summary(verdict, view.counted, view.positions) | {"agreement": jaccard(reference, verdict)}
            rows.append(row | numbers | {"note": _doubt(verdict, view.counted)})
        else:
            rows.append(row | {"note": f"not observed: {', '.join(definition.missing(data))}"})
    columns = ["definition", "source", "rule", "sinks", "position_0", "elsewhere", "elsewhere_share", "agreement"]
    return pd.DataFrame(rows, columns=[*columns, "note"]).astype({"elsewhere": "Int64"})


def agreement(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.agreement`."""
    answers = _all_answers(TokenView(data, epsilon))
    values = [[jaccard(one, other) for other in answers.values()] for one in answers.values()]
    return pd.DataFrame(values, index=list(answers), columns=list(answers))


def jaccard(one: Shaped[np.ndarray, "sample position"], other: Shaped[np.ndarray, "sample position"]) -> float:
    """|A ∩ B| / |A ∪ B| over the (sample, position) that both know; NaN if there are none.

    1 if both are empty, because they agree that there is no sink.
    """
    known = ~(np.isnan(one) | np.isnan(other))
    if not known.any():
        return float("nan")
    union = (known & ((one == 1) | (other == 1))).sum()
    return float((known & (one == 1) & (other == 1)).sum() / union) if union else 1.0


def _all_answers(view: TokenView) -> dict[str, Answers]:
    """The answers of each definition at the compared places; NaN elsewhere."""
    present = [definition for definition in DEFINITIONS if not definition.missing(view.data)]
    return {definition.name: np.where(view.counted, definition.answers(view), np.nan) for definition in present}


def _summary(
    answers: Answers, counted: Bool[np.ndarray, "sample position"], positions: Int[np.ndarray, "position"]
) -> dict[str, float]:
    """Sinks per sample; percent of samples in which position 0 is one; the most frequent other position.

    Only samples count in which every place is known, ignoring places that are unknown in all samples.
    """
    known = ~np.isnan(answers)
    whole = (known | ~counted | ~known.any(0)).all(1) & known.any(1)
    shares = 100 * metrics.nanmean(answers, 0)
    row = {
        "sinks": float((answers[whole] == 1).sum(1).mean()) if whole.any() else float("nan"),
        "position_0": float(shares[positions == 0][0]) if 0 in positions else float("nan"),
    }
    others = np.where(positions == 0, 0, (answers == 1).sum(0))
    best = int(others.argmax())
    if others[best] > 0:
        row |= {"elsewhere": int(positions[best]), "elsewhere_share": float(shares[best])}
    return row


def _doubt(answers: Answers, counted: Bool[np.ndarray, "sample position"]) -> str:
    """In how many samples an answer is open, and why."""
    unknown = int((counted & np.isnan(answers)).any(1).sum())
    return f"not known in {unknown} of {len(answers)} samples: NaN or infinite, or not kept" if unknown else ""
