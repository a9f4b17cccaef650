"""Position schemes of the lab model: how a token's position enters it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sinkscope.attention import Learned, Visibility
from sinkscope.errors import InputError, unknown


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """b[q, k] = f(position(q) − position(k)), a few rows at a time: no T×T tensor is ever written out.

    `of` maps distances (batch, rows, key) to biases (batch, heads, rows, key) in fp32; a batch of one, and one head
    where all agree, broadcast. The operation adds them to the scaled scores.
    """

    query: Int[Tensor, "#batch query"]
    key: Int[Tensor, "#batch key"]
    of: Callable[[Tensor], Tensor]

    def rows(self, rows: slice) -> Float[Tensor, "#batch #heads rows key"]:
        """The biases of the queries in `rows` on every key."""
        return self.of(self.query[:, rows, None] - self.key[:, None, :])


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Positions of the queries of a pass and of all keys, including cached ones.

    A token's position is its index among the real tokens of its row, from 0. Sink tokens have positions −n … −1, so
    real tokens do not move, and every relative scheme sees one sequence. With `restart` the count starts anew in each
    document. A caller's `position_ids` replace the queries' positions; they say nothing about the keys in a cache, so
    `continued` keeps the positions that the keys' count would have given the queries.
    """

    query: Int[Tensor, "#batch query"]
    key: Int[Tensor, "#batch key"]
    visibility: Visibility
    continued: Int[Tensor, "#batch query"] | None = None

    @classmethod
    def of(
        cls, visibility: Visibility, position_ids: object = None, *, sinks: int = 0, restart: bool = False
    ) -> TokenPositions:
        """Positions of the tokens that `visibility` binds, of which the first `sinks` are sink tokens.

        `position_ids` (batch or 1, position): of the other tokens of this pass. Raises `InputError` for another shape.
        """
        tokens, queries = visibility.key, visibility.query.count
        restarts = restart and tokens.document is not None
        key = tokens.restarted(sinks) if restarts else tokens.order - sinks
        query = key[:, tokens.count - queries :]
        if position_ids is None:
            return cls(query, key, visibility)
        # Without a cache the keys are the queries' own tokens, so the caller's positions are theirs too.
        if queries == tokens.count:
            positions = _after_sinks(position_ids, queries - sinks, sinks)
            return cls(positions, positions, visibility)
        # With a cache, sink tokens are among the cached keys: none are in front of this pass.
        return cls(_after_sinks(position_ids, queries, 0), key, visibility, continued=query)

    def known(self) -> TokenPositions:
        """These positions, for a scheme that needs the keys' positions.

        Raises `InputError` if `position_ids` do not continue those of the cached keys.
        """
        if self.continued is not None and not torch.compiler.is_compiling():
            # Cached keys are rotated or biased by positions counted from 0, and the cache keeps keys, not positions.
            # Under a position bias, queries counted otherwise would be at wrong distances from them.
            wrong = self.query != self.continued
            if (valid := self.visibility.query.valid) is not None:
                wrong = wrong & valid
            if bool(wrong.any()):
                raise InputError(
                    "position_ids do not continue the positions of the cached keys, which a cache does not store: "
                    "leave position_ids out, or run without a cache"
                )
        return self


def _after_sinks(position_ids: object, count: int, sinks: int) -> Int[Tensor, "#batch query"]:
    """The caller's positions of `count` real tokens, with those of the sink tokens in front."""
    if not isinstance(position_ids, Tensor) or position_ids.ndim != 2 or position_ids.shape[1] != count:
        shape = tuple(position_ids.shape) if isinstance(position_ids, Tensor) else type(position_ids).__name__
        raise InputError(f"position_ids {shape}: expected (batch or 1, {count}), one for each token of this pass")
    before = torch.arange(-sinks, 0, device=position_ids.device).expand(len(position_ids), -1)
    return torch.cat([before, position_ids.long()], 1)


Rotation = tuple[Tensor, Tensor]  # cos and sin, each (batch, position, rotated channels / 2)


