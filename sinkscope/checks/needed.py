"""Is the sink needed: it is hidden, muted, and its mass moved elsewhere, compared with other tokens."""

from __future__ import annotations

from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.trials import Trial, matters

ARMS = ("hide-sink", "mute-sink", "trim-sink")
OTHERS = "trim-others"
SAID = {
    "hide-sink": "hiding the sink",
    "mute-sink": "muting its value",
    "trim-sink": "mass trimmed off it",
    OTHERS: "the same mass off others",
}


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder that has a sink."""
    if why := subject.decodes():
        return why
    return "" if subject.sinks(subject.sets[0]) is not None else "it has no sink"


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """What each change costs, and whether that is more than the same change of other tokens."""
    trial = matters(
        subject.model,
        texts.ids,
        ARMS,
        on=subject.sinks(texts),
        calibrate_on=texts.choosing,
        controls=subject.controls,
        seed=subject.seed,
        batch_size=subject.batch_size,
        progress=progress,
    )
    rows = [_row(trial, arm) for arm in (*ARMS, OTHERS) if arm in trial.arms]
    return Answered(_answer(trial), tuple(rows), {"sink": trial.record["sink"]["positions"]})


def _row(trial: Trial, arm: str) -> Row:
    grade, lost = trial.grade(arm), trial.cost(arm, "nats")
    why = grade.why
    if trial.controls(arm):
        more = trial.difference(arm, score="nats")
        than = "more than" if more.low > 0 else "less than" if more.high < 0 else "about what"
        why = f"{than} other tokens{'' if than != 'about what' else ' cost'} ({more.value:+.3f} nats)"
    values = trial.values(arm, "nats") - trial.values(trial.arms[0], "nats")
    advice = "not needed" if arm == "hide-sink" and grade.word in ADVISED else ""
    return Row(
        arm,
        SAID[arm],
        lost,
        "nats lost a token",
        trial.texts,
        grade.word,
        why,
        advice,
        values=tuple(values.tolist()),
    )


def _answer(trial: Trial) -> str:
    """Whether hiding it costs more than hiding other tokens, and whether another token takes its place."""
    lost, word = trial.cost("hide-sink", "nats"), trial.word("hide-sink")
    said = f"hiding it costs {lost.value:+.3f} nats a token ({word})"
    if trial.controls("hide-sink"):
        control = trial.difference("hide-sink", score="nats")
        said += f", {control.value:+.3f} {'more' if control.value > 0 else 'less'} than hiding other tokens"
        needed = control.low > 0 and word not in ADVISED
    else:
        needed = word not in ADVISED
    places = trial.record["sink"].get("afterwards", {}).get("hide-sink")
    after = ""
    if places and places["rate"] is not None:
        after = f" The largest sink is then position {places['position']} ({places['rate']:.0f} % of heads)."
    return f"{'Yes' if needed else 'Not beyond chance, or little'}: {said}.{after}"


SECTION = CheckSection("needed", "Is it needed", "full", applies, 13.0, run_section)
