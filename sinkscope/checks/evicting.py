"""Which policy of eviction at 50 and 25 % of the bytes, compared with random keys at the same bytes."""

from __future__ import annotations

from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.quantization import full_layers
from sinkscope.trials import Trial, eviction_trial

POLICIES = ("streaming", "h2o", "snapkv", "keydiff")
BUDGETS = (0.5, 0.25)


def applies(subject: CheckedModel) -> str:
    """Empty for a causal decoder whose cache has layers of full attention."""
    if why := subject.decodes():
        return why
    return "" if full_layers(subject.model) else "no layer keeps keys and values of all tokens"


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """What each policy costs at each budget."""
    trial = eviction_trial(
        subject.model,
        texts.ids,
        POLICIES,
        BUDGETS,
        context=texts.ids.shape[1] // 2,
        calibrate_on=texts.choosing,
        controls=subject.controls,
        seed=subject.seed,
        batch_size=subject.at_once(texts),
        progress=progress,
    )
    rows = [_row(trial, arm) for arm in trial.named("arm")]
    return Answered(_answer(trial), tuple(rows), {"context": int(texts.ids.shape[1] // 2)})


def _row(trial: Trial, arm: str) -> Row:
    grade = trial.grade(arm)
    held, full = (float(trial.data["bytes"].sel(arm=one)) for one in (arm, trial.arms[0]))
    why = grade.why
    if trial.controls(arm):
        gain = trial.difference(arm)
        than = "better than" if gain.high < 0 else "worse than" if gain.low > 0 else "no better than"
        why = f"{than} random keys"
    policy, _, budget = arm.partition("@")
    return Row(
        arm,
        f"{policy} at {budget}",
        trial.cost(arm),
        "KL a token",
        trial.texts,
        grade.word,
        why,
        f"evict with {policy} at {budget}" if grade.word in ADVISED else "",
        bytes=held,
        of_16=held / full,
        values=tuple(trial.values(arm).tolist()),
    )


def _answer(trial: Trial) -> str:
    """The best policy of each budget, and whether it beats random keys."""
    said = []
    for budget in (f"{100 * share:g}%" for share in BUDGETS):
        arms = [arm for arm in trial.named("arm") if arm.endswith(f"@{budget}")]
        best = min(arms, key=lambda arm: trial.cost(arm).value)
        more = ""
        if trial.controls(best):
            more = ", better than random keys" if trial.difference(best).high < 0 else ", no better than random keys"
        policy = best.partition("@")[0]
        said.append(
            f"at {budget} of the bytes {policy} loses least (KL {trial.cost(best).value:.3f}, {trial.word(best)}{more})"
        )
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


SECTION = CheckSection("evict", "Eviction", "full", applies, 11.0, run_section)
