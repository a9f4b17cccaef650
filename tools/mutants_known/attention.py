"""Mutants of attention, and of the theory about it."""

from tools.mutants_known.mutant import Mutant, of

softmax = of(
    "attention/normalizers/softmax.py", "tests/attention/test_normalizers.py", "tests/attention/test_scores.py"
)
elementwise = of(
    "attention/normalizers/elementwise.py", "tests/attention/test_normalizers.py", "tests/attention/test_scores.py"
)
masks = of("attention/masks.py", "tests/attention/test_visibility.py")
visibility = of("attention/visibility.py", "tests/attention/test_visibility.py")
keys = of("attention/slots/keys.py", "tests/attention/test_slots.py")
logits = of("attention/slots/logits.py", "tests/attention/test_slots.py")
scores = of("attention/scores.py", "tests/attention/test_scores.py", "tests/attention/test_formulas.py")
operation = of("attention/operation.py", "tests/attention/test_rows.py", "tests/attention/test_operation.py")
sdpa = of("attention/paths/sdpa.py", "tests/attention/test_paths.py", "tests/attention/test_scores.py")
aggregation = of("attention/aggregation.py")
forgetting = of("attention/scoring/decay.py", "tests/attention/test_forgetting.py", "tests/attention/test_scores.py")
first_key = of("attention/scoring/first_key.py", "tests/attention/test_first_key.py")
canonical = of("attention/canonical.py", "tests/attention/test_canonical.py")
exclusive = of("attention/outputs/exclusive.py", "tests/attention/test_exclusive.py")
oracle = of("attention/oracle/comparing.py", "tests/attention/oracle")
fixed = of("attention/paths/sdpa.py", "tests/attention/test_refused.py")
value_bias = of("attention/outputs/bias.py", "tests/theory/test_checks.py")
learned_keys = of("attention/scores.py", "tests/theory/test_checks.py")
sensitivity = of("theory/sensitivity.py", "tests/theory/test_checks.py")
flash = of("attention/paths/flash.py", "tests/attention/paths")
squares = of("attention/paths/squares.py", "tests/attention/paths/test_squares.py")

