"""Which eviction policy at 50 and 25 % of the bytes, compared with random keys at the same bytes."""

from __future__ import annotations

from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.sizes import evicted_bytes
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.trials import Trial, eviction_trial

POLICIES = ("streaming", "h2o", "snapkv", "keydiff")
BUDGETS = (0.5, 0.25)


def run_section(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """The cost of each policy at each budget."""
    context = int(texts.ids.shape[1] // 2)
    trial = eviction_trial(
        subject.model,
        texts.ids,
        POLICIES,
        BUDGETS,
        context=context,
        calibrate_on=texts.calibration,
        controls=subject.controls,
        seed=subject.seed,
        batch_size=subject.texts_per_pass(texts),
        progress=progress,
    )
    rows = [_row(trial, arm) for arm in trial.named("arm")]
    return Answered(_answer(trial), tuple(rows), {"context": context})


def _row(trial: Trial, arm: str) -> Row:
    grade = trial.grade(arm)
    why, advised = grade.why, grade.word in ADVISED
    if trial.controls(arm):
        difference = trial.difference(arm)
        relation = "better than" if difference.high < 0 else "worse than" if difference.low > 0 else "no better than"
        why, advised = f"{relation} random keys", advised and difference.high < 0
    policy, _, budget = arm.partition("@")
    return Row(
        arm,
        f"{policy} at {budget}",
        trial.cost(arm),
        "KL a token",
        trial.texts,
        grade.word,
        why,
        f"evict with {policy} at {budget}" if advised else "",
        *evicted_bytes(trial, arm),
        tuple(trial.values(arm).tolist()),
    )


def _answer(trial: Trial) -> str:
    """The best policy at each budget, and whether it beats random keys."""
    parts = []
    for budget in (f"{100 * share:g} %" for share in BUDGETS):
        arms = [arm for arm in trial.named("arm") if arm.endswith(f"@{budget.replace(' ', '')}")]
        best = min(arms, key=lambda arm: trial.cost(arm).value)
        kl = f"KL {trial.cost(best).value:.3f}, {trial.word(best)}"
        if trial.controls(best):
            kl += f", {'better' if trial.difference(best).high < 0 else 'no better'} than random"
        parts.append(f"{best.partition('@')[0]} at {budget} ({kl})")
    return f"Of the bytes kept, the least is lost by {' and '.join(parts)}."


SECTION = CheckSection(
    "evict",
    "Eviction",
    "full",
    CheckedModel.cache_obstacle,
    tuple(f"{policy}@{100 * share:g}%" for share in BUDGETS for policy in POLICIES),
    7.0,
    run_section,
)
