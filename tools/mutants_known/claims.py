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
    rules(
        "an effect within its margin is reversed",
        "limit == 0 or (limit > 0 and found.bound(0.975) < 0)",
        "limit >= 0",
    ),
    rules("a ratio's margin is no logarithm", "math.log(self.margin) if self.ratio else self.margin", "self.margin"),
    rules("the larger sample has enough seeds", "if min(found.n) < (", "if max(found.n) < ("),
    rules("three seeds that agree decide", "AGREEING if found.error == 0 else seeds", "seeds"),
    rules("seeds that agree are as many as others", "AGREEING = 5", "AGREEING = 4"),
    rules(
        "a limit's p-value is that of its opposite",
        "p, least = 1 - found.above(self.limit)",
        "p, least = found.above(self.limit)",
    ),
    rules(
        "equality by the easier of two tests",
        "max(1 - found.above(self.tolerance), found.above(-self.tolerance))",
        "min(1 - found.above(self.tolerance), found.above(-self.tolerance))",
    ),
    rules(
        "what could have been shown is below the limit of it",
        "self.limit - (found.bound(0.95) - found.mean)",
        "self.limit + (found.bound(0.95) - found.mean)",
    ),
    intervals("an upper bound is a lower one", "self.mean + float(stdtrit(", "self.mean - float(stdtrit("),
    intervals("a tail is its opposite", "(limit - self.mean) / self.error", "(self.mean - limit) / self.error"),
    intervals("weights are not squared", "weight**2 * _variance(values)", "weight * _variance(values)"),
    intervals("one seed has an interval", "if min(n) < 2:", "if max(n) < 2:"),
    intervals("Bonferroni's correction", "(len(p) - rank) * p[place]", "len(p) * p[place]"),
    intervals(
        "the variance of a population",
        "for value in values) / (len(values) - 1)\n",
        "for value in values) / len(values)\n",
    ),
    claims(
        "no evidence is support",
        'return self.not_run(reason or "nothing was measured")',
        'return Verdict(self, "supported", 0.0)',
    ),
)
