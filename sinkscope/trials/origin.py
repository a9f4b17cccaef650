"""Where a sink comes from: causal tests of what makes it, each with a control of the same size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import (
    Invocation,
    OpenStream,
    Stream,
    batches,
    evaluating,
    position_limit,
    read_stream,
    row_length,
    unwrapped,
    watching,
    without_logits,
)
from sinkscope.interventions import (
    ExtraToken,
    FirstTokenView,
    Intervention,
    MatchVariance,
    MuteFeedForward,
    OneKeyView,
    Rearrange,
    SetActivations,
    SetReadings,
    readers,
)
from sinkscope.measurement import AttentionReceived, metrics, observe
from sinkscope.sinks import EPSILON
from sinkscope.trials.arm import REFERENCE, Arm, OnePass, Texts
from sinkscope.trials.changes import rates_of, score_of
from sinkscope.trials.run import Progress, run
from sinkscope.trials.texts import split
from sinkscope.trials.trial import SENTENCES, UNITS, Trial
from sinkscope.trials.words import TOLERANCE, percent

MAKES = {
    "isolate": "token k sees itself alone",
    "match-output": "head outputs at k get the variance of those at the sink",
    "match-values": "the values that k reads are scaled until its outputs have it",
    "copy-first": "the sink's token is at k as well",
    "move-first": "the sink's token is moved to k",
    "swap-first": "the sink's token and that at k change places",
    "relocate": "its largest activations are moved to an extra token after it",
}
"""Tests that look for a sink at another place: if what they do makes one, it is there."""
TAKES = {
    "mute-step": "the feed-forward of the step-up block is off at the sink",
    "median-before": "the sink's largest activations are the channel's median, in the stream",
    "median-after": "the same, after the norms only: what maps read",
}
"""Tests that take something from the sink: if that makes it, it is gone."""
ORIGIN = (*MAKES, *TAKES)
MOST = 4  # channels
NEAR = 4  # neighbors of the sink
ENDS = {"": "value", "_low": "low", "_high": "high"}
LEAST_RATE = 0.01  # of the heads: with fewer there is no sink whose origin could be tested
Entry = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Anatomy:
    """What a sink is made of in some texts.

    Attributes:
        sink: Its position.
        step: The depth at which its norm, relative to the other tokens', grows most.
        entries: (depth of onset, sink, channel) of its largest activations.
        massive: Whether these are massive by the criterion of Sun et al. 2024.
        medians: The median of every channel over the other tokens, by depth from the first onset on.
        means: The mean of every channel at the sink, by the same depths.
        readings: Both at the input of each map that reads the stream, by its path.
        variances: Variances of head outputs over their channels, (layer, position), mean over texts and heads.
    """

    sink: int
    step: int
    entries: tuple[Entry, ...]
    massive: bool
    medians: Mapping[int, Tensor]
    means: Mapping[int, Tensor]
    readings: Mapping[str, tuple[Tensor, Tensor]]
    variances: Float[Tensor, "layer position"]

    def others(self, generator: np.random.Generator) -> tuple[Entry, ...]:
        """As many other channels of the same depths, at random."""
        taken = {dim for _, _, dim in self.entries}
        free = [dim for dim in range(len(next(iter(self.medians.values())))) if dim not in taken]
        dims = generator.permutation(free)[: len(self.entries)].tolist()
        return tuple((depth, p, dim) for (depth, p, _), dim in zip(self.entries, dims, strict=True))

    def lasting(self, drawn: Sequence[Entry] | None = None) -> tuple[tuple[Entry, ...], tuple[float, ...]]:
        """The entries at each depth that a block reads, from their onset on, and what they become: their medians.

        Of `drawn` channels instead: as far from their medians as the entries are from theirs, on the side to which
        these are moved.
        """
        entries, values = [], []
        for (onset, p, dim), (*_, other) in zip(self.entries, drawn or self.entries, strict=True):
            for depth in sorted(self.medians):
                if depth >= onset:
                    entries.append((depth, p, other))
                    values.append(_instead(self.medians[depth], self.means[depth], dim, other))
        return tuple(entries), tuple(values)

    def normed(self, drawn: Sequence[Entry] | None = None) -> SetReadings:
        """The same where maps read the stream, after the norms, and nowhere else."""
        pairs = [(dim, other) for (*_, dim), (*_, other) in zip(self.entries, drawn or self.entries, strict=True)]
        values = {path: tuple(_instead(*both, *pair) for pair in pairs) for path, both in self.readings.items()}
        return SetReadings((self.sink,), tuple(other for _, other in pairs), values)


def _instead(medians: Tensor, means: Tensor, dim: int, other: int) -> float:
    """The median of `dim`; for another channel its median, moved as far as `dim` moves from its mean to its median."""
    return float(medians[other] + (medians[dim] - means[dim] if other != dim else 0.0))


def anatomy(model: nn.Module, texts: Texts, sink: int, batch_size: int) -> Anatomy:
    """What the sink is made of, from one pass over the texts."""
    stream = Stream.of(model)
    layers = {module: number for number, module in enumerate(stream.attention(model))}
    hidden: dict[int, list[Tensor]] = {}
    inputs: dict[str, list[Tensor]] = {}
    outputs: dict[int, list[Tensor]] = {}

    def read(depth: int, state: Tensor, _: OpenStream) -> None:
        hidden.setdefault(depth, []).append(state.float().cpu())

    with evaluating(model), torch.no_grad(), ExitStack() as stack:
        stack.enter_context(read_stream(model, read))
        stack.enter_context(watching(_Outputs(layers, outputs)))
        for each in readers(model):
            kept = inputs.setdefault(each.path, [])
            each.read_input(lambda x, kept=kept: kept.append(x.float().cpu()), stack)  # type: ignore[misc]
        for batch in batches(model, texts.inputs, texts.count, batch_size):
            model(**batch | without_logits(model, batch))
    whole = {depth: torch.cat(states) for depth, states in hidden.items()}
    others = [position for position in range(next(iter(whole.values())).shape[1]) if position != sink]
    norms = torch.stack([whole[depth].norm(dim=-1).mean(0) for depth in sorted(whole)])
    ratio = norms[:, sink] / norms[:, others].mean(1)
    sizes = torch.stack([whole[depth][:, sink].abs().mean(0) for depth in sorted(whole)])
    middles = torch.stack([whole[depth].abs().median() for depth in sorted(whole)]).clamp(min=1e-30)
    last = len(sizes) - 1 if len(sizes) > 2 else len(sizes)  # a final norm follows the last depth
    ratios = sizes[1:last] / middles[1:last, None]
    massive = metrics.is_massive(sizes[1:last].numpy(), middles[1:last].numpy())
    strongest = ratios.amax(0).argsort(descending=True)[:MOST].tolist()
    dims = [dim for dim in strongest if massive[:, dim].any()] or strongest[:1]
    entries = []
    for dim in dims:
        # Row 0 of `ratios` is depth 1; argmax gives the first that reaches half.
        onset = int((ratios[:, dim] >= ratios[:, dim].max() / 2).int().argmax()) + 1
        entries.append((onset, sink, dim))
    first = min(depth for depth, _, _ in entries)
    paths = {each.path for each in readers(model, first)}
    # The depths that blocks read, hence without the last, unless the onset is there.
    deep = range(first, max(first + 1, last))
    return Anatomy(
        sink,
        int((ratio[1:] - ratio[:-1]).argmax()) + 1,
        tuple(entries),
        bool(massive.any()),
        {depth: _median(whole[depth][:, others]) for depth in deep},
        {depth: whole[depth][:, sink].mean(0) for depth in deep},
        {path: _both(torch.cat(kept), sink, others) for path, kept in inputs.items() if path in paths},
        torch.stack([torch.cat(outputs[layer]).mean(0) for layer in range(len(layers))]),
    )


def _both(states: Tensor, sink: int, others: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The median of each channel over other tokens, and its mean at the sink."""
    return _median(states[:, others]), states[:, sink].mean(0)


