"""The mutants: lines that somebody could get wrong, with the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands once in `file`, becomes `new`; one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _of(file: str, *tests: str) -> _Place:
    return _Place(f"sinkscope/{file}", tests)


@dataclass(frozen=True)
class _Place:
    file: str
    tests: tuple[str, ...]

    def __call__(self, name: str, old: str, new: str, *tests: str) -> Mutant:
        return Mutant(name, self.file, old, new, tests or self.tests)


softmax = _of(
    "attention/normalizers/softmax.py", "tests/attention/test_normalizers.py", "tests/attention/test_scores.py"
)
elementwise = _of(
    "attention/normalizers/elementwise.py", "tests/attention/test_normalizers.py", "tests/attention/test_scores.py"
)
masks = _of("attention/masks.py", "tests/attention/test_visibility.py")
visibility = _of("attention/visibility.py", "tests/attention/test_visibility.py")
keys = _of("attention/slots/keys.py", "tests/attention/test_slots.py")
logits = _of("attention/slots/logits.py", "tests/attention/test_slots.py")
scores = _of("attention/scores.py", "tests/attention/test_scores.py", "tests/attention/test_formulas.py")
operation = _of("attention/operation.py", "tests/attention/test_rows.py", "tests/attention/test_operation.py")
sdpa = _of("attention/paths/sdpa.py", "tests/attention/test_paths.py", "tests/attention/test_scores.py")
aggregation = _of("attention/aggregation.py")
forgetting = _of("attention/scoring/decay.py", "tests/attention/test_forgetting.py", "tests/attention/test_scores.py")
first_key = _of("attention/scoring/first_key.py", "tests/attention/test_first_key.py")
canonical = _of("attention/canonical.py", "tests/attention/test_canonical.py")
exclusive = _of("attention/outputs/exclusive.py", "tests/attention/test_exclusive.py")
oracle = _of("attention/oracle/comparing.py", "tests/attention/oracle")
fixed = _of("attention/paths/sdpa.py", "tests/attention/test_refused.py")
value_bias = _of("attention/outputs/bias.py", "tests/theory/test_checks.py")
learned_keys = _of("attention/scores.py", "tests/theory/test_checks.py")
sensitivity = _of("theory/sensitivity.py", "tests/theory/test_checks.py")
flash = _of("attention/paths/flash.py", "tests/attention/paths")
passes = _of("hooks/passes.py", "tests/hooks/test_passes.py")
samples = _of("hooks/samples.py", "tests/hooks/test_passes.py")
projections = _of("hooks/projections.py", "tests/hooks/test_edits.py")
stream = _of("hooks/stream.py", "tests/hooks/test_stream.py")
dispatch = _of("hooks/dispatch.py", "tests/probes/test_observing.py", "tests/interventions")
received = _of("probes/observers/received.py", "tests/probes/observers/test_rows.py", "tests/probes/test_measuring.py")
chunks = _of("probes/calls/chunks.py", "tests/probes/test_lab.py", "tests/probes/observers/test_row_chunks.py")
call = _of("probes/calls/call.py", "tests/probes/calls")
reading = _of("probes/calls/reading.py", "tests/probes/calls/test_reading.py", "tests/probes/test_batches.py")
guard = _of("probes/calls/guard.py", "tests/probes/calls/test_guard.py")
seen = _of("probes/calls/masks.py", "tests/probes/calls/test_masks.py", "tests/families/test_real_tokens.py")
towers = _of("hooks/modules.py", "tests/families/test_real_tokens.py", "tests/hooks/test_modules.py")
entries = _of("probes/calls/call.py", "tests/families/test_entries.py")
norms = _of("probes/observers/norms.py", "tests/probes/observers/test_angles_and_norms.py")
outputs = _of("probes/observers/outputs.py", "tests/probes/observers/test_outputs.py")
observer = _of("probes/observers/observer.py", "tests/probes/test_measuring.py", "tests/probes/test_batches.py")
assembly = _of("probes/assembly.py", "tests/probes/test_assembly.py", "tests/probes/test_batches.py")
rates = _of("metrics/rates.py", "tests/metrics/test_rates.py")
massive = _of("metrics/massive.py", "tests/metrics/test_massive.py")
outcome = _of("interventions/outcome.py", "tests/interventions/test_effects.py")
effects = _of("interventions/effects.py", "tests/interventions")
heads = _of("interventions/heads.py", "tests/interventions")
residual = _of("interventions/residual.py", "tests/interventions")
restriction = _of("interventions/visibility.py", "tests/interventions")
bands = _of("interventions/bands.py", "tests/interventions")
loss = _of("training/loss.py", "tests/training/test_loss.py")
schedule = _of("training/schedule.py", "tests/training/test_schedule.py")
penalty = _of("training/penalty.py", "tests/training/test_penalty.py")
muon = _of("training/optimizers/muon.py", "tests/training/optimizers")
decay = _of("training/optimizers/base.py", "tests/training/optimizers")
windows = _of("data/windows.py", "tests/data/test_windows.py", "tests/data/test_prepared.py")
claims = _of("claims.py", "tests/test_claims.py")
rules = _of("claims.py", "tests/test_claims.py", "tests/experiments/test_effects.py")

MUTANTS: tuple[Mutant, ...] = (
    # attention
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
    sdpa("rows of padding are not blanked", "return output.masked_fill(blank, 0.0)", "return output"),
    flash(
        "slots take no mass",
        "total = torch.logaddexp(lse.to(logits.dtype), logits.logsumexp(-1))",
        "total = lse.to(logits.dtype)",
    ),
    # hooks
    passes("every pass starts at 0", 'return self.seen if axis == "tokens" else 0', "return 0"),
    samples(
        "the batch may change within a cache",
        "if forward.seen != self.length or forward.batch != self.size:",
        "if forward.seen != self.length:",
        "tests/hooks/test_passes.py",
        "tests/probes/test_batches.py",
    ),
    passes(
        "padding counts as a position",
        "return real if positions is None else real &",
        "return real if positions is None else torch.ones_like(real) &",
        "tests/hooks",
        "tests/interventions",
    ),
    passes("what is required is not asked for", "if not met(done):", "if False:", "tests/hooks"),
    projections(
        "queries and keys are exchanged",
        "query, key, value = columns.split([heads * width, size, size])",
        "key, query, value = columns.split([heads * width, size, size])",
    ),
    projections(
        "gate and up are exchanged",
        "gate, up = torch.arange(_width_out(module)).chunk(2)",
        "up, gate = torch.arange(_width_out(module)).chunk(2)",
    ),
    projections(
        "an edit reaches the whole fused map",
        "part if self.columns is None else whole.index_copy(-1, self.columns.to(whole.device), part)",
        "edit(whole)",
    ),
    stream(
        "depths count from the second block",
        "depth = Depth(passes.under_way.uses[block.stack], block.stack)",
        "depth = Depth(passes.under_way.uses[block.stack] - 1, block.stack)",
    ),
    stream(
        "edits run after readers",
        "hook = block.register_forward_hook(after, prepend=True)",
        "hook = block.register_forward_hook(after)",
        "tests/interventions",
        "tests/hooks",
    ),
    dispatch(
        "edits of the output are dropped",
        "result = (editor.returned(module, result[0]), *result[1:])",
        "editor.returned(module, result[0])",
        "tests/interventions",
    ),
    dispatch(
        "edits of the arguments are dropped",
        "arguments = editor.given(module, implementation, arguments)",
        "editor.given(module, implementation, arguments)",
        "tests/interventions",
    ),
    # probes
    received(
        "slot mass is clamped",
        "mass = (call.sink - call.counted_lse).exp()",
        "mass = (call.sink - call.counted_lse).exp().clamp(max=0.5)",
        "tests/probes",
    ),
    received(
        "padded positions count",
        "weights.sum(-2) * present[samples, None, :], None, samples)",
        "weights.sum(-2), None, samples)",
        "tests/probes/test_batches.py",
        "tests/probes/test_measuring.py",
        "tests/probes/observers",
    ),
    chunks(
        "raw weights where rows are renormalized",
        "token, slot = token.abs() / total, slot.abs() / total",
        "token, slot = token.abs(), slot.abs()",
    ),
    chunks(
        "padding rows count",
        "token, slot = token.masked_fill(ignored, 0.0), slot.masked_fill(ignored, 0.0)",
        "pass",
        "tests/probes/test_padding.py",
        "tests/probes/test_batches.py",
    ),
    call(
        "the sink is not in the log-sum-exp",
        "return torch.logaddexp(lse, self.sink.expand_as(lse))",
        "return lse",
        "tests/probes/calls",
        "tests/probes/observers",
    ),
    call(
        "softcap after the bias",
        "scores.div_(self.softcap).tanh_().mul_(self.softcap)\n        if self.bias",
        "scores.div_(self.softcap).mul_(self.softcap)\n        if self.bias",
        "tests/probes/calls",
        "tests/families",
    ),
    reading(
        "is_causal of the call is ignored",
        'return bool(getattr(module, "is_causal", default) if argument is None else argument)',
        'return bool(getattr(module, "is_causal", default))',
    ),
    reading(
        "a static cache's room counts as keys",
        "keys = min(key.shape[2], total) if shared else key.shape[2]",
        "keys = key.shape[2]",
        "tests/probes/calls/test_reading.py",
        "tests/probes/test_batches.py",
        "tests/probes/test_observing.py",
    ),
    reading(
        "what modules say of causality counts more than their masks",
        "ahead = None if queries == 1 else mask.looks_ahead(",
        "ahead = None if queries else mask.looks_ahead(",
        "tests/families/test_real_tokens.py",
    ),
    reading(
        "the model's mask is over every layer's tokens",
        "if forward.stated(axis, total):",
        "if axis in forward.lengths:",
        "tests/probes/calls/test_reading.py",
    ),
    reading(
        "a layer may attend to padding",
        "stated = shared and forward.stated(sides[1], total)",
        "stated = False",
        "tests/families/test_real_tokens.py",
    ),
    seen("some who look ahead are all", "return True if bool(following.all()) else None", "return True"),
    seen("minus ten thousand hides nothing", "HIDDEN = -9e3", "HIDDEN = -9e30"),
    seen(
        "keys of the first head alone are padding", "seen = self._whole.any(2).any(1)", "seen = self._whole[:, 0, -1]"
    ),
    towers("the last part of a path names the stack", "for part in parts for side", "for part in parts[::-1] for side"),
    entries(
        "entries are not in the log-sum-exp", "if self.entries is not None and self.kernel_lse is None", "if False"
    ),
    guard("nothing is refused", "excess = (ours - theirs).abs() -", "excess = -(ours - theirs).abs() -"),
    norms(
        "keys of the cache are counted again",
        "call.key[:, :, own]",
        "call.key",
        "tests/probes/test_batches.py",
        "tests/probes/observers/test_angles_and_norms.py",
    ),
    outputs(
        "padding writes",
        "outputs = outputs.masked_fill(~real[:, None, :, None], 0.0)",
        "pass",
        "tests/probes/observers/test_outputs.py",
        "tests/probes/test_batches.py",
    ),
    observer(
        "T in place of T - k",
        "return self.observed.flip(-1).cumsum(-1).flip(-1)",
        "return self.query_count[:, None].expand(-1, self.keys.shape[1])",
    ),
    assembly(
        "rows are not moved to the front",
        "front = values.gather(2, order.view(shape).expand_as(values))",
        "front = values",
    ),
    rates("the threshold is not strict", "(received > epsilon).astype", "(received >= epsilon).astype"),
    rates(
        "heads are averaged before the threshold",
        "return 100 * nanmean(exceeds(received, epsilon), 2)",
        "return 100 * exceeds(nanmean(received, 2), epsilon)",
    ),
    massive(
        "one criterion is enough",
        "(np.abs(top) > magnitude) & (np.abs(top) >= ratio",
        "(np.abs(top) > magnitude) | (np.abs(top) >= ratio",
    ),
    # interventions
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
    # training
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
    windows("labels see the interventions", "input_ids = labels.clone()", "input_ids = labels"),
    windows(
        "documents are not counted from the window's first",
        "torch.from_numpy(numbers - numbers[0])",
        "torch.from_numpy(numbers)",
    ),
    # claims
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
