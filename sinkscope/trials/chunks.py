"""Arms of joined chunks: what it costs to encode chunks apart, and which tokens to recompute for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache

from sinkscope.caches import Chunks, join_chunks
from sinkscope.errors import InputError, unknown
from sinkscope.hooks import unwrapped
from sinkscope.measurement import AttentionReceived, find_tokens, measure, observe
from sinkscope.sinks import EPSILON, Measured, NothingChosenError, counted
from sinkscope.trials.arm import Arm, Texts, ThroughCache
from sinkscope.trials.feeding import Feed
from sinkscope.trials.run import run
from sinkscope.trials.trial import Trial

Repair = Literal["first", "received", "deviating"]
REPAIRS: tuple[Repair, ...] = ("first", "received", "deviating")
Select = Callable[[nn.Module, Tensor, Texts], Tensor]
"""Which tokens of the chunks: (model, ids of the chunks, texts) -> mask (text, token)."""


def chunk_trial(
    model: nn.Module,
    inputs: Any,
    lengths: Sequence[int],
    recompute: Sequence[int] = (1, 4, 16),
    *,
    repairs: Sequence[Repair] = REPAIRS,
    context: int | None = None,
    controls: int = 1,
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trial:
    """What joining chunks costs against reading them at once, and what repairs give back at equal recomputation.

    The baseline "joined" recomputes nothing. For each number k in `recompute` there is an arm for each repair, which
    recomputes k tokens per chunk, the first chunk left out (it is exact): k · (chunks − 1) tokens per text.

    - "first": the first k of each chunk (LegoLink of EPIC, Hu et al. 2024).
    - "received": the k of each chunk that receive most attention when it is read alone (mean over layers and heads,
      among tokens that enough queries see, then the first others): its sinks first.
    - "deviating": those of all later chunks whose values at layer 1 differ most from reading at once, by which
      CacheBlend (Yao et al. 2024) chooses; that look, two layers over all tokens, is not counted.

    The control of each recomputes as many random tokens of the later chunks. Three arms recompute nothing: "strongest
    dropped" leaves out of each later chunk the token that receives most, "sinks dropped" all tokens that some head of
    the chunk read alone gives more than 30 % of its attention (controls: as many random others of each chunk), and
    "behind first" reads each later chunk after the first token of the first chunk. See `caches.chunks` for what was
    read of both papers.

    Args:
        model: A decoder, as `caches.join_chunks` takes it.
        inputs: Ids (N, T) without padding: chunks, then what is scored.
        lengths: Tokens of each chunk, at least two chunks.
        recompute: Numbers of tokens per chunk.
        repairs: Some of "first", "received", "deviating".
        context: Tokens before the scored ones, at least one more than the chunks have; default: one more.
        controls: Draws of each control.
        seed: For all draws.
        about: More for the record.
        options: Passed to `trials.run`: needles, tolerance, out, progress. Texts are read one at a time: they have
            different numbers of sinks, and rows of a cache are equally long.

    Raises `InputError` for lengths or numbers that do not fit, `UnsupportedModelError` as `join_chunks` does.
    """
    model = unwrapped(model)
    texts = Texts.of(model, inputs)
    context = sum(lengths) + 1 if context is None else context
    if context <= sum(lengths):
        raise InputError(
            f"context = {context}: more than the {sum(lengths)} tokens of the chunks, which are read apart"
        )
    reading = ThroughCache(context, None)
    reading.check(texts)
    arms = chunk_arms(lengths, recompute, repairs=repairs)
    assert texts.ids is not None
    one = texts.ids[:1, : sum(lengths)]  # what cannot be joined or recomputed is refused before anything runs
    join_chunks(model, one, lengths).recomputed(model, first_of_chunks(lengths, 1, one))
    about = {"lengths": list(lengths), "recompute": list(recompute), **(about or {}), "kind": "chunks"}
    return run(model, texts, arms, reading=reading, controls=controls, seed=seed, about=about, batch_size=1, **options)


def chunk_arms(
    lengths: Sequence[int], recompute: Sequence[int] = (1, 4, 16), *, repairs: Sequence[Repair] = REPAIRS
) -> list[Arm]:
    """The arms of `chunk_trial`, for a `trials.run` of one's own, with `batch_size=1`.

    Raises `InputError` as it does.
    """
    lengths = tuple(int(length) for length in lengths)
    if len(lengths) < 2:
        raise InputError(f"lengths = {list(lengths)}: at least two chunks, since a single one is exact")
    if min(lengths[1:]) < 2:
        raise InputError(f"lengths = {list(lengths)}: at least 2 tokens in each chunk after the first, to choose among")
    if wrong := next((repair for repair in repairs if repair not in REPAIRS), None):
        raise unknown("repair", str(wrong), REPAIRS)
    if wrong_count := [k for k in recompute if not 0 < k <= min(lengths[1:])]:
        raise InputError(f"recompute = {wrong_count}: 1 to {min(lengths[1:])} tokens of a chunk")
    encoder = _Encoder(lengths)
    later = len(lengths) - 1

    def repaired(name: str, select: Select, **options: Any) -> Arm:
        return _arm(
            name,
            encoder,
            lambda chunks, model, texts: chunks.recomputed(model, select(model, chunks.ids, texts)),
            **options,
        )

    def random_for(count: int) -> Callable[[int, Texts], Arm]:
        def control(draw: int, texts: Texts) -> Arm:
            def select(model: nn.Module, ids: Tensor, texts: Texts) -> Tensor:
                return _drawn(_later(lengths, ids), torch.full((len(ids),), count * later), draw, texts)

            facts = {"repair": "random", "tokens_per_text": count * later}
            return repaired("random", select, same=("random", count, draw), facts=facts)

        return control

    arms = [_arm("joined", encoder, lambda chunks, model, texts: chunks, baseline=True)]
    for count in recompute:
        # `k=count`: without it, all of them would see the last count of the loop.
        chosen: dict[Repair, Select] = {
            "first": lambda model, ids, texts, k=count: first_of_chunks(lengths, k, ids),  # type: ignore[misc]
            "received": lambda model, ids, texts, k=count: encoder.strongest(model, ids, k),  # type: ignore[misc]
            "deviating": lambda model, ids, texts, k=count: encoder.deviating(model, ids, k * later),  # type: ignore[misc]
        }
        for repair in repairs:
            facts = {"repair": repair, "tokens_per_text": count * later}
            options = {"control": random_for(count), "series": repair, "facts": facts}
            arms.append(repaired(f"{repair} {count}", chosen[repair], **options))
    arms.append(_dropping("strongest dropped", encoder, lambda model, ids: encoder.strongest(model, ids, 1)))
    arms.append(_dropping("sinks dropped", encoder, encoder.sinks))
    arms.append(_arm("behind first", encoder, lambda chunks, model, texts: chunks, ahead=1))
    return arms


def chunk_sinks(
    model: nn.Module,
    inputs: Any,
    lengths: Sequence[int],
    *,
    recompute: int = 1,
    epsilon: float = EPSILON,
    batch_size: int = 4,
) -> xr.Dataset:
    """How many sinks each chunk brings, and how much attention they take from what is read after the chunks.

    `sinks` (text, chunk): tokens that some head of the chunk read alone gives more than ε of its attention, by the rule
    of `sinks.rule`. `sink_mass` (cache, text, chunk): the share of the attention of all tokens after the chunks, mean
    over layers and heads, that these tokens take; `chunk_mass`: that the whole chunk takes. `cache`: "joined", "first
    k" of each later chunk recomputed, and "at once".

    Args:
        model: A decoder, as `caches.join_chunks` takes it.
        inputs: Ids (N, T): chunks, then at least one further token.
        lengths: Tokens of each chunk.
        recompute: k; 0 leaves that cache out.
        epsilon: ε.
        batch_size: Texts that are read at once.

    Raises `InputError` as `chunk_trial` does.
    """
    model = unwrapped(model)
    texts, lengths = Texts.of(model, inputs), tuple(int(length) for length in lengths)
    total = sum(lengths)
    ThroughCache(total, None).check(texts)
    numbers: dict[str, list[np.ndarray]] = {}
    caches: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for batch in texts.batches(batch_size):
        ids = batch.ids
        assert ids is not None
        encoder = _Encoder(lengths)
        sinks = _sinks_alone(model, ids[:, :total], lengths, epsilon)
        numbers.setdefault("sinks", []).append(_by_chunk(sinks.double(), lengths))
        joined = encoder.joined(model, ids[:, :total])
        read = {"joined": joined}
        if recompute:
            read[f"first {recompute}"] = joined.recomputed(model, first_of_chunks(lengths, recompute, joined.ids))
        read["at once"] = encoder.at_once(model, ids[:, :total])
        for name, chunks in read.items():
            received = _received_after(model, chunks, ids)
            sums = caches.setdefault(name, ([], []))
            sums[0].append(_by_chunk(received * sinks, lengths))
            sums[1].append(_by_chunk(received, lengths))
    dims = ("cache", "text", "chunk")
    return xr.Dataset(
        {
            "sinks": (dims[1:], np.concatenate(numbers["sinks"])),
            "sink_mass": (dims, np.stack([np.concatenate(sums[0]) for sums in caches.values()])),
            "chunk_mass": (dims, np.stack([np.concatenate(sums[1]) for sums in caches.values()])),
        },
        coords={"cache": list(caches), "chunk": np.arange(len(lengths))},
    )


def first_of_chunks(lengths: Sequence[int], count: int, ids: Int[Tensor, "text token"]) -> Bool[Tensor, "text token"]:
    """The first `count` tokens of each chunk but the first."""
    mask = torch.zeros_like(ids, dtype=torch.bool)
    start = lengths[0]
    for length in lengths[1:]:
        mask[:, start : start + min(count, length)] = True
        start += length
    return mask


class _Encoder:
    """The encodings of the latest texts, so that all arms of a batch share them."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self._known: dict[Any, Any] = {}
        self._texts = ""

    def joined(self, model: nn.Module, ids: Tensor, ahead: int = 0) -> Chunks:
        """The chunks, each read alone or after the first tokens of the first."""
        return self._once(ids, ("joined", ahead), lambda: join_chunks(model, ids, self.lengths, ahead=ahead))

    def at_once(self, model: nn.Module, ids: Tensor) -> Chunks:
        """All chunks read as one."""
        return self._once(ids, "at once", lambda: join_chunks(model, ids, (ids.shape[1],)))

    def strongest(self, model: nn.Module, ids: Tensor, count: int) -> Bool[Tensor, "text token"]:
        """The tokens of each later chunk that receive most attention in the chunk read alone."""
        alone = self._once(ids, "received", lambda: _received_alone(model, ids, self.lengths))
        mask, start = torch.zeros_like(ids, dtype=torch.bool), self.lengths[0]
        for length in self.lengths[1:]:
            best = alone[:, start : start + length].topk(count).indices
            mask.scatter_(1, start + best, True)
            start += length
        return mask

    def deviating(self, model: nn.Module, ids: Tensor, count: int) -> Bool[Tensor, "text token"]:
        """The tokens of all later chunks whose values at layer 1 deviate most from reading at once."""
        deviation = self.joined(model, ids).deviation(self.at_once(model, ids)).cpu()
        # Deviations are sums of squares, so −1 ranks the first chunk below all others.
        best = deviation.masked_fill(~_later(self.lengths, ids), -1.0).topk(count).indices
        return torch.zeros_like(ids, dtype=torch.bool).scatter_(1, best, True)

    def sinks(self, model: nn.Module, ids: Tensor) -> Bool[Tensor, "text token"]:
        """All sinks of the later chunks, each chunk read alone."""
        alone = self._once(ids, "sinks", lambda: _sinks_alone(model, ids, self.lengths, EPSILON))
        return alone & _later(self.lengths, ids)

    def _once(self, ids: Tensor, what: Any, make: Callable[[], Any]) -> Any:
        # All arms read one batch before the next, so only its encodings are kept.
        if (texts := Texts.of_ids(ids).digest()) != self._texts:
            self._texts, self._known = texts, {}
        if what not in self._known:
            self._known[what] = make()
        return self._known[what]