def _median(states: Tensor) -> Float[Tensor, " channel"]:
    """The lower median of each channel, over (text, position), as `Tensor.median` has it; numpy is faster."""
    rows = states.flatten(0, 1).T.contiguous().numpy()
    middle = (rows.shape[1] - 1) // 2
    return torch.from_numpy(np.partition(rows, middle, axis=1)[:, middle].copy())


@dataclass(frozen=True, eq=False)
class _Outputs:
    """Keeps the variance of head outputs over their channels, mean over heads: (text, position) of each layer."""

    layers: Mapping[nn.Module, int]
    variances: dict[int, list[Tensor]]

    def watches(self, module: nn.Module) -> bool:
        return module in self.layers

    def attended(self, invocation: Invocation) -> None:
        variance = invocation.output.float().var(-1, correction=0).mean(-1)
        self.variances.setdefault(self.layers[invocation.module], []).append(variance.cpu())


@dataclass(frozen=True, eq=False)
class OriginArms:
    """How the tests are made, and where they leave the sink: `rates` fills while they run."""

    anatomy: Anatomy
    test: int
    length: int
    epsilon: float
    seed: int
    rates: dict[tuple[str, int], list[np.ndarray]] = field(default_factory=dict)

    def place(self, what: str) -> int:
        """Where a test looks for a new sink."""
        return self.anatomy.sink + 1 if what == "relocate" else self.test

    def arm(self, what: str) -> Arm:
        """The test of this name. Raises `InputError` for an unknown one."""
        if what not in ORIGIN:
            raise unknown("test", what, ORIGIN)

        def control(draw: int, texts: Texts) -> Arm | None:
            number = draw - self.seed
            other = self.change(what, np.random.default_rng([self.seed, number, ORIGIN.index(what)]))
            # In `rates`, number 0 is the test itself.
            return None if other is None else self._arm(what, other, number + 1)

        change = self.change(what, None)
        assert change is not None
        return self._arm(what, change, 0, control)

    def change(self, what: str, drawn: np.random.Generator | None) -> Intervention | None:
        """The test, or if something is `drawn` its control: as large, of something else. None where there is none."""
        p, k, made_of = self.anatomy.sink, self.test, self.anatomy
        between = sorted(range(min(p, k) + 1, max(p, k)), key=lambda position: abs(position - p))
        # Moving one of the sink's neighbors to k shifts almost as many ids as moving the sink's.
        between = between[:NEAR] if what == "move-first" else between
        if drawn is not None and (what == "isolate" or what.endswith("-first")) and not between:
            return None
        other = p if drawn is None else int(drawn.choice(between)) if between else p
        channels = None if drawn is None else made_of.others(drawn)
        if what == "isolate":
            return FirstTokenView(k) if drawn is None else OneKeyView(k, other)
        if what in ("match-output", "match-values"):
            seed = None if drawn is None else int(drawn.integers(1 << 30))
            return MatchVariance(k, p, "output" if what == "match-output" else "values", seed)
        if what.endswith("-first"):
            return Rearrange(what.removesuffix("-first"), other, k)  # type: ignore[arg-type]
        if what == "relocate":
            return ExtraToken(p + 1, *made_of.lasting(channels))
        if what == "mute-step":
            rest = [position for position in range(self.length) if position != p]
            return MuteFeedForward(made_of.step, (p if drawn is None else int(drawn.choice(rest)),))
        if what == "median-before":
            entries, values = made_of.lasting(channels)
            return SetActivations(entries, "mean", values)
        return made_of.normed(channels)

    def _arm(
        self, what: str, change: Intervention, draw: int, control: Callable[[int, Texts], Arm | None] | None = None
    ) -> Arm:
        @contextmanager
        def opened(model: nn.Module, texts: Texts) -> Iterator[None]:
            with self.watched(model, what, draw), change.applied(model):
                yield

        facts = json.loads(json.dumps(change.describe(), default=str))
        facts.pop("values", None)  # of every map that reads the stream: long, and known from the texts
        return Arm(what, opened, control=control, touched=self.before, facts=facts)

    @contextmanager
    def watched(self, model: nn.Module, what: str, draw: int) -> Iterator[None]:
        """Where the sink is in the passes inside: their rates (text, position), % , NaN for late positions."""
        with observe(model, AttentionReceived()) as seen:
            yield
        data = seen.measurement().data
        self.rates.setdefault((what, draw), []).append(rates_of(data, Stream.of(model).stack, self.epsilon))

    def before(self, texts: Texts) -> Tensor:
        """Tokens up to k: some test changes their ids."""
        return (torch.arange(self.length) <= max(self.test, self.anatomy.sink)).expand(texts.count, -1)


