"""Mutants of quantized caches: lines that somebody could get wrong, with the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable

from tools.mutants_known import Mutant

LAYER = "tests/quantization/kv/test_layer.py"
CACHE = "tests/quantization/kv/test_cache.py"
CACHED = "tests/quantization/kv/test_cached.py"
HITTERS = "tests/quantization/kv/test_hitters.py"


def _of(file: str, *tests: str) -> Callable[[str, str, str], Mutant]:
    return lambda name, old, new: Mutant(name, f"sinkscope/quantization/kv/{file}", old, new, tests)


packing = _of("packing.py", "tests/quantization/kv/test_packing.py")
scheme = _of("scheme.py", LAYER, CACHED)
closed = _of("closed.py", LAYER)
layer = _of("layer.py", LAYER, CACHE)
cache = _of("cache.py", CACHE)
rounding = _of("rounding.py", CACHED)
softmax = _of("softmax.py", CACHED)
cached = _of("cached.py", CACHED)
hitters = _of("hitters.py", HITTERS)

QUANTIZED: tuple[Mutant, ...] = (
    packing("planes in the wrong place", "part.bitwise_left_shift_(shift)", "part.bitwise_left_shift_(1)"),
    scheme("a block closes a token early", "behind = tokens - self.window", "behind = tokens - self.window + 1"),
    scheme("windows are forgotten", "behind = tokens - self.window", "behind = tokens"),
    scheme("steps are rounded down", "x * (1 + 2**-10) + 2**-25", "x * (1 - 2**-10)"),
    closed("padding or spared tokens count", "stored_steps(x, self.grid, spared)", "stored_steps(x, self.grid)"),
    closed("what a growing store holds is lost", "made[:, :, :there] = self.parts[name]", "pass"),
    layer(
        "a block is written twice",
        "range(before[row] // block,",
        "range(max(0, before[row] // block - 1),",
    ),
    layer(
        "rows with padding begin with it",
        "return [0] * rows if self.pads is None else self.pads.tolist()",
        "return [0] * rows",
    ),
    layer(
        "spared tokens are read from codes", "keys[rows, :, columns], values[rows, :, columns] = self._spared", "pass"
    ),
    layer(
        "a prompt is rounded before it attends",
        "if coming.queries > 1 else None",
        "if coming.queries > 10**6 else None",
    ),
    layer("rows of spared tokens are not permuted", "self._spared_at = rows, self._spared_at[1][tokens]", "pass"),
    layer("open tokens are not permuted", "self._open = change(self._open[0]), change(self._open[1])", "pass"),
    layer("what is open is held for ever", "if begin or any(", "if False and any("),
    cache("sinks are looked for in every pass", "            if forward.seen:\n                return None\n", ""),
    cache("what is behind a known text is spared", "& (columns.index < lengths[of][:, None])", ""),
    cache("a pass that looks for sinks counts", "spared.mask(unobserved(model), text)", "spared.mask(model, text)"),
    rounding(
        "ranges look ahead",
        "high.cummax(2).values, low.cummin(2).values",
        "high.amax(2, True).expand_as(high), low.amin(2, True).expand_as(low)",
    ),
    rounding("an open group is rounded", "x.shape[2] // grid.group * grid.group", "x.shape[2]"),
    softmax("the learned sink is dropped", 'given.get("s_aux")', "None"),
    softmax("the softcap is dropped", 'given.get("softcap")', "None"),
    softmax("open tokens meet rounded values", "(made, self.values[0])", "(made, self.values[1])"),
    cached("a block is rounded for its own queries", "<= index[:, start:, None] + 1", "<= index[:, start:, None] + 4"),
    cached("keys are not turned back", "rotation.turn(keys, -places)", "rotation.turn(keys, places)"),
    hitters("the newest may go", "(score + hit * 2).masked_fill(newest, torch.inf)", "score + hit * 2"),
    hitters("the most hit have no place for sure", "score + hit * 2", "score"),
)