MUTANTS: tuple[Mutant, ...] = (
    softmax(
        "empty rows keep their weights",
        ").masked_fill(hidden, 0.0)\n\n    def log_partition",
        ")\n\n    def log_partition",
    ),
    softmax("alpha is dropped", "return self.alpha * Softmax()", "return Softmax()"),
    softmax("p in place of 1/p", "exponential(shares, 1 / self.p)", "exponential(shares, self.p)"),
    softmax(
        "clipping never reaches zero", "+ gamma).clamp(0, 1), inner=shares)", "+ gamma).clamp(1e-3, 1), inner=shares)"
    ),
    softmax(
        "softpick without |.| in its divisor", "excess.abs().sum(-1, keepdim=True)", "excess.sum(-1, keepdim=True)"
    ),
    elementwise("+log n in place of -log n", "scores - count.log()", "scores + count.log()"),
    elementwise("elu without its one", "scores.relu() + exponential(scores.clamp(max=0))", "scores.relu()"),
    masks(
        "a query sees the next token",
        "key.order[:, None, :] <= query.order[:, :, None]",
        "key.order[:, None, :] <= query.order[:, :, None] + 1",
    ),
    masks("a window is one wider", ".abs() < self.size", ".abs() <= self.size"),
    visibility("padding keys are visible", "allowed = allowed & self.key.valid[:, None, :]", "pass"),
    visibility(
        "a window's reach is one short",
        "rows.start - band.width + 1)",
        "rows.start - band.width + 2)",
        "tests/attention/test_visibility.py",
        "tests/attention/test_paths.py",
    ),
    keys(
        "the slot's value is dropped",
        "return SlotTerms(key=key, logit=self.logit, value=value)",
        "return SlotTerms(key=key, logit=self.logit)",
        "tests/attention/test_slots.py",
        "tests/attention/test_formulas.py",
    ),
    keys(
        "d_a is not kept to",
        "slot.d_a or sizes.head_dim))",
        "sizes.head_dim))",
        "tests/attention/test_slots.py",
        "tests/attention/test_spec.py",
    ),
    logits(
        "a logit starts at zero",
        "nn.init.constant_(self.logit, self.initial)",
        "nn.init.zeros_(self.logit)",
        "tests/attention/test_starts.py",
        "tests/attention/test_slots.py",
    ),
    forgetting("forgetting remembers", "None, keys]).abs().neg()", "None, keys]).abs()"),
    forgetting("padding is forgotten over", "logs.masked_fill(~tokens.valid[:, None], 0.0)", "logs"),
    forgetting("other documents are forgotten over", "sums - before", "sums"),
    first_key(
        "the first column is the first key", "return first if tokens.valid is None else first &", "return first |"
    ),
    canonical("windows merge to the wider", "one.size <= other.size", "one.size >= other.size"),
    exclusive("the own value is taken out twice", "wide - along * direction", "wide - 2 * along * direction"),
    oracle("an unequal output agrees", "if not error <= limit]  #", "if error > 1e9]  #"),
    fixed("values of any width go to the kernel", "wider = max(width, value_dim)", "wider = width"),
    # theory: each claim dies with the code that it is about
    value_bias("a value bias adds nothing", "return output + self.value[:, None, :].to(output.dtype)", "return output"),
    learned_keys("q·k* is not scaled", "self.scaling * query @ keys.mT", "query @ keys.mT"),
    learned_keys(
        "heads take slots' keys in turn",
        ".repeat_interleave(like.shape[1] // parameter.shape[0], 0)",
        ".repeat(like.shape[1] // parameter.shape[0], 1)",
    ),
    sensitivity(
        "half of C for the whole Jacobian",
        "return max(float(others.max()), float(own.max()))",
        "return max(float(others.max()), float(own.max())) / 2",
    ),
    sensitivity(
        "half of C for fixed weights", "return max(1.0, float(carried.max()))", "return float(carried.max()) / 2"
    ),
    scores(
        "n counts slots",
        "count = visible.sum(-1, keepdim=True)",
        "count = (visible.sum(-1, keepdim=True) + len(self.slots))",
    ),
    scores(
        "a query that sees nothing sees a slot",
        "awake = visible.any(-1, keepdim=True)",
        "awake = torch.ones_like(visible.any(-1, keepdim=True))",
    ),
    operation(
        "windowed weights are padded at 0",
        "(found.keys.start, missing - found.keys.start)",
        "(0, missing)",
        "tests/attention",
    ),
    operation(
        "lambda has the other sign", "first.token - factor * second.token", "first.token + factor * second.token"
    ),
    aggregation(
        "slots' values are not added",
        "if valued:",
        "if not valued:",
        "tests/attention/test_formulas.py",
        "tests/attention/test_slots.py",
    ),
    sdpa(
        "the empty queries in front are kept",
        "output[:, :, len(slots) if causal else 0 :, :value_dim]",
        "output[:, :, : output.shape[2] - (len(slots) if causal else 0), :value_dim]",
    ),
    sdpa(
        "rows of padding are not blanked",
        "return output.masked_fill(blank, 0.0)",
        "return output",
        "tests/attention/paths/test_masks.py",
    ),
    flash(
        "rows of padding are not blanked",
        "part.masked_fill(block.blank, 0.0), total",
        "part, total",
        "tests/attention/paths/test_masks.py",
        "tests/attention/test_paths.py",
    ),
    flash(
        "the last block alone gives keys their gradient",
        "to_key[keys] += parts[1]",
        "to_key[keys] = parts[1].to(wide)",
        "tests/attention/paths/test_masks.py",
    ),
    flash(
        "slots take no mass",
        "total = torch.logaddexp(lse.to(logits.dtype), logits.logsumexp(-1))",
        "total = lse.to(logits.dtype)",
    ),
    flash(
        "who watches the kernel sees L without the prefix",
        "part[:, :, ahead], total[:, :, ahead] = some, known",
        "part[:, :, ahead], total = some, torch.cat([known, total[:, :, ahead.stop :]], 2)",
        "tests/probes/test_squares.py",
    ),
    squares("a square begins before its first query", "fits = (begin == at)", "fits = (begin <= at)"),
)
