"""What an experiment keeps of a run: final metrics and curves, small enough for results."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sinkscope.errors import InputError

Metrics = Iterator[tuple[str, float]]  # names and values, in the order in which they are measured
Heads = Mapping[str, tuple[tuple[float, ...], ...]]  # by name: one number per head or depth at each evaluation

CURVES = (
    "validation_loss",
    "loss",
    "sink/position_0",
    "sink/strongest",
    "sink/strongest_position",
    "sink/mass",
    "sink/lift",
    "sink/hidden_norm_ratio",
)
TOP, LARGEST = "top_head/", "largest/"
EARLIEST = "2025-01-01"  # an earlier date comes from a clock that was not set: the paper appeared that year
FEWEST = 32  # least tokens for rates of experiments: on 16, uniform attention has alpha_0 = 0.21, lr / 8 32 %
RATES = CURVES[2:7]  # unknown if the sink is measured on fewer than `FEWEST` tokens


KINDS: Mapping[str, type | tuple[type, ...]] = {  # of the fields of a record
    "run": str,
    "status": str,
    "seed": int,
    "metrics": dict,
    "steps": list,
    "curves": dict,
    "seconds": (int, float),
    "reason": str,
    "layout": int,
    "started": str,
    "heads": dict,
    "host": dict,
    "registered": dict,
    "text": str,
}


@dataclass(frozen=True)
class Observed:
    """A settled run. `metrics`: numbers by name; a missing metric is NaN, as are all metrics of a diverged run.

    `curves`: values over `steps`, the rows of the log that hold a validation loss (`loss`: of training). `heads`: one
    number per head (layer by layer) or depth at each of these steps, under the names of
    `training.run.heads.HeadNumbers`, to four digits; empty for runs from before they were kept. `layout`: how the run
    was read (`Job.layout`); 0 if it was never on disk. `started`: when the run began, ISO 8601 in UTC; "" for runs from
    before that was kept. `host`: the machine (`training.host`), empty if unknown. `registered`: by the name of a
    question, what its file was when the run started (`registration`). `text`: the sha256 of the text that the run
    read, names and bytes of all documents; "" for tasks, and for runs from before that was kept.

    No sink rate or mass is read on fewer than 32 tokens, where even uniform attention gives a first token much: it is
    NaN, and `reason` says why.

    Of training: `loss` (validation, nats), `train_loss` (mean over the last tenth of the steps), `gap` (loss −
    train_loss); `sink_0/start`, `sink_mass/start`, `norm_ratio/start` (before the first step), `loss/start` (at the
    first evaluation).

    On the first 64 tokens of validation windows, sink rates in percent at ε = 0.3 unless noted; in a model with sink
    tokens position 0 is the first of these. If windows number their documents (`data.packing = intra_document`,
    `model.restart_positions`), they are read as in training: no token sees another document, or positions restart in
    each; sink rates still divide by all queries after a position, also those of other documents:

    - `sink_0` … `sink_16`, `strongest` and `strongest_position` (`measurements.strongest_position`), `slot` (Sink_*),
      `first_share` (mean attention on position 0, percent); `sink_0/epsilon=0.2` (0.3, 0.4, 0.5)
    - `sink_mass` (position 0), `sink_mass_1` … `sink_mass_16`, `sink_mass/strongest`, there also of each layer alone:
      `sink_mass/strongest/layer=0` …; `slot_mass` (`metrics.sink_mass`); `lift`, `lift/strongest` (`metrics.step`);
      `self_mass`, of each token on itself (layout 7 on)
    - `norm_ratio` (‖h_0‖ over the others, largest over depth, always before a norm of the stream), `value_ratio`
      (‖v_0‖ over the others, smallest over layers); both also at the strongest position: `norm_ratio/strongest` …
    - `entropy`, `entropy_least` (nats; mean over heads, least head), `max_logit`, `max_logit/layer=0` …
    - `kurtosis`, `kurtosis_neurons`, `max_median_ratio` (`OutlierStatistics`; largest over depth), `infinity_norm`
    - `hidden_spread`, `last_pair_distance` (lengths; position 0 among the tokens), `relative_spread`,
      `relative_pair_distance` (shares without position 0: `RelativeMixing`), `matrix_entropy` at the last depth, always
      before a norm of the stream, and at each: `hidden_spread/depth=0` …
    - `sink_heads`, `output_norm/sink_heads`, `output_norm/other_heads`, `zeroing/sink_heads`, `zeroing/other_heads`
      (`ablations.sink_heads_zeroed`); `perturbation`, `perturbation/without_first` (`ablations.spread_of_a_change`);
      `resting/heads`, `resting/on_sink`, `resting/controls` (`no_op.written_on_the_sink`); `key_angle`,
      `key_angle/others` (`keys.keys_apart`)

    On the windows' first 32 (64, 128, the context) tokens, none longer than the context: `sink_0/tokens=32`, at each
    threshold `sink_0/tokens=32/epsilon=0.2` …, `sink_mass/tokens=32`, and `strongest_position/tokens=32`. On whole
    windows from their second token on (without the BOS, if training fixed one): `loss/without_first`, and
    `sink_0/without_first` on the first 64 of these tokens; `loss/with_first` is the loss of the same next tokens, from
    the third on, with the first token present: it differs from `loss/without_first` in nothing else.

    From `heads` at the last evaluation, for the head with the largest alpha at the strongest position:
    `top_head/alpha`, `top_head/queries_above`, `top_head/value_ratio` and `top_head/key_ratio` (‖v_s‖ and ‖k_s‖ over
    the others), `top_head/cosine_gap` (mean cos(q_t, k_s) minus that with the other keys).

    In streams of three contexts, read token by token with as many keys as the context is long (`streamed`):
    `stream_loss/sinks=0` (1, 4), the loss after the first context when that many first tokens are kept.

    Position 0 on other inputs, one document per row: `sink_0/random` (uniform tokens), `sink_0/random_after_first`
    (after the window's own first token), `sink_0/repeated` (one token), also with exchanged position embeddings
    (`ablations.moved_positions`); on other texts: `other_texts`. Each has its `sink_mass/…`.
    """

    run: str
    status: str
    seed: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""
    layout: int = 0
    started: str = ""
    heads: Heads = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    registered: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str = ""

    def __getitem__(self, metric: str) -> float:
        if on_few_tokens(metric):
            return math.nan
        value = self.metrics.get(metric)
        return (_of_top_head(self, metric) if metric.startswith(TOP) else math.nan) if value is None else value

    def curve(self, name: str) -> tuple[float, ...]:
        """Values over `steps`: a curve by name, or `largest/NAME`, the largest number of any head; else empty."""
        known = self.curves.get(name)
        if known is not None:
            return known
        return tuple(map(largest_known, self.heads.get(name.removeprefix(LARGEST), ())))

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    @property
    def began(self) -> str:
        """`started`, or "" if the date is impossible: before `EARLIEST`, or in the future."""
        latest = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
        return self.started if EARLIEST <= self.started <= latest else ""

    def same_training(self, other: Observed) -> bool:
        """Whether another run is this one, perhaps read otherwise: name, status and curves agree.

        A run that was trained twice has one name, and other curves on another machine or with other threads.
        """
        if self.run != other.run or self.status != other.status:
            return False
        shared = self.curves.keys() & other.curves.keys()
        return all(_same(self.curves[name], other.curves[name]) for name in shared)

    def agrees(self, other: Observed) -> bool:
        """Whether another run is this one with the same numbers, where both have them; costs may differ."""
        shared = self.metrics.keys() & other.metrics.keys()
        return self.same_training(other) and all(_equal(self.metrics[name], other.metrics[name]) for name in shared)

    def same(self, other: Observed) -> bool:
        """Whether everything is equal, costs included; unknown values count as equal to each other."""
        if vars(self) == vars(other):
            return True
        others = {name: value for name, value in vars(self).items() if name not in ("metrics", "curves", "heads")}
        return (
            others.items() <= vars(other).items()
            and self.metrics.keys() == other.metrics.keys()
            and self.curves.keys() == other.curves.keys()
            and self.agrees(other)
            and self.heads.keys() == other.heads.keys()
            and all(_same_rows(rows, other.heads[name]) for name, rows in self.heads.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; None for NaN."""
        plain = dict(vars(self))  # without asdict's deep copies: thousands of runs are written at once
        for name in ("registered", "text"):  # older versions do not know these fields
            if not plain[name]:
                del plain[name]
        plain["metrics"] = {name: _or_none(value) for name, value in self.metrics.items()}
        plain["curves"] = {name: _without_nan(values) for name, values in self.curves.items()}
        plain["steps"] = list(self.steps)
        plain["heads"] = {name: [_line(row) for row in rows] for name, rows in self.heads.items()}
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Observed:
        """Back from plain data. Raises `InputError` for data of another form."""
        try:
            _require_kinds(data)
            values = dict(data)
            values["metrics"] = dict(zip(values["metrics"], _with_nan(values["metrics"].values()), strict=True))
            values["curves"] = {name: _with_nan(curve) for name, curve in values["curves"].items()}
            rows = values.get("heads", {})
            values["heads"] = {
                name: tuple(tuple(map(float, row.split())) for row in kept) for name, kept in rows.items()
            }
            return cls(**values | {"steps": tuple(values["steps"])})
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"this is not a record of an observed run: {type(error).__name__}: {error}") from error


