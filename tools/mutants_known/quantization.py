"""Mutants of quantized linear maps, of studies and hazards, and of levels that are not evenly spaced."""

from tools.mutants_known.mutant import Mutant, of

ROOM = "quantization"
TESTS = f"tests/{ROOM}"

quantize = of(f"{ROOM}/linear/quantize.py", f"{TESTS}/linear/test_quantize.py")
tokens = of(f"{ROOM}/linear/tokens.py", f"{TESTS}/linear/test_quantize.py")
columns = of(f"{ROOM}/linear/columns.py", f"{TESTS}/linear/test_columns.py")
gptq = of(f"{ROOM}/linear/gptq.py", f"{TESTS}/linear/test_gptq.py")
slim = of(f"{ROOM}/linear/slim.py", f"{TESTS}/linear/test_slim.py")
duquant = of(f"{ROOM}/linear/duquant.py", f"{TESTS}/linear/test_duquant.py")
hazard = of(f"{ROOM}/hazard/statistics.py", f"{TESTS}/hazard")
agreement = of(f"{ROOM}/studies/agreement.py", f"{TESTS}/studies/test_agreement.py")
running = of(f"{ROOM}/studies/running.py", f"{TESTS}/studies/test_prefixes.py")
result = of(f"{ROOM}/studies/result.py", f"{TESTS}/studies/test_study.py")
books = of(f"{ROOM}/kv/codebooks.py", f"{TESTS}/kv/test_codebooks.py")
sensitivity = of(f"{ROOM}/kv/sensitivity.py", f"{TESTS}/kv/test_codebooks.py")
slots = of("caches/layers/slots.py", f"{TESTS}/kv/test_hitters.py")

MUTANTS: tuple[Mutant, ...] = (
    quantize("spared tokens are rounded", "None if by_token else alone.rows(one, x, routing)", "None"),
    quantize(
        "static ranges are those of the last batch",
        "torch.minimum(before[0], low), torch.maximum(before[1], high)",
        "low, high",
    ),
    tokens("padding counts for ranges", "return self._spared.now | ~self._spared.real", "return self._spared.now"),
    columns("spared tokens make columns stay", "high if left is None else high & ~left", "high"),
    gptq("errors are made good in a group alone", "left[:, part.stop :] -= errors @ upper[part, part.stop :]", "pass"),
    slim("salient groups have fewer bits", "low, high = set(order[:count])", "high, low = set(order[:count])"),
    duquant("columns are dealt one way", "*reversed(range(count))]", "*range(count)]"),
    hazard("padding counts for channels", "others = size[real & ~spared]", "others = size[~spared]"),
    agreement("no warning of another choice", "if _origin(left_out) != _origin(spared):", "if False:"),
    running(
        "what is served behind a prefix is calibrated without",
        "with arm.prefix.applied(model):",
        "with ExitStack():",
    ),
    result("a share of nothing is printed", " if self.recoverable else NOTHING_TO_RECOVER", ""),
    books("outliers are rounded", "aside = (x < low) | (x > high)", "aside = torch.zeros_like(x, dtype=torch.bool)"),
    sensitivity(
        "gradients are not turned back",
        "parts[:2] = [rotation.turn(x, places) for x in parts[:2]]",
        "parts[:1] = [rotation.turn(x, places) for x in parts[:1]]",
    ),
    slots(
        "what was rounded is rounded again",
        "new = (self.places >= since)[..., None]",
        "new = (self.places >= 0)[..., None]",
    ),
)