class PositionScheme(nn.Module):
    """A scheme fills one of three roles: it adds to embeddings, rotates queries and keys, or biases scores.

    This base fills none, which is the scheme `none` (NoPE): only the mask tells positions apart (Gu et al. 2025, Table
    3).
    """

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        """The embeddings of real tokens with their positions added; sink tokens have none and stay as they are."""
        return hidden

    def rotation(self, positions: TokenPositions) -> Rotation | None:
        """The rotation of queries and new keys, in fp32; None without one."""
        return None

    def bias(self, positions: TokenPositions) -> DistanceBias | None:
        """The bias added to scores, bound to these tokens; None without one.

        Raises `InputError` if the keys' positions are not known.
        """
        return None


BASE = 10000.0


class LearnedTable(PositionScheme):
    """x_t + P[t] with a learned table P (length, width), drawn as every embedding: N(0, 2 / (5 · width)).

    Source: sail-sg/Attention-Sink, lit_gpt/model_pos.py, "learnable".
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        """Raises `InputError` for a position beyond the table."""
        length = self.table.num_embeddings
        if not torch.compiler.is_compiling() and int(positions.max()) >= length:
            raise InputError(
                f"a token is at position {int(positions.max())}, but learned positions end at {length - 1} "
                "(max_position_embeddings)"
            )
        # Padding on the left has position −1, for which the table has no row; nothing reads what it gets.
        return hidden + self.table(positions.clamp(min=0)).to(hidden.dtype)


class Sinusoidal(PositionScheme):
    """x_t + [sin(t·w_0) … sin(t·w_(d/2−1)) | cos(t·w_0) …] with w_i = 10000^(−2i/d), unscaled.

    The halves are concatenated, not interleaved as in Vaswani et al. 2017: so does the paper's code (sail-sg/
    Attention-Sink, lit_gpt/model_pos.py, "absolute"). Row 0 is [0 … 0 | 1 … 1]. We compute in fp32
    and round once, where that code adds in bf16. Raises `InputError` for an odd width. Source: Gu et al. 2025, Table 3.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        check_even_width(width)
        self.width = width

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        return hidden + sinusoids(positions, self.width).to(hidden.dtype)


def sinusoids(positions: Int[Tensor, "*batch position"], width: int) -> Float[Tensor, "*batch position width"]:
    """[sin | cos] of position · 10000^(−2i/width), fp32."""
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angle = positions[..., None].float() * BASE**-exponent
    return torch.cat([angle.sin(), angle.cos()], -1)


def check_even_width(width: int) -> None:
    """Raises `InputError` for an odd width, with unequal halves."""
    if width % 2:
        raise InputError(f"sinusoidal positions need an even hidden_size, got {width}")


# Options of each rope type: those it needs, and those it may have.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
}
_BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Which channels rotate, and their frequencies.

    The first `fraction` of a head's `head_dim` channels rotate, the others stay fixed. `scaling` is transformers' rope
    dict: {"rope_type": "linear" | "llama3" | "yarn", "factor": …}; `length` is the context, from which the last two
    compute unless they name `original_max_position_embeddings`. Types whose frequencies change with the length of the
    text (dynamic, longrope) are refused: cached keys would have been rotated by other angles than later queries. Raises
    `InputError`.
    """

    head_dim: int
    length: int
    theta: float = 10000.0
    fraction: float = 1.0
    scaling: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise InputError(f"rope_theta = {self.theta}: must be positive")
        if not 0 < self.fraction <= 1:
            raise InputError(f"rope_fraction = {self.fraction}: must be above 0 and at most 1")
        turned = self.head_dim * self.fraction
        if turned != int(turned) or int(turned) % 2 or turned < 2:
            raise InputError(
                f"rotary positions turn pairs of channels: rope_fraction = {self.fraction:g} of a head width of "
                f"{self.head_dim} is {turned:g}, not an even number"
            )
        if self.scaling is not None:
            _check(self.scaling)

    @property
    def channels(self) -> int:
        """How many channels of a head rotate."""
        return int(self.head_dim * self.fraction)

    @property
    def parameters(self) -> dict[str, Any]:
        """The same as transformers' rope parameters, without the fraction."""
        return {"rope_type": "default", **(self.scaling or {}), "rope_theta": self.theta}

    def frequencies(self) -> tuple[Float[Tensor, "half"], float]:
        """Angles per position, theta^(−2i/channels) or as scaled, and the factor on cos and sin (yarn's is not 1)."""
        if self.scaling is None:
            exponent = torch.arange(0, self.channels, 2, dtype=torch.float32, device="cpu") / self.channels
            return self.theta**-exponent, 1.0
        # One head exactly as wide as the rotating channels: from a whole head's width transformers would compute other
        # frequencies under a partial rotation.
        like = LlamaConfig(
            hidden_size=self.channels,
            num_attention_heads=1,
            head_dim=self.channels,
            max_position_embeddings=self.length,
            rope_parameters=self.parameters,
        )
        with torch.device("cpu"):  # also while a model is laid out on the meta device, where there are no numbers
            return ROPE_INIT_FUNCTIONS[self.scaling["rope_type"]](like)


