"""Mutants of how a model is touched."""

from tools.mutants_known.mutant import Mutant, of

passes = of("hooks/passes.py", "tests/hooks/test_passes.py")
modules = of("hooks/modules.py", "tests/hooks/test_modules.py")
samples = of("hooks/samples.py", "tests/hooks/test_passes.py")
projections = of("hooks/projections.py", "tests/hooks/test_edits.py")
stream = of("hooks/stream.py", "tests/hooks/test_stream.py")
dispatch = of("hooks/dispatch.py", "tests/probes/test_observing.py", "tests/interventions")
attached = of("model/attached/layer.py", "tests/model/attached/test_catalog.py")

MUTANTS: tuple[Mutant, ...] = (
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
    passes("rows of codebooks are samples", "ids.ndim == 2 and len(ids) == len(main)", "ids.ndim == 2"),
    passes("channels are texts", "ids.ndim == 2 and len(ids) == len(main)", "len(ids) == len(main)"),
    passes("padding is cut into patches", "if padding and family(model) in PATCHING:", "if False:"),
    modules(
        "a count of layers is a number",
        "depths = [getattr(model.config, name, None) for name in COUNTS]",
        "depths = {getattr(model.config, name, None) for name in COUNTS}",
    ),
    modules("every model has one text", "except ValueError:", "except KeyError:"),
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
        "edit(whole) if own is None else whole.index_copy(-1, own, edit(whole[..., own]))",
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
    passes(
        "who is told of passes is held by them",
        "self._opened = self._closed = None",
        "pass",
        "tests/probes/test_observing.py",
    ),
    attached("a map's hook holds the map", "operation, made[kind].columns, edit)", "operation, made[kind], edit)"),
)