def origin_trial(
    model: nn.Module,
    inputs: Any,
    what: Sequence[str] = ORIGIN,
    *,
    sink: int = 0,
    test: int | None = None,
    calibrate_on: Any = None,
    controls: int = 3,
    epsilon: float = EPSILON,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    batch_size: int = 8,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Trial:
    """What makes the sink? Tests that would make one at another place k, and tests that take it away from its own.

    | test | what it does | its control |
    |---|---|---|
    | `isolate` | k sees itself alone, in all layers | k sees one other token alone |
    | `match-output` | head outputs at k get the variance of those at the sink | moved as far, at random |
    | `match-values` | the values that k reads are scaled until they do | moved as far, at random |
    | `copy-first` | the id at k becomes that of the sink (two of them) | that of another token |
    | `move-first` | the sink's id is moved to k, those between shift | one of the next ids is moved to k |
    | `swap-first` | the ids at the sink and at k change places | ids of another token and k |
    | `relocate` | an extra zero token after the sink takes over its largest activations | as much of other channels |
    | `mute-step` | no feed-forward for the sink, in the block where its norm jumps | for another token |
    | `median-before` | its largest activations become their channel's median, in the stream | others move as far |
    | `median-after` | the same at the inputs of maps, after the norms | others move as far |

    Positions are kept when ids are rearranged, so what stays at its place is made by the position. Scored are the
    predictions after k. Besides KL and nats the trial has `rate_at_sink` and `rate_at_test`, shares of the heads: the
    sink rate of the old place and of the place where a test would make one (k; for `relocate` the extra token), text
    by text, from the same passes that are scored; `rate` (arm, text, position) has those of every position. The
    record's `origin` says what the sink is made of (`anatomy`, from texts that are not scored).

    Args:
        model: Any transformers model with logits.
        inputs: Texts, as `measure` takes them, in rows of one length; a fifth of them, at least eight, shows what the
            sink is made of.
        what: Names of `ORIGIN`; `relocate` is left out where texts fill all positions of the model.
        sink: The sink's position.
        test: k; default: a quarter of the text.
        calibrate_on: Other texts to look at the sink in; all of `inputs` are scored then.
        controls: Draws of each test's control.
        epsilon: The threshold of the sink rate.
        tolerance, seed, batch_size, about, progress: As in `run`.

    Raises `InputError` for unknown tests, padded texts, positions that texts do not have, and as the interventions do.
    """
    model = unwrapped(model)
    if (wrong := next((name for name in what or ("",) if name not in ORIGIN), None)) is not None:
        raise unknown("test", str(wrong), ORIGIN)
    parts = split(model, inputs, "chooses", calibrate_on=calibrate_on)
    assert parts.calibration is not None
    length = row_length(model, parts.scored.inputs)
    test = length // 4 if test is None else test
    for name, position in (("sink", sink), ("test", test)):
        if not 0 <= position < length - 1:
            raise InputError(f"{name} = {position}: texts have positions 0 to {length - 1}, and are scored after it")
    if test == sink:
        raise InputError(f"test = {test}: that is the sink itself; name another position")
    for texts in (parts.scored, parts.calibration):
        if texts.ids is None or not (texts.real is None or bool(texts.real.all())):
            raise InputError("the tests rearrange tokens: give token ids in rows of one length, without padding")
    sink_anatomy = anatomy(model, parts.calibration, sink, batch_size)
    arms = OriginArms(sink_anatomy, test, length, epsilon, seed)
    chosen, notes = list(dict.fromkeys(what)), []
    if "relocate" in chosen and (position_limit(model) or length + 1) <= length:
        notes.append(f"relocate adds a token, and the model has positions for {length} tokens: give texts of fewer.")
        chosen.remove("relocate")
        if not chosen:
            raise InputError(notes[0].removesuffix("."))
    described = {"kind": "origin", "origin": _described(sink_anatomy, test, epsilon), "notes": notes}
    record = described | dict(about or {})
    trial = run(
        model,
        parts.scored,
        [arms.arm(name) for name in chosen],
        reading=OnePass(),
        controls=controls,
        calibrated_on=parts.record,
        tolerance=tolerance,
        seed=seed,
        batch_size=batch_size,
        about=record,
        reference=Arm(REFERENCE, lambda model, texts: arms.watched(model, REFERENCE, 0)),
        progress=progress,
    )
    return _with_rates(trial, arms)


def _described(sink_anatomy: Anatomy, test: int, epsilon: float) -> dict[str, Any]:
    variances = [[float(row[sink_anatomy.sink]), float(row[test])] for row in sink_anatomy.variances]
    return {
        "sink": sink_anatomy.sink,
        "test": test,
        "epsilon": epsilon,
        "step": sink_anatomy.step,
        "entries": [list(entry) for entry in sink_anatomy.entries],
        "massive": sink_anatomy.massive,
        "variance_at_sink_and_test": variances,
    }


def _with_rates(trial: Trial, arms: OriginArms) -> Trial:
    """The trial with the rate of every position, and of the sink's and that of each test."""
    by_position, at_sink, at_test = [], [], []
    for name in trial.arms:
        what = str(trial.data["of"].sel(arm=name).values) or name
        draw = int(trial.data["draw"].sel(arm=name)) + 1 if what != name else 0
        rates = np.concatenate(arms.rates[what, draw]) / 100
        at_sink.append(rates[:, arms.anatomy.sink])
        at_test.append(rates[:, arms.place(what)])
        # `relocate` makes texts one token longer.
        by_position.append(np.pad(rates, ((0, 0), (0, arms.length + 1 - rates.shape[1])), constant_values=np.nan))
    if not np.isfinite(np.stack(at_test)).any():
        raise InputError(
            f"position {arms.test} is seen by too few queries for a sink rate: give longer texts, or an earlier test"
        )
    pairs = (("rate_at_sink", at_sink), ("rate_at_test", at_test))
    arrays = {name: (("arm", "text"), np.stack(rows), {"units": UNITS[name]}) for name, rows in pairs}
    rate = ("arm", "text", "position"), np.stack(by_position), {"units": UNITS["rate_at_sink"]}
    return Trial(trial.data.assign(arrays | {"rate": rate}))


def place(trial: Trial, arm: str) -> tuple[int | None, float | None]:
    """The position with the largest rate under a test, of those that enough queries see, and that rate; None if none
    is seen by enough."""
    rates = metrics.nanmean(trial.data["rate"].sel(arm=arm).values, 0)
    if not np.isfinite(rates).any():
        return None, None
    return int(np.nanargmax(rates)), float(np.nanmax(rates))


def finding(trial: Trial, arm: str) -> str:
    """The finding of a test, compared with its controls where there are some.

    For a test that would make one: "makes one" where the rate at its place exceeds that of the controls, and is at
    least half of what the sink has in the unchanged model, "makes a weak one" where it only exceeds; "as its control
    does" where both exceed the unchanged model's; else "makes none". For a test that takes something: "takes it away"
    where the sink's rate is below the controls' and at most half of the unchanged one, "weakens it" where it is only
    below; "strengthens it" where it is above; else "leaves it". Halves are decided by the interval's nearer end, the
    rest by paired differences. Empty where the unchanged model has no sink there (less than 1 %).
    """
    before = trial.mean(REFERENCE, "rate_at_sink").value
    if not before >= LEAST_RATE:
        return ""
    score = "rate_at_test" if arm in MAKES else "rate_at_sink"
    other = "controls" if trial.controls(arm) else REFERENCE
    more, now = trial.difference(arm, other, score), trial.mean(arm, score)
    if arm in MAKES:
        if more.low > 0:
            return "makes one" if now.low >= before / 2 else "makes a weak one"
        there = trial.difference(arm, REFERENCE, score).low > 0
        return "makes one, as its control does" if there and other == "controls" else "makes none"
    if more.high < 0:
        return "takes it away" if now.high <= before / 2 else "weakens it"
    return "strengthens it" if more.low > 0 else "leaves it"


def table(trial: Trial) -> pd.DataFrame:
    """A test per row: nats and KL with intervals, its controls' cost and how much more the test costs, sink rates in %
    at the old and the tested place (and there under the controls), where the largest rate is, and the finding."""
    score, rows = score_of(trial), []
    for arm in trial.named("arm"):
        cost, kl = trial.cost(arm, score), trial.cost(arm)
        row: dict[str, Any] = {"arm": arm}
        if score == "nats":
            row |= {"nats": cost.value, "nats_low": cost.low, "nats_high": cost.high}
        row |= {"kl": kl.value, "kl_low": kl.low, "kl_high": kl.high}
        looked = "rate_at_test" if arm in MAKES else "rate_at_sink"
        if trial.controls(arm):
            values = trial.values(f"controls of {arm}", score) - trial.values(REFERENCE, score)
            row |= {
                "controls": float(np.mean(values)),
                **{f"more{end}": getattr(trial.difference(arm, "controls", score), name) for end, name in ENDS.items()},
                "rate_of_controls": 100 * float(np.mean(trial.values(f"controls of {arm}", looked))),
            }
        for name in ("rate_at_sink", "rate_at_test"):
            rate = trial.mean(arm, name)
            row |= {name: 100 * rate.value, f"{name}_low": 100 * rate.low, f"{name}_high": 100 * rate.high}
        position, rate_there = place(trial, arm)
        row |= {"sink_at": position, "sink_rate": rate_there and 100 * rate_there, "word": finding(trial, arm)}
        rows.append(row)
    return pd.DataFrame(rows)


def sentences(trial: Trial) -> list[str]:
    """What a trial of the origin says: the sink, then each test."""
    about, before = trial.record["origin"], trial.mean(REFERENCE, "rate_at_sink")
    p, k = about["sink"], about["test"]
    lines = [f"Position {p} is the sink of {percent(before, 1)} of the heads, position {k} that of "]
    lines[0] += f"{percent(trial.mean(REFERENCE, 'rate_at_test'), 1)}."
    if not before.value >= LEAST_RATE:
        lines.append("There is no sink to speak of, so the tests say what they cost and nothing of its origin.")
    channels = ", ".join(f"{dim} (depth {depth})" for depth, _, dim in about["entries"])
    kind = "massive" if about["massive"] else "largest, not massive,"
    lines.append(f"Its norm grows most in block {about['step'] - 1}; its {kind} activations are in channel {channels}.")
    for arm in trial.named("arm"):
        looked, place = ("rate_at_test", "there") if arm in MAKES else ("rate_at_sink", "at the sink")
        text = f"'{arm}' {finding(trial, arm) or 'was run'}: rate {place} {percent(trial.mean(arm, looked), 1)}"
        if trial.controls(arm):
            text += f", under its controls {100 * np.mean(trial.values(f'controls of {arm}', looked)):.1f} %"
        lines.append(f"{text}.")
    return lines


SENTENCES["origin"] = sentences