class Rotary(PositionScheme):
    """Pair (i, i + d/2) of the d turning channels turns by position · theta^(−2i/d), in Llama's layout.

    Source: Su et al. 2021; partial rotation as in GPT-NeoX; scaled frequencies are transformers' own.
    """

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        frequencies, self.factor = rope.frequencies()
        self.frequencies: tuple[float, ...] = tuple(frequencies.tolist())  # no buffer: nothing to load or to lose

    def rotation(self, positions: TokenPositions) -> Rotation:
        frequency = torch.tensor(self.frequencies, device=positions.query.device)
        # fp32 whatever the model's dtype: bf16 has no odd integers above 256, so neighbors would share an angle.
        angle = positions.query[..., None].float() * frequency
        # The factor multiplies queries and keys alike, so scores get its square, as YaRN intends.
        return angle.cos() * self.factor, angle.sin() * self.factor


def rotate(
    x: Float[Tensor, "batch heads position dim"], rotation: Rotation
) -> Float[Tensor, "batch heads position dim"]:
    """Turn each pair of channels by its angle; dot products then depend only on the difference of positions.

    A rotation of fewer channels leaves the last ones as they are.
    """
    # (batch, 1, position, channels / 2): all heads turn by the same angles, which were computed in fp32.
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rotation)
    turning, still = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], -1)
    first, second = turning.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, still], -1)


def _check(scaling: Any) -> None:
    """Raises `InputError` for a rope dict that transformers would misread or take with a mere warning."""
    if not isinstance(scaling, Mapping) or "rope_type" not in scaling:
        raise InputError(f"rope_scale = {scaling!r}: expected a dict with 'rope_type', one of {', '.join(SCALINGS)}")
    kind = scaling["rope_type"]
    if kind in _BY_LENGTH:
        raise InputError(
            f"rope_scale: '{kind}' changes its frequencies with the length of the text, so that cached keys no "
            f"longer fit: choose from {', '.join(SCALINGS)}"
        )
    if kind not in SCALINGS:
        raise unknown("rope_type", str(kind), SCALINGS)
    needed, further = SCALINGS[kind]
    for name in scaling:
        if name not in ("rope_type", *needed, *further):
            raise unknown(f"option of rope_scale '{kind}'", str(name), (*needed, *further))
    for name in needed:
        if name not in scaling:
            raise InputError(f"rope_scale '{kind}' needs '{name}'")
    for name, value in scaling.items():
        if name != "rope_type" and (not isinstance(value, Real) or isinstance(value, bool) or not float(value) > 0):
            raise InputError(f"rope_scale.{name} = {value!r}: expected a positive number")
    if scaling["factor"] < 1:
        raise InputError(f"rope_scale.factor = {scaling['factor']}: at least 1")


BUCKETS, REACH = 32, 128


