"""Observe a model while it runs: each attention call is read, checked, and shown to the observers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

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
    arguments,
    attends_to_blocks,
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
    masked,
    paths_of,
    read_blocks,
    unwrapped,
    watching,
)
from sinkscope.measurement.assembly import assemble, by_other_code, check_complete, describe, forget, not_measured
from sinkscope.measurement.batch import Batch, LeftOut, OpenPass, PlaceSums, Shelf, applicable, kind
from sinkscope.measurement.calls import guard
from sinkscope.measurement.calls.call import AttentionCall, full_precision, rounding
from sinkscope.measurement.calls.chunks import RowScores, chunks, has_scores
from sinkscope.measurement.calls.collected import ReturnedMaps
from sinkscope.measurement.calls.masks import KINDS, Bound, DenseMask, Rule
from sinkscope.measurement.calls.reading import read_call
from sinkscope.measurement.documents import (
    Labels,
    PackedDocument,
    documents_in,
    documents_of_mask,
    parts_of,
    recurrent_layers,
    shows_across,
)
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.observers.norms import HiddenNorms, QueryKeyValueNorms
from sinkscope.measurement.observers.observer import Hidden, ModuleCall, ModuleWatch, Observer, Piece
from sinkscope.measurement.observers.received import AttentionReceived, SlotReceived

DEFAULT: tuple[Observer, ...] = (AttentionReceived(), SlotReceived(), HiddenNorms(), QueryKeyValueNorms())


@dataclass(frozen=True, eq=False)
class _Packed:
    """A pass over rows that hold several documents; it is read one document at a time.

    `parts`: the documents, each with its own sums; `args`, `kwargs`: the arguments of the pass, to run it again if some
    layer attends across documents.
    """

    labels: Labels
    parts: list[tuple[PackedDocument, OpenPass]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def observe(model: nn.Module, *observers: Observer | Sequence[Observer], apart: bool = True) -> Iterator[Observation]:
    """Observe every forward pass of `model` inside the block; read it with `.measurement()`, also after the block.

    `observers`: one by one or as a list; without any, those that `measure` uses. Outputs are bit-identical to those
    without observation. A pass with a fresh cache, or none, adds samples; a pass that continues the last one's cache
    (decoding, chunked prefill, `generate`) continues its samples. Passes that end in an error count nothing, nor does
    what gradient checkpointing recomputes. Compiled models run eagerly meanwhile. Packed documents that all attention
    layers keep apart are samples of their own, unless `apart` is False. Where the inputs separate documents and a
    layer does not, a `UserWarning` says so, and the pass is run again with whole rows as samples.

    Raises `UnsupportedModelError` for a model without observable attention.
    """
    flat: list[Any] = []
    for entry in observers:
        flat.extend(entry if isinstance(entry, list | tuple) else [entry])
    observation = Observation(unwrapped(model), tuple(flat) or DEFAULT, apart)
    with ExitStack() as stack:
        stack.enter_context(watching(observation))
        observation.attach(stack)
        yield observation


class Observation:
    """What has been observed so far. Made by `observe`."""

    def __init__(self, model: nn.Module, observers: tuple[Observer, ...], apart: bool = True) -> None:
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
        self._apart = apart
        self._packed: _Packed | None = None
        self._across: str | None = None  # why the current pass must run again with whole rows
        self._told: Labels | None = (
            None  # documents that the masks of all layers so far separate, though the inputs do not
        )
        self._labels: Labels | None = None  # documents of a pass that runs again
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # of the current pass
        self._kept_apart: list[object] = []  # masks of the current pass that do not cross documents
        self._packed_cache: Cache | None = None
        self._crossing: str | None = None  # what carries over from one document to the next
        self._passes = Passes(model, self._begin, self._end)
        self.observers, self._inapplicable = applicable(observers, model)

    def attach(self, stack: ExitStack) -> None:
        """Hook the model's forward, and its blocks where an observer reads them, for as long as `stack` is open."""
        # Before the caller's own hooks, which must not see maps that only we asked for.
        self._passes.attach(stack, first=self._maps is not None)
        if self._maps is not None:
            self._maps.follow(self.model, self._passes, stack, self._needs_vectors)
        if any(observer.reads_blocks for observer in self.observers):
            read_blocks(blocks(self.model), self._passes, self._hidden, stack)
        for observer in self.observers:
            for watch in observer.watches(self.model):
                hook = watch.module.register_forward_hook(self._read_module(observer, watch), with_kwargs=True)
                stack.callback(hook.remove)

    def watches(self, module: nn.Module) -> bool:
        """Whether a call of this module is part of an observed forward pass."""
        return self._passes.under_way is not None and module in self._paths and not attends_to_blocks(module)

    def attended(self, invocation: Invocation) -> None:
        """Read one attention call and show it to the observers."""
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
        if self._across is not None:  # the pass will run again, with whole rows
            return
        sides = axes(layer.stack, self._encoder_decoder)
        # Before `full_precision` sets its own: the guard allows for the rounding of the layer's arithmetic.
        host = rounding(invocation.output, invocation.arguments["query"])
        with full_precision(invocation.output.device):
            try:
                call = read_call(
                    invocation, layer, running.forward, sides, self.family, running.masks, running.known(layer)
                )
            except UnsupportedModelError as error:
                running.left_out.refused[kind(layer)] = str(error)
                return
            call = replace(call, samples_before=running.samples_before)
            if self._packed is not None and not self._keeps_apart(call, sides, _kernel_is_told(invocation)):
                return
            for document, share in self._shares(running):
                shown = call if document is None else document.call(call, share.samples_before)
                # A window shows only once the keys outgrow it, so a layer is checked again when they double.
                usage = (layer.name, shown.query.shape[2] > 1, type(shown.mask), shown.key.shape[2].bit_length())
                if usage not in self._verified:  # a layer is checked once for each way in which it is used
                    if shown.operation is None and invocation.arguments.get("dropout"):
                        self._unverified.add("attention dropout is on")
                    else:
                        shown = guard.verified(shown, self.family, host, attached=bool(hosted(module)))
                        self._verified.add(usage)
                self._take(shown, share)
            if self._packed is None and not masked(invocation.module):  # a hidden key begins no document
                self._note_documents(call, sides)
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
                **self._packing(),
                **({"unmasked": self._unmasked} if self._unmasked else {}),
            },
        )

    def _packing(self) -> dict[str, Any]:
        """The record's entry on packed documents; empty if there are none."""
        samples = [row for batch in self._batches for row in batch.row]
        if len(samples) == len(set(samples)):
            return {}
        note = {} if self._crossing is None else {"note": self._crossing}
        return {"packed": {"rows": len(set(samples)), "documents": len(samples), **note}}

    def _not_measured(self) -> dict[str, str]:
        """Why some stacks of the model, or some observers, have no numbers."""
        if self._maps is not None:
            has_stream = bool(blocks(self.model))
            blind = (o for o in self.observers if not o.reads_weights_alone and not (o.reads_blocks and has_stream))
            return self._maps.not_measured(blind)
        expected = ("encoder", "decoder", "cross") if self._encoder_decoder else ()
        reasons = not_measured(self.left_out, self._batches, self.layers.values(), expected)
        return reasons | by_other_code(self.model, self.layers.values())

    @property
    def _needs_vectors(self) -> bool:
        """Whether some observer needs more than attention maps."""
        return not all(observer.reads_weights_alone for observer in self.observers)

    def _take(self, call: AttentionCall, running: OpenPass) -> None:
        """Show a call to the observers."""
        sums = running.place(call.layer, *axes(call.layer.stack, self._encoder_decoder), causal=call.causal)
        sums.query_length = call.query_start + call.query.shape[2]
        sums.key_length = call.key_start + call.key.shape[2]
        sums.real_keys = call.real_keys
        if sums.key in running.forward.elsewhere and call.real_keys is None:
            running.unmasked[call.layer.stack] = f"its layers attend to all {sums.key_length} tokens"
        if sums.query == sums.key:
            running.attended[call.layer.stack] = sums.real_queries = call.real_keys
        else:
            stated = running.forward.stated(sums.query, sums.query_length)
            sums.real_queries = running.forward.real.get(sums.query) if stated else None
        size = call.query.shape[0]
        sums.see(running.seen.of(call, shared=sums.query == sums.key), call.key_start, size)
        for observer, piece in self._pieces(call):
            sums.add(type(observer).__name__, piece, size)

    def _collect(self, maps: ReturnedMaps, running: OpenPass, output: Any) -> None:
        """Read the attention maps that the model returned, with queries, keys and values if they are known."""
        for call, vectors in maps.calls(output, running.forward, self._needs_vectors):
            sides = axes(call.layer.stack, self._encoder_decoder)
            with full_precision(call.query.device):
                if self._packed is not None and not self._keeps_apart(call, sides):
                    continue
                for document, share in self._shares(running):
                    before = share.samples_before
                    shown = replace(call, samples_before=before) if document is None else document.call(call, before)
                    self._take(shown, share)
                    if vectors is not None:
                        known = (
                            replace(vectors, samples_before=before)
                            if document is None
                            else document.call(vectors, before)
                        )
                        self._show_vectors(known, share)
        self._implementations.add("eager")

    def _show_vectors(self, call: AttentionCall, running: OpenPass) -> None:
        """Show a call to the observers that need more than its map."""
        for observer, piece in self._pieces(call):
            if not observer.reads_weights_alone:
                running.places[call.layer].add(type(observer).__name__, piece, len(call.query))

    def _pieces(self, call: AttentionCall) -> Iterator[tuple[Observer, Piece]]:
        shown = [observer for observer in self.observers if call.collected is None or observer.reads_weights_alone]
        for observer in shown:  # before the chunks, which push queries, keys and values out of the processor's cache
            for piece in observer.on_call(call):
                yield observer, piece
        readers = [observer for observer in shown if observer.reads_chunks(call)]
        asked = {kind for observer in readers for kind in observer.reads_rows}
        row_scores = RowScores(call, asked) if asked and has_scores(call) else None
        for chunk in chunks(call, row_scores) if readers else ():
            for observer in readers:
                for piece in observer.on_chunk(call, chunk):
                    yield observer, piece
        if row_scores is not None:
            for observer in readers:
                for piece in observer.on_rows(call, row_scores):
                    yield observer, piece

    def _begin(self, begun: Pass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Open a pass; returns changed arguments if the model must be asked for its maps."""
        forward = begun.forward
        check_order(forward)
        check_continued(self.model, forward)
        if self._packed_cache is not None and forward.cache is self._packed_cache:
            raise InputError("this pass goes on with the cache of packed documents: observe those with apart=False")
        last = self._batches[-1] if self._batches else None
        before = sum(batch.size for batch in self._batches)
        row = 1 + max((row for batch in self._batches for row in batch.row), default=-1)
        self._packed = self._across = self._told = None
        # `before` includes the last batch, whose samples go on here.
        if last is not None and last.continues(forward):
            self._pass = OpenPass(forward, last, before - last.size)
        else:
            rows = range(forward.batch)
            batch = Batch(
                size=forward.batch,
                first=forward.seen,
                prefix=forward.prefix,
                index=tuple(before + number for number in rows),
                row=tuple(row + number for number in rows),
                start=(0,) * forward.batch,
            )
            self._pass = OpenPass(forward, batch, before)
            self._packed = self._unpacked(self._pass, before, args, kwargs)
        return None if self._maps is None else ((), self._maps.begin(args, kwargs))

    def _end(self, ended: Pass, output: Any) -> Any:
        """Keep the sums of a finished pass; returns the output that the caller asked for, if we asked for more."""
        done, packed, self._pass = self._pass, self._packed, None
        assert done is not None
        if self._maps is not None:
            self._collect(self._maps, done, output)
        answered = None if self._maps is None else self._maps.answer(output)
        # In both cases below the sums of this pass are dropped: running it again enters these hooks and counts it.
        if packed is not None and self._across is not None:
            warnings.warn(
                f"the inputs tell documents apart, but {self._across}: rows are read whole", UserWarning, stacklevel=2
            )
            self._start_again(packed.args, packed.kwargs, None)
            return answered
        if packed is None and self._told is not None and parts_of(self._told):
            self._start_again(*self._arguments, self._told)
            return answered
        cache = cache_of(output) or done.forward.cache
        if packed is not None:
            self._packed_cache = cache
        for document, share in self._shares(done):
            share.drop_misread()
            share.note_unused_masks()
            share.batch.commit(share, cache if document is None else None)
            if not self._batches or self._batches[-1] is not share.batch:
                # A new batch has begun, so nothing can continue the one before.
                for closed in self._batches[-1:]:
                    closed.settle(self.observers, self._shelf)
                self._batches.append(share.batch)
            self.left_out.add(share.left_out)
            self._unmasked |= share.unmasked
        self._packed, self._told, self._arguments, self._kept_apart = None, None, ((), {}), []
        return answered

    def _shares(self, running: OpenPass) -> list[tuple[PackedDocument | None, OpenPass]]:
        """The parts of a pass that are read separately: all of it, or each document."""
        return [(None, running)] if self._packed is None else list(self._packed.parts)

    def _unpacked(self, whole: OpenPass, before: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Packed | None:
        """The documents of a pass if its rows hold several, else None."""
        self._arguments = args, kwargs
        if not self._apart or self._encoder_decoder:
            return None
        named = arguments(self.model, args, kwargs)
        labels = documents_in(self.model, whole.forward, named) if self._labels is None else self._labels
        if labels is None:
            return None
        opened = []
        for document in parts_of(labels):
            index = tuple(before + number for number in document.samples)
            rows = tuple(whole.batch.row[number] for number in document.rows.tolist())
            batch = Batch(size=len(rows), first=0, index=index, row=rows, start=document.start)
            opened.append(
                (document, OpenPass(document.forward(whole.forward), batch, index[0], left_out=whole.left_out))
            )
        if not opened:
            return None
        if self._crossing is None and (crossing := recurrent_layers(self.model)):
            several = f"s {', '.join(map(str, crossing))}" if len(crossing) > 1 else f" {crossing[0]}"
            self._crossing = f"the state of layer{several} goes on from one packed document to the next"
            warnings.warn(self._crossing, UserWarning, stacklevel=2)
        return _Packed(labels, opened, args, kwargs)

    def _start_again(self, args: tuple[Any, ...], kwargs: dict[str, Any], labels: Labels | None) -> None:
        """Run the pass once more: as whole rows, or as the documents `labels`."""
        apart, self._apart, self._labels = self._apart, labels is not None, labels
        self._packed = None
        try:
            # The caller has the first run's output: the second builds no graph and does not advance the random state.
            with torch.no_grad(), torch.random.fork_rng():
                self.model(*args, **kwargs)
        finally:
            self._apart, self._labels = apart, None

    def _keeps_apart(self, call: AttentionCall, sides: tuple[Axis, Axis], kernel: bool = False) -> bool:
        """Whether a layer's calls can be read one document at a time; if not, the pass runs again.

        `kernel`: the kernel knows the borders, which the mask does not show.
        """
        assert self._packed is not None
        if self._across is not None:
            return False
        if sides != ("tokens", "tokens"):
            self._across = f"layer '{call.layer.name}' attends to something else than their tokens"
        elif not kernel and self._shown_across(call):
            self._across = f"layer '{call.layer.name}' attends from one to another"
        return self._across is None

    def _shown_across(self, call: AttentionCall) -> bool:
        """`shows_across`, computed once for layers that share a mask."""
        assert self._packed is not None
        source = call.mask.visibility if isinstance(call.mask, Bound) else call.mask
        if isinstance(call.mask, Rule):
            return shows_across(call, self._packed.labels)
        if all(source is not known for known in self._kept_apart):
            if shows_across(call, self._packed.labels):
                return True
            self._kept_apart = [source, *self._kept_apart[:KINDS]]
        return False

    def _note_documents(self, call: AttentionCall, sides: tuple[Axis, Axis]) -> None:
        """Find the documents that all layers separate by masks that the model made itself."""
        assert self._pass is not None
        forward = self._pass.forward
        if sides != ("tokens", "tokens") or not self._apart or forward.cache is not None or forward.seen:
            return
        # The first layer proposes the documents, and every later one must show the same.
        first = not any(isinstance(place, Layer) and place != call.layer for place in self._pass.places)
        if not first and self._told is None:
            return
        square = isinstance(call.mask, DenseMask) and call.query.shape[2] == call.mask.keys
        if not square or (not first and call.mask in self._kept_apart):
            self._told = self._told if square else None
            return
        labels = documents_of_mask(call.mask)  # type: ignore[arg-type]
        agree = labels is not None and (first or (self._told is not None and torch.equal(labels, self._told)))
        self._told, self._kept_apart = (labels, [call.mask, *self._kept_apart[:KINDS]]) if agree else (None, [])

    def _hidden(self, depth: Depth, hidden: Any, under_way: Pass) -> None:
        """Show the residual stream at one depth to the observers that read blocks."""
        assert self._pass is not None
        if depth.stack in self._pass.left_out.streams or self._across is not None:
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
        sums_here = self._pass.place(depth, side, side, causal=False)
        sums_here.query_length, sums_here.real_queries = stop, so_far
        real = None if so_far is None or so_far.shape[1] < stop else so_far[:, start:stop].to(hidden.device)
        so_far = None if real is None else so_far
        shown = Hidden(hidden.detach(), start, depth, real, self._pass.samples_before, so_far)
        if self._packed is None:
            self._show_hidden(shown, sums_here)
            return
        if side != "tokens" or hidden.shape[1] != self._packed.labels.shape[1]:
            self._across = f"the residual stream of the {depth.stack} is not over their tokens"
            return
        for document, share in self._packed.parts:
            mine = document.hidden(shown, share.samples_before)
            sums = share.place(depth, side, side, causal=False)
            sums.query_length, sums.real_queries = document.length, mine.real
            self._show_hidden(mine, sums)

    def _show_hidden(self, shown: Hidden, sums: PlaceSums) -> None:
        with full_precision(shown.values.device):
            for observer in self.observers:
                for piece in observer.on_hidden(shown) if observer.reads_blocks else ():
                    sums.add(type(observer).__name__, piece, len(shown.values))

    def _read_module(self, observer: Observer, watch: ModuleWatch) -> Callable[..., None]:
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
            if self._across is not None:
                return
            for document, share in self._shares(running):
                batch, start = share.forward.batch, share.forward.start(side)
                at = ModuleCall(batch, start, self._real_at(place, side, share), share.samples_before)
                shown = (args, kwargs, output)
                if document is not None:
                    assert self._packed is not None
                    shown = tuple(document.cut(each, *self._packed.labels.shape) for each in shown)
                with torch.no_grad():
                    for piece in watch.read(at, *shown):
                        known = share.places.get(place)
                        sums = share.place(place, side, side, causal=known is not None and known.causal)
                        sums.add(type(observer).__name__, piece, batch)

        return hook

    def _real_at(self, place: Place, side: Axis, running: OpenPass) -> Tensor | None:
        """Real tokens for an observer that reads a module: those of its layer's attention, if it ran."""
        if not isinstance(place, Layer):
            return running.forward.real.get(side)
        known = running.places.get(place)
        if known is None or not known.query_length:  # no attention yet, though another such observer may have been here
            return running.forward.real.get(side)
        return known.real_queries

    def _side(self, place: Place) -> Axis:
        return "tokens" if isinstance(place, ExpertLayer) else axes(place.stack, self._encoder_decoder)[0]


def _kernel_is_told(invocation: Invocation) -> bool:
    """Whether a kernel without a mask received the borders of documents."""
    borders = (invocation.arguments.get(name) for name in ("cu_seq_lens_q", "position_ids"))
    return "flash" in (invocation.implementation or "") and any(isinstance(each, Tensor) for each in borders)