def _arm(
    name: str, encoder: _Encoder, repair: Callable[[Chunks, nn.Module, Texts], Chunks], ahead: int = 0, **options: Any
) -> Arm:
    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[Cache]:
        assert texts.ids is not None
        chunks = encoder.joined(model, texts.ids[:, : sum(encoder.lengths)].cpu(), ahead)
        yield repair(chunks, model, texts).cache(model)

    options.setdefault("facts", {"repair": name, "tokens_per_text": 0})
    return Arm(name, opened, **options)


def _dropping(name: str, encoder: _Encoder, select: Callable[[nn.Module, Tensor], Tensor]) -> Arm:
    """Later chunks without some tokens; the control drops as many others of each chunk."""

    def dropped(chunks: Chunks, model: nn.Module, texts: Texts) -> Chunks:
        return chunks.without(select(model, chunks.ids))

    def control(draw: int, texts: Texts) -> Arm:
        def others(chunks: Chunks, model: nn.Module, texts: Texts) -> Chunks:
            sinks = select(model, chunks.ids)
            mask = torch.zeros_like(sinks)
            for number, (start, length) in enumerate(zip(chunks.starts, chunks.lengths, strict=True)):
                chunk = torch.zeros_like(mask)
                chunk[:, start : start + length] = True
                # A seed per chunk: with one seed, chunks of one length would all drop the same places.
                mask |= _drawn(chunk & ~sinks, (chunk & sinks).sum(1), draw + 1000 * number, texts)
            return chunks.without(mask)

        return _arm("random", encoder, others)

    return _arm(name, encoder, dropped, control=control)


