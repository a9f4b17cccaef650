"""The module that computes an attention operation and owns what it learns.

One object serves the lab model, the observers, attached models and caches: no formula exists twice. The reference here
is naive on purpose; the paths in `paths/` must agree with it, or are not offered.

A host calls `before_rotation`, rotates, calls `before_cache`, updates its cache, and attends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.combination import Combination
from sinkscope.attention.context import Bias, Context
from sinkscope.attention.difference import DifferenceModule, halves
from sinkscope.attention.normalizers import Softmax
from sinkscope.attention.normalizers.base import Differentiated
from sinkscope.attention.paths import chunked, fused, sdpa, streamed
from sinkscope.attention.pieces import Sizes
from sinkscope.attention.scores import MapScores, aggregated, wide
from sinkscope.attention.scoring.decay import forgotten
from sinkscope.attention.slots import SlotTerms
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError, unknown

Path = Literal["auto", "reference", "fast", "fused", "sdpa", "streamed", "chunked"]
PATHS: tuple[str, ...] = get_args(Path)
Taken = Literal["reference", "fused", "sdpa", "streamed", "chunked"]


def chosen(spec: Combination, path: Path | str, queries: int, *, biased: bool = False) -> Taken:
    """The path that `path` means for this problem, fused kernels aside (`paths/fused.py`).

    "fast" is SDPA if exact, else the streamed path if the normalizer knows its derivative, else query chunks; "auto" is
    the same with the reference instead of a single chunk. Raises `InputError` for "sdpa" and "streamed" if not exact.
    """
    if path not in PATHS:
        raise unknown("path", str(path), PATHS)
    reason = sdpa.obstacle(spec, biased=biased)
    if path == "sdpa" and reason:
        raise InputError(f"no exact SDPA path: {reason}")
    if path == "streamed" and (missing := streamed.obstacle(spec, biased=biased)):
        raise InputError(f"no streamed path: {missing}")
    if path in ("reference", "chunked", "streamed"):
        return cast(Taken, path)
    if reason is None:
        return "sdpa"
    if streamed.obstacle(spec, biased=biased) is None:
        return "streamed"
    return "reference" if path == "auto" and queries <= chunked.rows_of(queries) else "chunked"


def check_shapes(spec: Combination, sizes: Sizes, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises `InputError` for queries, keys and values of other sizes than those the operation was built for.

    Args:
        spec: The operation.
        sizes: What it was built for.
        query, key, value: (batch, heads, token, width) each.
    """
    shapes = f"q {tuple(query.shape)}, k {tuple(key.shape)}, v {tuple(value.shape)}"
    if {query.ndim, key.ndim, value.ndim} != {4}:
        raise InputError(f"{shapes}: expected (batch, heads, tokens, width) each")
    # Kernels take the batch of all three from the queries, and read memory of others where it is another.
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise InputError(f"{shapes}: expected the same batch")
    if not (query.shape[2] and key.shape[2]):
        raise InputError(f"{shapes}: expected at least one query and one key")
    wanted = (sizes.heads, sizes.head_dim, sizes.kv_heads, sizes.head_dim, sizes.kv_heads)
    actual = (query.shape[1], query.shape[-1], key.shape[1], key.shape[-1], value.shape[1])
    if wanted != actual or key.shape[2] != value.shape[2]:
        raise InputError(
            f"{shapes} do not fit an operation with {sizes.heads} heads, {sizes.kv_heads} key-value heads, head width "
            f"{sizes.head_dim}"
        )
    check_values(spec, sizes, value)


def check_visibility(visibility: Visibility, query: Tensor, key: Tensor) -> None:
    """Raises `InputError` for a mask that is bound to other numbers of tokens or samples."""
    asking, known = visibility.query, visibility.key
    samples, wanted = max(asking.samples, known.samples), (query.shape[2], key.shape[2])
    if (asking.count, known.count) != wanted or samples not in (1, query.shape[0]):
        raise InputError(
            f"a mask for {samples} x {asking.count} queries and {known.count} keys: expected {query.shape[0]} x "
            f"{wanted[0]} queries (or 1 x, for all samples alike) and {wanted[1]} keys"
        )


