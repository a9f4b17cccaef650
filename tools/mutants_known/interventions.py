"""Mutants of interventions."""

from tools.mutants_known.mutant import Mutant, of

outcome = of("interventions/outcome.py", "tests/interventions/test_effects.py")
effects = of("interventions/effects.py", "tests/interventions")
heads = of("interventions/heads.py", "tests/interventions")
residual = of("interventions/residual.py", "tests/interventions")
restriction = of("interventions/visibility.py", "tests/interventions")
bands = of("interventions/bands.py", "tests/interventions")

MUTANTS: tuple[Mutant, ...] = (
    outcome("anything stands out of a single control", "if found is None or len(controls) < 2:", "if found is None:"),
    outcome(
        "above and below are exchanged",
        'return "above" if found > controls.max() else "below"',
        'return "below" if found > controls.max() else "above"',
    ),
    effects(
        "padding counts in the loss", "counted = (real[:, 1:] & real[:, :-1])", "counted = torch.ones_like(real[:, 1:])"
    ),
    effects(
        "the divergence is the other way round", "divergence = (p.exp() * (p - q))", "divergence = (q.exp() * (q - p))"
    ),
    heads("a neighboring head goes", "output[:, :, head].masked_fill_(", "output[:, :, head - 1].masked_fill_("),
    residual(
        "removed contributions are kept",
        "return torch.where(chosen[..., None], entered.pop().to(hidden), hidden)",
        "return torch.where(chosen[..., None], hidden, entered.pop().to(hidden))",
    ),
    restriction(
        "who would see nothing sees nothing",
        "hidden = hidden & (visible & ~hidden).any(-1, keepdim=True)",
        "hidden = hidden & True",
    ),
    bands("spared positions are filtered", "chosen = chosen & ~opened.at(tuple(self.spared), hidden)", "pass"),
)