def _later(lengths: Sequence[int], ids: Tensor) -> Bool[Tensor, "text token"]:
    """Tokens of all chunks but the first."""
    return (torch.arange(ids.shape[1]) >= lengths[0]).expand(len(ids), -1)


def _drawn(free: Tensor, counts: Tensor, draw: int, texts: Texts) -> Bool[Tensor, "text token"]:
    """As many free tokens of each text as `counts` says; the draw does not depend on the other texts of the batch."""
    mask = torch.zeros_like(free)
    for row, number in enumerate(range(texts.rows.start, texts.rows.stop)):
        places = free[row].nonzero()[:, 0].numpy()
        chosen = np.random.default_rng((draw, number)).choice(places, int(counts[row]), replace=False)
        mask[row, torch.as_tensor(chosen)] = True
    return mask


def _received_alone(model: nn.Module, ids: Tensor, lengths: Sequence[int]) -> Float[Tensor, "text token"]:
    """α of every token in its chunk read alone, mean over layers and heads; below 0 where too few queries see it, the
    earlier tokens first."""

    def received(rows: Tensor) -> Tensor:
        data = measure(model, rows, [AttentionReceived()], batch_size=len(rows)).data
        mean = data["attention_received"].mean(("layer", "head")).transpose("sample", "position").values
        seen = counted(data["visible_queries"].isel(layer=0).transpose("sample", "position").values)
        return torch.from_numpy(np.where(seen, mean, -1.0 - np.arange(rows.shape[1]))).float()

    return _each_alone(ids, lengths, received)