def check_values(spec: Combination, sizes: Sizes, value: Tensor) -> None:
    """Raises `InputError` for values whose width differs from that of heads, if some piece works on them."""
    if value.shape[-1] != sizes.head_dim and (kind := spec.as_wide_as_heads) is not None:
        raise InputError(
            f"values of width {value.shape[-1]} for heads of width {sizes.head_dim}: '{kind}' is as wide as a head, so "
            "values must be too"
        )


def check_hidden(spec: Combination, sizes: Sizes, hidden: Tensor | None, tokens: int) -> None:
    """Raises `InputError` for a block's input of another shape, if it is read."""
    wanted = (tokens, sizes.hidden_size)
    if spec.needs_hidden and hidden is not None and hidden.shape[1:] != wanted:
        raise InputError(f"hidden {tuple(hidden.shape)}: this operation reads (batch, {wanted[0]}, {wanted[1]})")


@dataclass(frozen=True, eq=False)
class Attended:
    """What attention returns. Fast paths return only the output; the reference returns everything.

    `lse` (log-sum-exp over tokens and slots, nats) exists only if the normalizer is a softmax.
    """

    output: Float[Tensor, "batch heads query value_dim"]
    weights: Float[Tensor, "batch heads query key"] | None = None
    slot_weights: Float[Tensor, "batch heads query slots"] | None = None
    lse: Float[Tensor, "batch heads query"] | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """Attention weights on tokens and on slots, fp32 or wider."""

    token: Float[Tensor, "batch heads query key"]
    slot: Float[Tensor, "batch heads query slots"]
    lse: Float[Tensor, "batch heads query"] | None = None


