"""Mutants of what is measured, and of its formulas."""

from tools.mutants_known.mutant import Mutant, of

received = of("probes/observers/received.py", "tests/probes/observers/test_rows.py", "tests/probes/test_measuring.py")
chunks = of("probes/calls/chunks.py", "tests/probes/test_lab.py", "tests/probes/observers/test_row_chunks.py")
call = of("probes/calls/call.py", "tests/probes/calls")
row_scores = of("probes/calls/row_scores.py", "tests/probes/calls/test_row_scores.py", "tests/probes/observers")
batch = of("probes/batch.py", "tests/probes/test_batches.py", "tests/probes/observers/test_row_chunks.py")
reading = of("probes/calls/reading.py", "tests/probes/calls/test_reading.py", "tests/probes/test_batches.py")
guard = of("probes/calls/guard.py", "tests/probes/calls/test_guard.py")
seen = of("probes/calls/masks.py", "tests/probes/calls/test_masks.py", "tests/families/test_real_tokens.py")
towers = of("hooks/modules.py", "tests/families/test_real_tokens.py", "tests/hooks/test_modules.py")
entries = of("probes/calls/call.py", "tests/families/test_entries.py")
left_out = of("probes/completeness.py", "tests/probes/test_left_out.py")
norms = of("probes/observers/norms.py", "tests/probes/observers/test_angles_and_norms.py")
outputs = of("probes/observers/outputs.py", "tests/probes/observers/test_outputs.py")
observer = of("probes/observers/observer.py", "tests/probes/test_measuring.py", "tests/probes/test_batches.py")
assembly = of("probes/assembly.py", "tests/probes/test_assembly.py", "tests/probes/test_batches.py")
rates = of("metrics/rates.py", "tests/metrics/test_rates.py")
massive = of("metrics/massive.py", "tests/metrics/test_massive.py")

MUTANTS: tuple[Mutant, ...] = (
    left_out(
        "attention inside attention is named twice",
        "any(_within(path, other) or _within(other, path) for other in taken)",
        "any(_within(other, path) for other in taken)",
    ),
    left_out(
        "measured attention is said to be missing",
        'taken = {layer.name.partition("#")[0] for layer in layers}',
        "taken = set[str]()",
    ),
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
    row_scores("the least score is no size", "scores.amax(-1), -scores.amin(-1)", "scores.amax(-1), scores.amax(-1)"),
    row_scores("the sink has no entropy", "entropy += (-below).exp() * below", "pass"),
    row_scores(
        "rows of one chunk alone are told of",
        "torch.sum(bits.mul_(weights), -1, out=self._bits[samples, :, rows])",
        "torch.sum(bits.mul_(weights), -1, out=self._bits[samples, :, : rows.stop - rows.start])",
    ),
    row_scores("hidden keys spread the logits", ".masked_fill_(~visible, 0.0)", ""),
    call("a chunk of few keys has no bound", "max(rows, min(2 * rows,", "max(rows, min(200 * rows,"),
    call(
        "a chunk may hold more than is allowed", "rows * self.mask.keys // max(seen.stop - seen.start, 1)", "2 * rows"
    ),
    batch(
        "a piece of some samples is added to all",
        "if piece.samples is not None and piece.samples.indices(len(total)) != (0, len(total), 1):",
        "if False:",
    ),
    batch(
        "a piece starts at the first position",
        "part = part.narrow(2, start, length)",
        "part = part.narrow(2, 0, length)",
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
)
