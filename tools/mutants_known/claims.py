"""Mutants of claims."""

from tools.mutants_known.mutant import Mutant, of

claims = of("claims.py", "tests/test_claims.py")
rules = of("claims.py", "tests/test_claims.py", "tests/experiments/test_effects.py")

MUTANTS: tuple[Mutant, ...] = (
    claims(
        "NaN passes",
        "math.inf if math.isnan(found.value) else abs(found.value)",
        "0.0 if math.isnan(found.value) else abs(found.value)",
    ),
    claims(
        "the margin itself is enough",
        'Judgment("supported" if worst.value > self.margin',
        'Judgment("supported" if worst.value >= self.margin',
    ),
    rules("seeds below the margin count", "lambda value: value > self.margin)", "lambda value: value > -self.margin)"),
    rules(
        "only one side of a tolerance",
        "lambda value: abs(value) <= self.tolerance)",
        "lambda value: value <= self.tolerance)",
    ),
    rules(
        "no evidence is support",
        'return self.not_run(reason or "nothing was measured")',
        'return Verdict(self, "supported", 0.0)',
    ),
)
