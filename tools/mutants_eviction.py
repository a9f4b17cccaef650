"""Mutants of eviction: lines that somebody could get wrong, with the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable

from tools.mutants_known import Mutant

REFERENCE = "tests/caches/policies/test_reference.py"
EVICTING = "tests/caches/test_eviction.py", "tests/caches/test_refused_evictions.py"
FAMILIES = "tests/caches/test_families.py"
GROUPS = "tests/caches/layers/test_groups.py"
MASKS = "tests/caches/test_masks.py"
BUDGETS = "tests/caches/test_budgets.py"
SINKS = "tests/caches/test_sinks.py"
CLASSES = "tests/caches/test_classes.py"


def _of(file: str, *tests: str) -> Callable[[str, str, str], Mutant]:
    return lambda name, old, new: Mutant(name, f"sinkscope/caches/{file}", old, new, tests)


call = _of("call.py", REFERENCE, *EVICTING)
engine = _of("engine.py", REFERENCE, *EVICTING)
evicting = _of("eviction.py", *EVICTING)
slots = _of("layers/slots.py", REFERENCE, *EVICTING)
rectangle = _of("layers/rectangle.py", REFERENCE, *EVICTING)
groups = _of("layers/groups.py", GROUPS)
masks = _of("masks.py", MASKS, REFERENCE, *EVICTING, GROUPS)
notes = _of("notes.py", REFERENCE, *EVICTING)
merging = _of("layers/merging.py", REFERENCE)
stack = _of("layers/stack.py", "tests/caches/test_freed.py")
budgets = _of("budgets.py", BUDGETS, CLASSES)
sinks = _of("sinks.py", SINKS)
protect = _of("protect.py", SINKS)
classes = _of("classes.py", CLASSES)
places = _of("policies/places.py", REFERENCE)
keys = _of("policies/keys.py", REFERENCE)
received = _of("policies/received.py", REFERENCE)
last = _of("policies/last_queries.py", REFERENCE)
expected = _of("policies/expected.py", REFERENCE)
fastgen = _of("policies/fastgen.py", REFERENCE)
images = _of("policies/images.py", REFERENCE)
pictures = _of("policies/images.py", "tests/caches/policies/test_images.py")
own = _of("own.py", "tests/caches/test_own.py")

EVICTION: tuple[Mutant, ...] = (
    call("learned sinks take no share", "if self.sink is None:", "if True:"),
    call("scores are not capped", "if self.softcap is not None:", "if False:"),
    call(
        "queries of padding count", "return weights.masked_fill(padding[:, None, None, :, None], 0.0)", "return weights"
    ),
    call("scores are not scaled", ".mul_(self.scaling)", ""),
    call("a group is summed", "if self.group == 1 else of_rows.mean(2)", "if self.group == 1 else of_rows.sum(2) / 3"),
    call("later keys are seen", "(self.places[:, :, None] <= columns[:, None])", "(self.places[:, :, None] > -5)"),
    engine("a pass that broke off is forgotten", "if progress.unfinished:", "if False:"),
    engine("a bias in a mask is taken for a mask", "if is_bias(mask):", "if False:"),
    engine("weights are not compared", "if policy.reads_weights and call.layer not in self.checked:", "if False:"),
    engine("the prompt is evicted from when the text ends", "several = call.queries > 1 or", "several ="),
    engine("first layers are not spared", "if call.layer < policy.skipped:", "if False:"),
    evicting("a cache goes on outside its block", "if self.engine is None or not self.engine.open:", "if False:"),
    evicting("masks of four dimensions are taken", "and mask.ndim == 2", "and mask.ndim > 1"),
    evicting("any budget will do", "budget.number < policy.least", "budget.number < 0"),
    slots(
        "the length is what is kept",
        "    def get_seq_length(self) -> int:\n        return self.seen",
        "    def get_seq_length(self) -> int:\n        return self.used",
    ),
    slots(
        "masks are as if nothing was kept", "return self.used + query_length, self.seen", "return self.used, self.seen"
    ),
    slots(
        "of equals the oldest stay",
        "torch.where(scores == lowest, places, torch.iinfo(places.dtype).max).argmin",
        "torch.where(scores == lowest, places, -1).argmax",
    ),
    slots("padding is kept", "scores = scores.masked_fill(~real, -torch.inf)\n        self.limits", "self.limits"),
    slots("what is protected may be too much", "if bool((must > limits).any()):", "if False:"),
    slots("NaN is a score", "if bool((scores.isnan() & real).any()):", "if False:"),
    slots(
        "reordering forgets who is padded",
        "self.rows = {name: change(rows) for name, rows in self.rows.items()}",
        "pass",
    ),
    slots("empty slots have old places", "self.places.copy_(places.sort(-1).values)", "pass"),
    rectangle(
        "places stay behind",
        "for rows in self.rows.values():\n            rows.scatter_",
        "for rows in list(self.rows.values())[:2]:\n            rows.scatter_",
    ),
    rectangle(
        "notes stay behind",
        "for rows in self.rows.values():\n            rows.scatter_",
        "for rows in list(self.rows.values())[:3]:\n            rows.scatter_",
    ),
    rectangle(
        "written in inference mode",
        "with torch.inference_mode(False):\n        return torch.empty(shape",
        "with torch.inference_mode(torch.is_inference_mode_enabled()):\n        return torch.empty(shape",
    ),
    groups(
        "queries of other heads",
        "(group.heads[:, None] * of_each",
        "(group.heads.flip(0)[:, None] * of_each",
    ),
    groups(
        "empty slots are seen",
        'mask = (group.slots["places"] >= least)[:, :, None] if group.gaps else None',
        "mask = None",
    ),
    masks(
        "all that is stored is seen",
        "kept = layer.real[:, :, :stored]",
        "kept = torch.ones_like(layer.real[:, :, :stored])",
    ),
    masks("stored keys are masked as the newest", "if layer.whole or not (mask", "if True or not (mask"),
    masks("addends are booleans", "own = addends(own, query.dtype)", "pass"),
    masks("addends are booleans for one query", 'own = addends(own, arguments["query"].dtype)', "pass"),
    notes(
        "sums begin anew", "            stored += call.received(rows)", "            stored.copy_(call.received(rows))"
    ),
    notes(
        "the window is one short",
        "return torch.cat([before, call.query], 2)[:, :, -self.window :].clone()",
        "return torch.cat([before, call.query], 2)[:, :, 1 - self.window :].clone()",
    ),
    notes(
        "the prompt is held",
        "return call.query[:, :, -self.window :].clone()",
        "return call.query[:, :, -self.window :]",
    ),
    merging(
        "what stays is merged as well", "goes = real.scatter(-1, index, real.gather(-1, index) & ~kept)", "goes = real"
    ),
    merging("a sum for a mean", "found.append(sums / counts[..., None])", "found.append(sums)"),
    budgets(
        "shares are rounded up",
        "(tokens.double() * self.keys + 1e-9).long()",
        "(tokens.double() * self.keys + 1).long()",
    ),
    budgets("a pyramid rises", "most - (most - least) * layer", "least + (most - least) * layer"),
    budgets(
        "no head is safe", "safe = (count * self.alpha).long().clamp(min=1)", "safe = (count * 0).long().clamp(min=1)"
    ),
    budgets(
        "one query head of a group decides",
        "reshape(scores.shape[1], -1).any(-1)",
        "reshape(scores.shape[1], -1).all(-1)",
    ),
    budgets(
        "the mean decides",
        "low = np.nanquantile(mass, quantile, axis=-1)",
        "low = np.nanmean(mass, axis=-1)",
    ),
    sinks(
        "sinks stand at columns",
        "where = call.positions.clamp(0, of_group.shape[1] - 1)",
        "where = call.places.clamp(0, of_group.shape[1] - 1)",
    ),
    sinks(
        "one head of a group decides", "unflatten(0, (-1, call.group)).any(1)", "unflatten(0, (-1, call.group)).all(1)"
    ),
    sinks(
        "what is received is not shared out",
        "call.notes[Received()] > self.epsilon * queries",
        "call.notes[Received()] > self.epsilon * call.total",
    ),
    protect("the newest may go", "| (call.places >= call.total - self.recent)", ""),
    protect("its sinks are not noted", "(*self.policy.needs, *self.sinks.needs)", "(*self.policy.needs,)"),
    classes("every head of a layer is cut", "| ~own[:, None, None]) & causal", ") & causal"),
    classes("sinks are cut too", "near | (first & causal) | ~own", "near | ~own"),
    places("chance counts columns", "_mixed(_mixed(stream) + call.positions)", "_mixed(_mixed(stream) + call.places)"),
    keys("long keys stay", "return -call.notes[KeyLengths()]", "return call.notes[KeyLengths()]"),
    keys(
        "empty slots pull the mean",
        "functional.normalize(wide(call.key), dim=-1) * call.real[..., None]",
        "functional.normalize(wide(call.key), dim=-1)",
    ),
    received("values do not count", "call.notes[Received()] * call.notes[ValueLengths()]", "call.notes[Received()]"),
    received("the newest may go", "score.masked_fill(call.places >= call.total - newest, torch.inf)", "score"),
    received(
        "the mean is a sum",
        "return call.notes[Received()] / (call.total - call.places).clamp(min=1)",
        "return call.notes[Received()]",
    ),
    last(
        "the window is pooled too",
        "before = call.real & (call.places < call.total - self.window)",
        "before = call.real",
    ),
    last(
        "pooled by slots",
        "order = call.places.masked_fill(~before, -1).argsort(-1)",
        "order = torch.arange(before.shape[-1]).expand_as(call.places)",
    ),
    last("even is half", "even = (weights * seen >= 1)", "even = (weights * seen >= 0.5)"),
    expected(
        "queries stay turned",
        "query = call.rotation.turn(query, -places",
        "query = call.rotation.turn(query, 0 * places",
    ),
    expected(
        "the mean of squares is the covariance",
        "- mean[..., :, None] * mean[..., None, :]",
        "- 0 * mean[..., :, None] * mean[..., None, :]",
    ),
    expected(
        "the future begins at the start",
        "ahead.repeat(len(mean), 1, 1), call.tokens[:, None]",
        "ahead.repeat(len(mean), 1, 1), 0 * call.tokens[:, None]",
    ),
    fastgen("the dearest set is taken", "enough.int().argmax(0)", "(3 - enough[:4].int().flip(0).argmax(0))"),
    images("borders are one short", "(end >= -8) & (end < 4)", "(end >= -7) & (end < 4)"),
    images(
        "images go last",
        "-1 / (1 + score), score)",
        "1e6 + score, score)",
    ),
    pictures("images are ranked behind text to an eighth", "-1 / (1 + score), score)", "score - 2.0**20, score)"),
    own("padding is not refused", "if layer.pads is not None:", "if False:"),
    own("keys are scored in another order", '"key": keys, "value": values}', '"key": keys.flip(2), "value": values}'),
    stack("layers hold the stack that holds them", "layers, Mark()", "layers, self"),
)
