"""Mutants of claims."""

from tools.mutants_known.mutant import Mutant, of

claims = of("claims.py", "tests/test_claims.py")
rules = of("rules.py", "tests/test_claims.py")
intervals = of("intervals.py", "tests/test_intervals.py", "tests/experiments/test_contrasts.py")

MUTANTS: tuple[Mutant, ...] = (
    rules(
        "NaN passes",
        "math.inf if math.isnan(found.value) else abs(found.value)",
        "0.0 if math.isnan(found.value) else abs(found.value)",
    ),
    rules(
        "the margin itself is enough",
        'Judgment("supported" if worst.value > self.margin',
        'Judgment("supported" if worst.value >= self.margin',
    ),
    rules("seeds below the margin count", "lambda value: value > self.margin)", "lambda value: value > -self.margin)"),
    rules(
        "only one side of a tolerance",
        "if found.bound(0.95) <= self.tolerance and found.bound(0.05) >= -self.tolerance:",
        "if found.bound(0.95) <= self.tolerance:",
    ),
    rules("an effect alone is enough", "if found.bound(0.05) > limit:", "if found.mean > limit:"),
    intervals("samples are taken for one", "total**2 / math.fsum(part**2", "total**2 * 2 / math.fsum(part**2"),
    claims(
        "no evidence is support",
        'return self.not_run(reason or "nothing was measured")',
        'return Verdict(self, "supported", 0.0)',
    ),
)