class RelativeT5(PositionScheme, Learned):
    """b[h, q, k] = table[bucket(q − k), h]: learned per head, one table for all layers, drawn N(0, 1 / width).

    Source: Raffel et al. 2020. Buckets are one-sided in a causal model and two-sided in a bidirectional one. T5 does
    not scale its scores; here the bias is added to scaled ones, as in the rest of the lab model.
    """

    def __init__(self, heads: int, width: int, is_causal: bool) -> None:
        super().__init__()
        self.width, self.is_causal = width, is_causal
        self.table = nn.Parameter(torch.empty(BUCKETS, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.width**-0.5)

    def bias(self, positions: TokenPositions) -> DistanceBias:
        return _bound(positions, partial(_looked_up, self.table, not self.is_causal))


class RelativePaper(PositionScheme):
    """b[q, k] = +bucket(q − k), not learned, the same for all heads and layers: it grows toward the far past.

    Source: sail-sg/Attention-Sink, lit_gpt/model_relpos.py, "relative", which the paper calls T5's. In a
    bidirectional model, which that code does not have, it is bucket(|q − k|).
    """

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def bias(self, positions: TokenPositions) -> DistanceBias:
        return _bound(positions, partial(_growing, not self.is_causal))


class Alibi(PositionScheme):
    """b[h, q, k] = −m_h · |q − k| with fixed slopes m_h. Source: Press et al. 2022.

    A key after its query (prefix masks, bidirectional models) is as far away as one before it.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, positions: TokenPositions) -> DistanceBias:
        return _bound(positions, partial(_sloped, alibi_slopes(self.heads).to(positions.query.device)))


def alibi_slopes(heads: int) -> Float[Tensor, "heads"]:
    """2^(−8h/H) for h = 1 … H where H is a power of two.

    Otherwise those of the next lower power n, then every other slope of 2n, which lie between them.
    """
    # log2 is exact at powers of two, so none of them is taken for the next lower one.
    power = 2 ** int(math.log2(heads))
    between = torch.arange(1, 2 * power + 1, 2)[: heads - power] / (2 * power)
    return torch.cat([2.0 ** (-8 * torch.arange(1, power + 1) / power), 2.0 ** (-8 * between)])


def bucket(distance: Int[Tensor, "*n"], *, two_sided: bool = False) -> Int[Tensor, "*n"]:
    """T5's bucket of q − k: 32 buckets, of which half count single steps and half grow by powers up to distance 128.

    One-sided: keys after the query share bucket 0. Two-sided: half of the buckets for each side, those of keys after
    the query last.
    """
    buckets, offset = BUCKETS, torch.zeros_like(distance)
    if two_sided:
        buckets //= 2
        offset = buckets * (distance < 0)
        distance = distance.abs()
    # From d = steps on: steps + ⌊log(d / steps) / log(128 / steps) · (buckets − steps)⌋. `where` computes both
    # branches, so the logarithm needs d ≥ 1 also where d < steps.
    steps = buckets // 2
    growth = (distance.clamp(min=1).float() / steps).log() / math.log(REACH / steps)
    far = (steps + (growth * (buckets - steps)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < steps, distance.clamp(min=0), far)


def _bound(positions: TokenPositions, of: Callable[[Tensor], Tensor]) -> DistanceBias:
    known = positions.known()
    return DistanceBias(known.query, known.key, of)


def _looked_up(
    table: Float[Tensor, "buckets heads"], two_sided: bool, distance: Int[Tensor, "batch rows key"]
) -> Float[Tensor, "batch heads rows key"]:
    # (batch, rows, key, heads) → (batch, heads, rows, key)
    return table[bucket(distance, two_sided=two_sided)].movedim(-1, 1).float()


def _growing(absolute: bool, distance: Int[Tensor, "batch rows key"]) -> Float[Tensor, "batch 1 rows key"]:
    return bucket(distance.abs() if absolute else distance)[:, None].float()


def _sloped(
    slopes: Float[Tensor, "heads"], distance: Int[Tensor, "batch rows key"]
) -> Float[Tensor, "batch heads rows key"]:
    return -slopes[:, None, None] * distance.abs()[:, None]