class Operation(nn.Module):
    """An `AttentionSpec` built for given sizes. Make one with `spec.build(...)`."""

    def __init__(self, spec: Combination, sizes: Sizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.similarity = spec.similarity.build(sizes)
        self.slot_modules = nn.ModuleList(slot.build(sizes) for slot in spec.slots)
        self.output_modules = nn.ModuleList(piece.build(sizes) for piece in spec.output)
        self.query_key = None if spec.query_key is None else spec.query_key.build(sizes)
        self.temperature = None if spec.temperature is None else spec.temperature.build(sizes)
        self.first_key = None if spec.first_key is None else spec.first_key.build(sizes)
        self.decay = None if spec.decay is None else spec.decay.build(sizes)
        self.value_gate = None if spec.value_gate is None else spec.value_gate.build(sizes)
        self.difference: DifferenceModule | None = None if spec.difference is None else spec.difference.build(sizes)

    @property
    def scaling(self) -> float:
        """The default scale of scores: (width of a dot product)^−1/2."""
        return (self.sizes.head_dim if self.difference is None else self.sizes.head_dim // 2) ** -0.5

    @property
    def slots(self) -> int:
        """Number of slots."""
        return sum(getattr(module, "count", 1) for module in self.slot_modules)

    def before_rotation(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch kv_heads key dim"]
    ) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch kv_heads key dim"]]:
        """Queries and keys before rotation, normalized if the spec says so."""
        return (query, key) if self.query_key is None else self.query_key(query, key)

    def before_cache(
        self, value: Float[Tensor, "batch kv_heads token dim"], hidden: Float[Tensor, "batch token width"] | None
    ) -> tuple[Float[Tensor, "batch kv_heads token dim"], Float[Tensor, "batch kv_heads token channels"] | None]:
        """Values for the cache (gated if the spec says so), and what tokens store besides key and value.

        The second is None except for a forgetting gate: log f, one channel per query head of a group.
        """
        check_hidden(self.spec, self.sizes, hidden, value.shape[2])
        check_values(self.spec, self.sizes, value)
        if self.value_gate is not None:
            value = self.value_gate(value, hidden)
        if self.decay is None:
            return value, None
        if hidden is None:
            raise InputError("a forgetting gate reads the block's input at every token: pass `hidden`")
        return value, self.decay(hidden)

    def forward(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        value: Float[Tensor, "batch kv_heads key value_dim"],
        visibility: Visibility | None = None,
        hidden: Float[Tensor, "batch query width"] | None = None,
        scaling: float | None = None,
        path: Path | str = "auto",
        carried: Float[Tensor, "batch kv_heads key channels"] | None = None,
        bias: Bias | None = None,
        own: Float[Tensor, "batch kv_heads query value_dim"] | None = None,
    ) -> Attended:
        """Attend, with queries and keys after rotation and values as cached.

        Args:
            query, key, value: q, k and v; with fewer queries than keys the queries are the last ones.
            visibility: Which keys each query sees; None is the spec's own mask.
            hidden: The attention block's input at the queries, for gates and input-dependent sink logits.
            scaling: Factor of q·k; None is `self.scaling`.
            path: "auto", "reference", "fast" or the name of one path.
            carried: What keys store besides k and v, from `before_cache`.
            bias: Added to the scores.
            own: Values of the queries' own tokens; None takes the last of `value`.

        Raises `InputError` for shapes that do not fit, for missing inputs, and for a `path` that would not be exact.
        """
        check_shapes(self.spec, self.sizes, query, key, value)
        context = self.context(query, key, visibility, hidden, scaling, carried, bias)
        check_visibility(context.visibility, query, key)
        taken = self._taken(path, query, key, value, context)
        # Autocast would run the reference's products in bf16, although `wide` made their factors fp32.
        with torch.autocast(query.device.type, enabled=False):
            attended = self._attend(taken, query, key, value, context)
        output = attended.output
        if self.difference is not None:
            output = self.difference(output)
        output = self.leaving(output, hidden, self.own_values(query, value) if own is None else own)
        return Attended(output, attended.weights, attended.slot_weights, attended.lse)

    def leaving(
        self,
        output: Float[Tensor, "batch heads query value_dim"],
        hidden: Float[Tensor, "batch query width"] | None,
        own: Float[Tensor, "batch kv_heads query value_dim"] | None,
        modules: Iterable[nn.Module] | None = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Apply biases, gates and projections to aggregated values, in the spec's order; `modules`: only these."""
        for module in self.output_modules if modules is None else modules:
            output = module(output, own if getattr(module, "reads_own", False) else hidden)
        return output

    def own_values(self, query: Tensor, value: Tensor) -> Float[Tensor, "batch kv_heads query value_dim"] | None:
        """The values of the queries' own tokens, the last ones; None if no piece reads them.

        Raises `InputError` if there are fewer values than queries.
        """
        pieces = zip(self.spec.output, self.output_modules, strict=True)
        reader = next((piece.kind for piece, module in pieces if getattr(module, "reads_own", False)), None)
        if reader is None:
            return None
        if query.shape[2] > value.shape[2]:
            raise InputError(
                f"'{reader}' reads each query's own value: {query.shape[2]} queries have {value.shape[2]} values"
            )
        return value[:, :, value.shape[2] - query.shape[2] :]

    def weights(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        visibility: Visibility | None = None,
        rows: slice | None = None,
        hidden: Float[Tensor, "batch query width"] | None = None,
        scaling: float | None = None,
        carried: Float[Tensor, "batch kv_heads key channels"] | None = None,
        bias: Bias | None = None,
    ) -> Weights:
        """The weights of queries, computed in fp32 at least, without autocast. Arguments as in `forward`; `rows`: which
        queries, None for all.
        """
        context = self.context(query, key, visibility, hidden, scaling, carried, bias)
        rows = slice(*(rows or slice(None)).indices(query.shape[2]))
        with torch.autocast(query.device.type, enabled=False):
            first, *second = self._scores(query, key, context)
            weights = self._weights(first, rows)
            return self._difference(weights, self._weights(second[0], rows)) if second else weights

    def logits(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        context: Context,
        rows: slice,
    ) -> tuple[Float[Tensor, "batch heads rows key"], ...]:
        """Scores of the queries in `rows` on all keys as the normalizer receives them, −inf where not visible.

        Two maps if the weights are a difference. Slots are in `slot_logits`.
        """
        with torch.autocast(query.device.type, enabled=False):
            maps = [scores.rows(rows) for scores in self._scores(query, key, context)]
        # −inf is safe here, unlike before a softmax: nothing is normalized, and a row's maximum ignores it.
        visible = [each.scores.masked_fill(~each.visible, -torch.inf)[..., self.slots :] for each in maps]
        around = (maps[0].keys.start, key.shape[2] - maps[0].keys.stop)
        return tuple(torch.nn.functional.pad(each, around, value=-torch.inf) for each in visible)

    def context(
        self,
        query: Tensor,
        key: Tensor,
        visibility: Visibility | None = None,
        hidden: Tensor | None = None,
        scaling: float | None = None,
        carried: Tensor | None = None,
        bias: Bias | None = None,
    ) -> Context:
        """The context of a call, with defaults filled in. Arguments as in `forward`.

        Raises `InputError` for a scaling that is not positive, and for inputs that are missing or do not fit.
        """
        check_hidden(self.spec, self.sizes, hidden, query.shape[2])
        scaling = self.scaling if scaling is None else scaling
        if not scaling > 0:
            raise InputError(f"scaling = {scaling}: must be positive")
        if self.decay is not None and (carried is None or carried.shape[2] != key.shape[2]):
            raise InputError("a forgetting gate needs what every key carries: pass `carried` from `before_cache`")
        visibility = visibility or self.bind(query.shape[2], key.shape[2], query.device)
        return Context(visibility, scaling, hidden, carried, bias)

    def slot_logits(
        self, query: Float[Tensor, "batch heads query dim"], context: Context
    ) -> Float[Tensor, "batch heads query slots"]:
        """Scores of all queries on every slot as the normalizer receives them: scaling · q·k* + b, with q after
        temperature and similarity. Raises `InputError` if there is no slot.
        """
        if not self.slots:
            raise InputError("this operation has no slots")
        terms = self.slot_terms(context)
        # Slots do not read the tokens' keys, so no keys are needed; nor is the first key's channel, where theirs are 0.
        query, nothing = self.similarity(self._tempered(query, context)), query[:, :, :0]
        return MapScores(query, nothing, context.scaling, context.visibility, terms).slot_logits(
            slice(0, query.shape[2])
        )

    def slot_terms(self, context: Context) -> tuple[SlotTerms, ...]:
        """Key, logit and value of each slot, as they are now."""
        terms: list[SlotTerms] = []
        for slot in self.slot_modules:
            made = slot(context)
            terms += made if isinstance(made, tuple) else (made,)
        return tuple(terms)

    def bind(self, queries: int, keys: int, device: torch.device) -> Visibility:
        """The spec's own mask for the last `queries` of `keys` tokens."""
        return Visibility.of(self.spec.mask, queries, keys, device=device)

    def _taken(self, path: Path | str, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Taken:
        """The path of this call: fused kernels if possible, else as in `chosen`."""
        biased = context.bias is not None
        if path == "fused" or (path in ("auto", "fast") and query.device.type in fused.DEVICES):
            reason = fused.obstacle(self.spec, context.visibility, query, key, value, biased=biased)
            if reason is None:
                return "fused"
            if path == "fused":
                raise InputError(f"no fused path: {reason}")
        return chosen(self.spec, path, query.shape[2], biased=biased)

    def _attend(self, path: Taken, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Attended:
        if path == "sdpa":
            return Attended(self._by_sdpa(query, key, value, context))
        if path == "fused":
            normalizer, visibility = self.spec.normalizer, context.visibility
            return Attended(fused.attention(query, key, value, normalizer, visibility, context.scaling))
        maps = list(self._scores(query, key, context))
        if path == "streamed":
            # One map: differences are of softmax maps, which are not streamed.
            mapped, differentiated = maps[0], cast(Differentiated, self.spec.normalizer)
            output = streamed.attention(
                mapped.query, mapped.key, wide(value), differentiated, context.visibility, context.scaling
            )
            return Attended(output.to(query.dtype))
        if path == "chunked":
            # The backward pass recomputes the chunks, and after a `functional_call` the module has other parameters:
            # everything learned is read here, once, before the chunks.
            values, factor = wide(value), self._factor()
            output = chunked.attention(lambda rows: self._rows_output(maps, factor, values, rows), query.shape[2])
            return Attended(output.to(query.dtype))
        everything = slice(0, query.shape[2])
        weights = [self._weights(scores, everything) for scores in maps]
        total = weights[0] if len(weights) == 1 else self._difference(*weights)
        output = aggregated(total.token, total.slot, wide(value), maps[0].slots)
        return Attended(output.to(query.dtype), total.token, total.slot, total.lse)

    def _by_sdpa(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        query, key = self._before_similarity(query, key, context)
        slots, visibility, scaling = self.slot_terms(context), context.visibility, context.scaling
        if self.difference is not None:
            # (A₁ − λ A₂) V = A₁ V − λ A₂ V: two calls of the kernel on the same values.
            first, second = (
                sdpa.attention(half_query, half_key, value, slots, visibility, scaling)
                for half_query, half_key in zip(halves(query), halves(key), strict=True)
            )
            return first - self.difference.factor().to(first.dtype) * second
        output = sdpa.attention(query, key, value, slots, visibility, scaling)
        # Outputs are linear in the weights. Of the normalizers that SDPA computes, `ScaledSoftmax` alone has an α.
        return output * alpha if (alpha := getattr(self.spec.normalizer, "alpha", None)) is not None else output

    def _scores(self, query: Tensor, key: Tensor, context: Context) -> tuple[MapScores, ...]:
        """The maps of this operation: one, or two if the weights are a difference."""
        query, key = self._before_similarity(wide(query), wide(key), context)
        decay = None
        if self.decay is not None and context.carried is not None:
            # Sums over all keys, made once: chunks of queries only slice them.
            decay = forgotten(context.carried, context.visibility)
        slots = self.slot_terms(context)
        pairs = [(query, key)]
        if self.difference is not None:
            pairs = list(zip(halves(query), halves(key), strict=True))
        return tuple(
            MapScores(
                self.similarity(q), self.similarity(k), context.scaling, context.visibility, slots, decay, context.bias
            )
            for q, k in pairs
        )

    def _before_similarity(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        # Temperature first: the first key's logit is a further channel of the query, which it must not scale.
        query = self._tempered(query, context)
        if self.first_key is not None:
            query, key = self.first_key(query, key, context.visibility, context.scaling)
        return query, key

    def _tempered(self, query: Tensor, context: Context) -> Tensor:
        return query if self.temperature is None else self.temperature(query, context.visibility.counted())

    def _weights(self, scores: MapScores, rows: slice) -> Weights:
        """Weights of these rows on all keys."""
        score_rows, normalizer, slots = scores.rows(rows), self.spec.normalizer, self.slots
        weights = normalizer.weights(score_rows.scores, score_rows.visible, score_rows.count)
        lse = (
            normalizer.log_partition(score_rows.scores, score_rows.visible) if isinstance(normalizer, Softmax) else None
        )
        token = weights[..., slots:]
        # `scores.rows` stops at the reach of these queries; keys outside have weight 0.
        if (missing := scores.key.shape[2] - token.shape[-1]) > 0:
            token = torch.nn.functional.pad(token, (score_rows.keys.start, missing - score_rows.keys.start))
        return Weights(token, weights[..., :slots], lse)

    def _rows_output(self, maps: list[MapScores], factor: Tensor | None, value: Tensor, rows: slice) -> Tensor:
        """The output of these rows, from the keys within their reach."""
        parts = []
        for scores in maps:
            score_rows = scores.rows(rows)
            parts.append(self.spec.normalizer.weights(score_rows.scores, score_rows.visible, score_rows.count))
        weights = parts[0]
        if factor is not None:
            weights = weights - factor * parts[1]
        slot, token = weights[..., : self.slots], weights[..., self.slots :]
        return aggregated(token, slot, value[:, :, maps[0].visibility.reach(rows)], maps[0].slots)

    def _factor(self) -> Tensor | None:
        """λ of a difference."""
        return None if self.difference is None else self.difference.factor()

    def _difference(self, first: Weights, second: Weights) -> Weights:
        factor = self._factor()
        assert factor is not None
        return Weights(first.token - factor * second.token, first.slot - factor * second.slot)


def operation_of(layer: nn.Module) -> Operation | None:
    """The operation of an attention layer; None if it has none.

    PEFT's `modules_to_save=["operation"]` replaces it by a wrapper with the original and a copy per adapter: then this
    is the copy of the active adapter, or the original while adapters are disabled. Call it again at every use.
    """
    held: Any = getattr(layer, "operation", None)
    if (copies := getattr(held, "modules_to_save", None)) is not None:
        active = [] if held.disable_adapters else [name for name in held.active_adapters if name in copies]
        held = copies[active[0]] if active else held.original_module
    return held if isinstance(held, Operation) else None
