"""Looking at a model while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import operation_of
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    MODALITIES,
    NO_STREAM,
    Axis,
    Depth,
    ExpertLayer,
    Invocation,
    Layer,
    Pass,
    Passes,
    Place,
    attention_layers,
    axes,
    blocks,
    cache_of,
    check_continued,
    check_order,
    family,
    has_attention,
    hosted,
    is_encoder_decoder,
    label,
    paths_of,
    read_blocks,
    unwrapped,
    watching,
)
from sinkscope.measurements import Measurement
from sinkscope.probes.assembly import assemble
from sinkscope.probes.batch import Batch, OpenPass
from sinkscope.probes.calls import guard
from sinkscope.probes.calls.arithmetic import full_precision, rounding
from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.chunks import chunks, has_scores
from sinkscope.probes.calls.reading import read
from sinkscope.probes.calls.row_scores import RowScores
from sinkscope.probes.completeness import by_other_code, check_complete, forget, not_measured
from sinkscope.probes.facts import describe
from sinkscope.probes.left_out import LeftOut, applicable, kind
from sinkscope.probes.observers.norms import HiddenNorms, QueryKeyValueNorms
from sinkscope.probes.observers.observer import Hidden, ModuleCall, Observer, Piece, Watch
from sinkscope.probes.observers.received import AttentionReceived, SlotReceived
from sinkscope.probes.returned_maps import ReturnedMaps
from sinkscope.probes.shelf import Shelf

DEFAULT: tuple[Observer, ...] = (AttentionReceived(), SlotReceived(), HiddenNorms(), QueryKeyValueNorms())


@contextmanager
def observe(model: nn.Module, *observers: Observer) -> Iterator[Observation]:
    """Observe every forward pass of `model` inside the block; read it with `.measurement()`, also after the block.

    Outputs are bit-identical to those without. Passes with a fresh cache, or none, add samples; a pass that goes on
    with the cache of the last one (decoding, chunked prefill, `generate`) goes on with its samples. Passes that end in
    an error count nothing, nor does what gradient checkpointing recomputes. Models that were compiled run eagerly
    meanwhile. No observers: those that `measure` uses. Raises `UnsupportedModelError` for a model without observable
    attention.
    """
    observation = Observation(unwrapped(model), observers or DEFAULT)
    with ExitStack() as stack:
        stack.enter_context(watching(observation))
        observation.attach(stack)
        yield observation


class Observation:
    """What has been observed so far. Made by `observe`."""

    def __init__(self, model: nn.Module, observers: tuple[Observer, ...]) -> None:
        for observer in observers:
            if not isinstance(observer, Observer):
                raise InputError(f"expected observers such as AttentionReceived(), got {observer!r}")
        kinds = [type(observer).__name__ for observer in observers]
        if repeated := next((kind for kind in kinds if kinds.count(kind) > 1), None):
            raise InputError(f"{repeated} was given twice: one observer of a kind, with all the positions it needs")
        labeled: dict[str, list[Any]] = {}
        for observer in observers:
            for name, labels in observer.coordinates.items():
                if labeled.setdefault(name, list(labels)) != list(labels):
                    raise InputError(
                        f"the observers label the axis '{name}' differently: {labeled[name]}, {list(labels)}"
                    )
        self.model = model
        self.family = family(model)
        self.layers = attention_layers(model) if has_attention(model) else {}
        self._maps = None if self.layers else ReturnedMaps(model)
        self._paths = paths_of(model)
        self._encoder_decoder = is_encoder_decoder(model)
        self._implementations: set[str] = set()
        self._verified: set[tuple[Any, ...]] = set()
        self._unverified: set[str] = set()
        self.left_out = LeftOut()
        self._unmasked: dict[str, str] = {}
        self._batches: list[Batch] = []
        self._shelf = Shelf()
        self._pass: OpenPass | None = None
        self._passes = Passes(model, self._begin, self._end)
        self.observers, self._inapplicable = applicable(observers, model)

    def attach(self, stack: ExitStack) -> None:
        """Hook the model's forward, and its blocks where an observer reads them, for as long as `stack` is open."""
        # Before the caller's own hooks, which shall not see the maps that we asked for.
        self._passes.attach(stack, first=self._maps is not None)
        if self._maps is not None and self._needs_vectors:
            self._maps.follow(self.model, self._passes, stack)
        if any(observer.reads_blocks for observer in self.observers):
            read_blocks(blocks(self.model), self._passes, self._hidden, stack)
        for observer in self.observers:
            for watch in observer.watches(self.model):
                hook = watch.module.register_forward_hook(self._read_module(observer, watch), with_kwargs=True)
                stack.callback(hook.remove)

    def watches(self, module: nn.Module) -> bool:
        """Whether a call of this module is part of an observed forward pass."""
        return self._passes.under_way is not None and module in self._paths

    def attended(self, invocation: Invocation) -> None:
        """Take in one attention call."""
        assert self._pass is not None
        module = invocation.module
        layer = self.layers.get(module) or label(self.model, module, self._paths[module])
        if use := self._passes.now.use(module):
            layer = replace(layer, name=f"{layer.name}#{use}")
        running, batch = self._pass, invocation.output.shape[0]
        if batch != running.forward.batch:
            reason = f"its {batch} rows are not the model's {running.forward.batch} samples"
            running.left_out.layers[kind(layer)] = reason
            return
        sides = axes(layer.stack, self._encoder_decoder)
        host = rounding(invocation.output, invocation.arguments["query"])
        with full_precision(invocation.output.device):
            try:
                call = read(invocation, layer, running.forward, sides, self.family, running.masks, running.known(layer))
            except UnsupportedModelError as error:
                running.left_out.refused[kind(layer)] = str(error)
                return
            call = replace(call, samples_before=running.samples_before)
            self._take(self._checked(call, invocation, host), running)
        self._implementations.add(invocation.implementation or "eager")

    def measurement(self) -> Measurement:
        """Everything observed so far.

        Raises `UnsupportedModelError` where a layer of a used stack was never called, and `InputError` where nothing
        was observed at all or a layer gave NaN or infinities.
        """
        if not self._batches:
            raise InputError(
                "nothing was observed: call the observed model itself inside the `with observe(...)` block"
            )
        forget(self.left_out, self._batches, self.layers.values(), self.family)
        check_complete(self.left_out, self._batches, self.layers.values(), self.family)
        operations = [operation_of(module) for module in self.layers]
        facts = describe(self.model, self.family, self._batches, operations)
        return assemble(
            self._batches,
            self.observers,
            {
                **facts,
                "implementation": sorted(self._implementations),
                "observers": [observer.describe() for observer in self.observers],
                "not_measured": self._not_measured(),
                **({"not_applicable": self._inapplicable} if self._inapplicable else {}),
                "not_verified": sorted(self._unverified),
                **({"unmasked": self._unmasked} if self._unmasked else {}),
            },
        )

    def _not_measured(self) -> dict[str, str]:
        """Stacks of the model, and observers, that have no numbers, and why."""
        if self._maps is not None:
            has_stream = bool(blocks(self.model))
            blind = (o for o in self.observers if not o.reads_weights_alone and not (o.reads_blocks and has_stream))
            return self._maps.not_measured(blind)
        own = ("encoder", "decoder", "cross") if self._encoder_decoder else ()
        found = not_measured(self.left_out, self._batches, self.layers.values(), own)
        return found | by_other_code(self.model, self.layers.values())

    @property
    def _needs_vectors(self) -> bool:
        """Whether attention maps alone are not enough for some observer."""
        return not all(observer.reads_weights_alone for observer in self.observers)

    def _take(self, call: AttentionCall, running: OpenPass) -> None:
        """Show a call to the observers."""
        found = running.place(call.layer, *axes(call.layer.stack, self._encoder_decoder), causal=call.causal)
        found.query_length = call.query_start + call.query.shape[2]
        found.key_length = call.key_start + call.key.shape[2]
        found.real_keys = call.real_keys
        if found.key in running.forward.elsewhere and call.real_keys is None:
            running.unmasked[call.layer.stack] = f"its layers attend to all {found.key_length} tokens"
        if found.query == found.key:
            running.attended[call.layer.stack] = found.real_queries = call.real_keys
        else:
            stated = running.forward.stated(found.query, found.query_length)
            found.real_queries = running.forward.real.get(found.query) if stated else None
        size = call.query.shape[0]
        for observer, piece in self._pieces(call):
            found.add(type(observer).__name__, piece, size)

    def _collect(self, maps: ReturnedMaps, running: OpenPass, output: Any) -> None:
        """Take in the attention maps that the model returned, and the vectors behind them where they are known."""
        for call, vectors in maps.calls(output, running.forward, self._needs_vectors):
            with full_precision(call.query.device):
                self._take(replace(call, samples_before=running.samples_before), running)
                if vectors is not None:
                    self._show_vectors(replace(vectors, samples_before=running.samples_before), running)
        self._implementations.add("eager")

    def _show_vectors(self, call: AttentionCall, running: OpenPass) -> None:
        """Show a call to the observers to whom its map was not enough."""
        for observer, piece in self._pieces(call):
            if not observer.reads_weights_alone:
                running.places[call.layer].add(type(observer).__name__, piece, len(call.query))

    def _pieces(self, call: AttentionCall) -> Iterator[tuple[Observer, Piece]]:
        shown = [observer for observer in self.observers if call.collected is None or observer.reads_weights_alone]
        for observer in shown:  # before the chunks, which put queries, keys and values out of the processor's reach
            for piece in observer.on_call(call):
                yield observer, piece
        readers = [observer for observer in shown if observer.reads_chunks(call)]
        asked = {kind for observer in readers for kind in observer.reads_rows}
        told = RowScores(call, asked) if asked and has_scores(call) else None
        for chunk in chunks(call, told) if readers else ():
            for observer in readers:
                for piece in observer.on_chunk(call, chunk):
                    yield observer, piece
        if told is not None:
            for observer in readers:
                for piece in observer.on_rows(call, told):
                    yield observer, piece

    def _checked(self, call: AttentionCall, invocation: Invocation, host: float) -> AttentionCall:
        """The call, its weights checked whenever a layer is used in a new way."""
        kind = (call.layer.name, call.query.shape[2] > 1, type(call.mask), call.key.shape[2].bit_length())
        if kind in self._verified:
            return call
        if call.operation is not None:
            checked = guard.verified_by_operation(call, self.family)
            if hosted(invocation.module):
                guard.verified_output(call, self.family, host)
        elif invocation.arguments.get("dropout"):
            self._unverified.add("attention dropout is on")
            return call
        else:
            checked = guard.verified(call, invocation.output.detach(), self.family, host)
        self._verified.add(kind)
        return checked

    def _begin(self, begun: Pass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Open a pass; returns other arguments where the model has to be asked for its maps."""
        forward = begun.forward
        check_order(forward)
        check_continued(self.model, forward)
        last = self._batches[-1] if self._batches else None
        before = sum(batch.size for batch in self._batches)
        if last is not None and last.continues(forward):
            self._pass = OpenPass(forward, last, before - last.size)
        else:
            self._pass = OpenPass(forward, Batch(size=forward.batch, first=forward.seen, prefix=forward.prefix), before)
        return None if self._maps is None else ((), self._maps.begin(args, kwargs))

    def _end(self, ended: Pass, output: Any) -> Any:
        """Take over what the pass found; returns the output that the caller wants where more was asked for."""
        done, self._pass = self._pass, None
        assert done is not None
        if self._maps is not None:
            self._collect(self._maps, done, output)
        done.drop_misread()
        done.note_unused_masks()
        done.batch.commit(done, cache_of(output) or done.forward.cache)
        if not self._batches or self._batches[-1] is not done.batch:
            for closed in self._batches[-1:]:
                closed.settle(self.observers, self._shelf)
            self._batches.append(done.batch)
        self.left_out.add(done.left_out)
        self._unmasked |= done.unmasked
        return None if self._maps is None else self._maps.answer(output)

    def _hidden(self, depth: Depth, hidden: Any, under_way: Pass) -> None:
        """Show the residual stream at a depth to the observers of blocks."""
        assert self._pass is not None
        if depth.stack in self._pass.left_out.streams:
            return
        if not isinstance(hidden, Tensor) or hidden.ndim != 3:
            packed = depth.stack in MODALITIES
            self._pass.drop_stream(depth.stack, "its samples are packed into one sequence" if packed else NO_STREAM)
            return
        if len(hidden) != self._pass.forward.batch:
            return
        side = axes(depth.stack, self._encoder_decoder)[0]
        start = self._pass.forward.start(side)
        stop = start + hidden.shape[1]
        so_far = self._pass.real(depth.stack, side, stop, under_way.masks.get(depth.stack))
        self._pass.assumed[depth.stack] = so_far
        found = self._pass.place(depth, side, side, causal=False)
        found.query_length, found.real_queries = stop, so_far
        real = None if so_far is None or so_far.shape[1] < stop else so_far[:, start:stop].to(hidden.device)
        so_far = None if real is None else so_far
        shown = Hidden(hidden.detach(), start, depth, real, self._pass.samples_before, so_far)
        with full_precision(hidden.device):
            for observer in self.observers:
                for piece in observer.on_hidden(shown) if observer.reads_blocks else ():
                    found.add(type(observer).__name__, piece, hidden.shape[0])

    def _read_module(self, observer: Observer, watch: Watch) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            running = self._pass
            if running is None or self._passes.under_way is None:
                return
            place, side = watch.place, self._side(watch.place)
            again = self._passes.under_way.use(watch)
            if isinstance(place, Layer) and again > 0:
                place = replace(place, name=f"{place.name}#{again}")
            if isinstance(place, Layer) and running.left_out.holds(place):
                return
            batch, start = running.forward.batch, running.forward.start(side)
            at = ModuleCall(batch, start, self._real_at(place, side, running), running.samples_before)
            with torch.no_grad():
                for piece in watch.read(at, args, kwargs, output):
                    known = running.places.get(place)
                    found = running.place(place, side, side, causal=known is not None and known.causal)
                    found.add(type(observer).__name__, piece, batch)

        return hook

    def _real_at(self, place: Place, side: Axis, running: OpenPass) -> Tensor | None:
        """Real tokens where an observer reads a module: those of its layer's or its stack's attention, if that ran."""
        if not isinstance(place, Layer):
            return running.forward.real.get(side)
        return known.real_queries if (known := running.places.get(place)) else running.forward.real.get(side)

    def _side(self, place: Place) -> Axis:
        return "tokens" if isinstance(place, ExpertLayer) else axes(place.stack, self._encoder_decoder)[0]