class NewerRecord(InputError):
    """A sound record with a field that this version does not know."""


def _require_kinds(data: Mapping[str, Any]) -> None:
    if unknown := sorted(data.keys() - KINDS.keys()):
        raise NewerRecord(f"a newer sinkscope made it, whose field '{unknown[0]}' this one does not know: update")
    for name, value in data.items():
        if not isinstance(value, KINDS[name]) or isinstance(value, bool):
            raise InputError(f"this is not a record of an observed run: {name} = {value!r:.40} is of the wrong kind")
    notes = data.get("registered", {}).values()
    if not all(isinstance(note, dict) and all(isinstance(each, str) for each in note.values()) for note in notes):
        raise InputError("this is not a record of an observed run: registered holds no notes of files")
    if data["seed"] < 0 or not 0 <= data.get("seconds", 0.0) < math.inf:
        raise InputError("this is not a record of an observed run: a seed or seconds below 0, or infinite")


def on_few_tokens(metric: str) -> bool:
    """Whether a metric is read on fewer than 32 tokens, as some in older records are."""
    tokens = re.search(r"/tokens=(\d+)", metric)
    return tokens is not None and int(tokens[1]) < FEWEST


def largest_known(values: Iterable[float]) -> float:
    """The largest value without NaN; NaN if there is none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _equal(one: float, other: float) -> bool:
    """The same number, or both unknown."""
    return one == other or (math.isnan(one) and math.isnan(other))


def _same(one: Sequence[float], other: Sequence[float]) -> bool:
    return one == other or (len(one) == len(other) and all(map(_equal, one, other)))


def _same_rows(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """Compared as they are stored, in six digits."""
    return one == other or (
        len(one) == len(other) and all(_line(a) == _line(b) for a, b in zip(one, other, strict=True))
    )


def _of_top_head(run: Observed, metric: str) -> float:
    """A metric of the head with the strongest sink; NaN if the run does not keep it."""
    name = metric.removeprefix(TOP)
    last = {kept: rows[-1] for kept, rows in run.heads.items() if rows}
    alpha = last.get("alpha", ())
    if math.isnan(strongest := largest_known(alpha)):
        return math.nan
    head = alpha.index(strongest)
    if name in last:
        return last[name][head]
    base, _, how = name.rpartition("_")
    base = {"value": "value_norm", "key": "key_norm"}.get(base, base)
    if base not in last or f"{base}/others" not in last:
        return math.nan
    here, others = last[base][head], last[f"{base}/others"][head]
    return here - others if how == "gap" else here / others if others else math.nan


def _line(row: Iterable[float]) -> str:
    """The numbers of an evaluation as one text: a line per number would make records unreadable."""
    return " ".join(f"{value:g}" for value in row)


def _without_nan(values: Sequence[float]) -> list[float | None]:
    return list(values) if all(map(math.isfinite, values)) else [_or_none(value) for value in values]


def _with_nan(values: Collection[float | None]) -> tuple[float, ...]:
    return tuple([math.nan if value is None else float(value) for value in values])


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
