"""Is the sink needed: what it costs to hide it, to mute its value, to replace it by constants or by another text's, or
to trim its mass, compared with other tokens.
"""

from __future__ import annotations

from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.trials import QUESTION, Trial, matters

OTHERS = "trim-others"
LABELS = {
    "hide-sink": "hiding the sink",
    "mute-sink": "muting its value",
    "mean-sink": "its mean key and value over other texts in its place",
    "fold-sink": "a constant logit and value in its place",
    "swap-sink": "another text's key and value in its place",
    "trim-sink": "mass trimmed off it",
    OTHERS: "the same mass off others",
}


def obstacle(subject: CheckedModel) -> str:
    """Empty for a causal decoder that has a sink."""
    if reason := subject.decoder_obstacle():
        return reason
    return "" if subject.sinks(subject.sets[0]) is not None else "it has no sink"


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """The cost of each change, compared with the same change of other tokens."""
    trial = matters(
        subject.model,
        texts.ids,
        QUESTION,
        on=subject.sinks(texts),
        calibrate_on=texts.calibration,
        controls=subject.controls,
        seed=subject.seed,
        batch_size=subject.batch_size,
        look_after=("hide-sink",),
        progress=progress,
    )
    rows = [_row(trial, arm) for arm in (*QUESTION, OTHERS) if arm in trial.arms]
    return Answered(_answer(trial), tuple(rows), {"sink": trial.record["sink"]["positions"]})


def _row(trial: Trial, arm: str) -> Row:
    grade, cost = trial.grade(arm), trial.cost(arm, "nats")
    why = grade.why
    if trial.controls(arm):
        more = trial.difference(arm, score="nats")
        relation = "more than" if more.low > 0 else "less than" if more.high < 0 else "about what"
        why = f"{relation} other tokens{'' if relation != 'about what' else ' cost'} ({more.value:+.3f} nats)"
    values = trial.values(arm, "nats") - trial.values(trial.arms[0], "nats")
    advice = "not needed" if arm == "hide-sink" and grade.word in ADVISED else ""
    return Row(
        arm,
        LABELS[arm],
        cost,
        "nats lost a token",
        trial.texts,
        grade.word,
        why,
        advice,
        values=tuple(values.tolist()),
    )


def _answer(trial: Trial) -> str:
    """Whether hiding it costs more than hiding other tokens, and whether another token takes its place."""
    cost, word = trial.cost("hide-sink", "nats"), trial.word("hide-sink")
    text = f"hiding it costs {cost.value:+.3f} nats a token ({word})"
    needed, unknown = word not in ADVISED, word == "cannot tell"
    if trial.controls("hide-sink"):
        more = trial.difference("hide-sink", score="nats")
        text += f", {more.value:+.3f} {'more' if more.value > 0 else 'less'} than hiding other tokens"
        needed = needed and more.low > 0
    new_sink = trial.record["sink"].get("afterwards", {}).get("hide-sink")
    after = ""
    if new_sink and new_sink["rate"] is not None:
        after = f" The largest sink is then position {new_sink['position']} ({new_sink['rate']:.0f} % of heads)."
    answer = "It cannot be told" if unknown else "Yes" if needed else "Not beyond chance, or little"
    return f"{answer}: {text}.{after}"


SECTION = CheckSection("needed", "Is it needed", "full", obstacle, tuple(LABELS), 16.0, run_section)
