"""Mutants of training and of its data."""

from tools.mutants_known.mutant import Mutant, of

loss = of("training/loss.py", "tests/training/test_loss.py")
schedule = of("training/schedule.py", "tests/training/test_schedule.py")
penalty = of("training/penalty.py", "tests/training/test_penalty.py")
muon = of("training/optimizers/muon.py", "tests/training/optimizers")
decay = of("training/optimizers/base.py", "tests/training/optimizers")
products = of("training/machine/products.py", "tests/training/machine/test_products.py")
windows = of("data/windows.py", "tests/data/test_windows.py", "tests/data/test_prepared.py")

MUTANTS: tuple[Mutant, ...] = (
    loss(
        "one token of the prefix is scored",
        'window["labels"][: self.prefix] = UNSCORED',
        'window["labels"][: self.prefix - 1] = UNSCORED',
    ),
    schedule("no warm-up", "return lr * step / self.warmup if step < self.warmup else lr", "return lr"),
    schedule("half a period too much", "math.cos(math.pi * progress)", "math.cos(2 * math.pi * progress)"),
    penalty(
        "variance in place of its square",
        "centered.square().mean(1).square() + GUARD",
        "centered.square().mean(1) + GUARD",
    ),
    muon(
        "the output layer is orthogonalized",
        "if parameter.ndim == 2 and id(parameter) not in outside]",
        "if parameter.ndim == 2]",
    ),
    decay("norms always decay", "return self.decay_norms or parameter.ndim >= 2", "return True"),
    products("products of halves too", "left.dtype == right.dtype == torch.float32", "left.dtype == right.dtype"),
    products("a scaled sum loses its scale", "any(node.kwargs.get(of, 1) != 1 for of in SCALES)", "False"),
    products("what is added is lost", "            if added:", "            if False:"),
    products("turned products are not turned back", "    return _turned(graph, turned)", "    return turned"),
    products("every AVX-512 processor is narrowed", '_maker() not in ("", "GenuineIntel")', '_maker() != ""'),
    windows("labels see the interventions", "input_ids = labels.clone()", "input_ids = labels"),
    windows(
        "documents are not counted from the window's first",
        "torch.from_numpy(numbers - numbers[0])",
        "torch.from_numpy(numbers)",
    ),
)