def _sinks_alone(model: nn.Module, ids: Tensor, lengths: Sequence[int], epsilon: float) -> Bool[Tensor, "text token"]:
    """The sinks of each chunk read alone, of any layer and head."""

    def sinks(rows: Tensor) -> Tensor:
        try:
            tokens = find_tokens(model, rows, Measured(epsilon, by="row"), batch_size=len(rows))
        except NothingChosenError:
            return torch.zeros_like(rows, dtype=torch.bool)
        return torch.from_numpy(tokens.any_head())

    return _each_alone(ids, lengths, sinks)


def _each_alone(ids: Tensor, lengths: Sequence[int], look: Callable[[Tensor], Tensor]) -> Tensor:
    """`look` applied to each chunk alone, as (text, token); chunks of equal length are rows of one call."""
    chunks = ids.split(tuple(lengths), 1)
    parts = list(chunks)
    for length in dict.fromkeys(lengths):
        same = [number for number, other in enumerate(lengths) if other == length]
        rows = look(torch.cat([chunks[number] for number in same]))
        for number, part in zip(same, rows.split(len(ids)), strict=True):
            parts[number] = part
    return torch.cat(parts, 1)


def _received_after(model: nn.Module, chunks: Chunks, ids: Tensor) -> Float[Tensor, "text token"]:
    """The share of the attention of all tokens after the chunks that each token of the chunks takes."""
    total = chunks.ids.shape[1]
    with torch.no_grad(), observe(model, AttentionReceived()) as seen:
        Feed(model, chunks.cache(model)).read(ids[:, total:])
    received = seen.measurement().data["attention_received"].mean(("layer", "head"))
    return torch.from_numpy(received.transpose("sample", "position").values[:, :total].astype(np.float64))


def _by_chunk(values: Tensor, lengths: Sequence[int]) -> np.ndarray:
    """Sums over each chunk, (text, chunk)."""
    return torch.stack([part.sum(1) for part in values.split(tuple(lengths), 1)], 1).numpy()
