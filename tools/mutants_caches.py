"""Mutants of the caches: lines that somebody could get wrong, with the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable

from tools.mutants_known import Mutant

STREAM = "tests/caches/test_streaming.py"
PREFILL = "tests/caches/test_prefill.py"
SILENT = "tests/caches/test_silent_failures.py"
ROTATION = "tests/caches/test_rotation.py"
FOLLOWING = "tests/caches/test_following.py"


def _of(file: str, *tests: str) -> Callable[[str, str, str], Mutant]:
    return lambda name, old, new: Mutant(name, f"sinkscope/caches/{file}", old, new, tests)


rotation = _of("rotation.py", ROTATION)
layer = _of("layers/sink_window.py", STREAM, SILENT)
hybrid = _of("layers/hybrid.py", SILENT)
copies = _of("layers/shown.py", PREFILL)
streaming = _of("streaming.py", STREAM, PREFILL)
together = _of("together.py", STREAM)
positions = _of("positions.py", STREAM)
strict = _of("strict.py", PREFILL)
following = _of("following.py", FOLLOWING, SILENT)

STREAMING: tuple[Mutant, ...] = (
    rotation("the other way round", "real * cos - imaginary * sin", "real * cos + imaginary * sin"),
    rotation("half for interleaved", 'if self.layout == "half":', "if True:"),
    rotation(
        "angles in fp32",
        "by.to(torch.float64)[..., None] * self._on(x.device)",
        "by.to(torch.float32)[..., None] * self._on(x.device).float()",
    ),
    rotation("any fit is good enough", "(miss := misfit(one)) <= 1", "(miss := misfit(one)) <= 1e9"),
    rotation(
        "what depends on the length is taken", 'DEPENDS_ON_LENGTH = ("dynamic", "longrope")', "DEPENDS_ON_LENGTH = ()"
    ),
    layer(
        "sinks are not turned", "front.copy_(sinks)", "front.copy_(self.first[0 if sinks is self._standing[0] else 1])"
    ),
    layer("the length is what is kept", "return self._seen\n", "return self.kept\n"),
    layer(
        "the query does not count",
        "self.sinks + self.window - 1)\n\n    def show",
        "self.sinks + self.window)\n\n    def show",
    ),
    layer("padding is not told", "pads = [0] if coming.pads is None else", "pads = [0] if True else"),
    layer("every row has dropped tokens", "if shown.everyone:", "if True:"),
    layer(
        "what is kept moves by one",
        "buffer[:, :, self._end - kept : self._end].clone()",
        "buffer[:, :, self._end - kept - 1 : self._end - 1].clone()",
    ),
    layer(
        "reordering forgets the sinks",
        "self._buffers, self.first = (keys, values), (first, other)",
        "self._buffers = keys, values",
    ),
    layer(
        "what is made in inference mode stays so",
        "torch.inference_mode(False), torch.no_grad()",
        "torch.no_grad(), torch.no_grad()",
    ),
    hybrid("states are not repeated", "        if states:\n", "        if False:\n"),
    copies(
        "a copy of the sinks is seen by all",
        "own = torch.eye(coming.queries, dtype=torch.bool)",
        "own = torch.ones(coming.queries, coming.queries).bool()",
    ),
    copies("the window is one longer", "columns > queries - window", "columns >= queries - window"),
    copies("padding is seen", "(columns <= queries) & (columns >= pads)", "(columns <= queries)"),
    streaming("sinks drift by one", "(places - self.length + 1)[..., None]", "(places - self.length)[..., None]"),
    streaming(
        "a ceiling beyond the window",
        "places[..., None] - self.window - sinks",
        "places[..., None] - self.length - sinks",
    ),
    streaming("the origin is forgotten", "self._by(places) - self._origin.base", "self._by(places)"),
    streaming(
        "padding counts as text",
        "[coming.seen - pad for pad in coming.pads.tolist()]",
        "[coming.seen for pad in coming.pads.tolist()]",
    ),
    streaming("pieces show more than they should", "strict = self._strict and coming.queries > 1", "strict = False"),
    together(
        "sinks of before a reordering",
        "any(a is not b for a, b in",
        "any(False for a, b in",
    ),
    positions("the window is not turned back", "layer.turn(by)", "layer.turn(0)"),
    positions("windows beside are not turned back", "rotation.keys.turn(layer.keys, moved)", "layer.keys"),
    positions(
        "positions are counted from the beginning", "(positions - self.base).clamp(min=0)", "positions.clamp(min=0)"
    ),
    strict("states that begin anew are read in pieces", " or not reads_at_once(model, cache):", ":"),
    following(
        "padding may change",
        "return bool(((pads == before) | ((before == seen) & (pads > before))).all())",
        "return True",
    ),
    following("positions may be anything", "bool(((plain == expected) | (columns < pads)).all())", "True"),
)
