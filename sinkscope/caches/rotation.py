"""How a model rotates its cached keys by position, measured rather than assumed.

One forward pass of single-token rows at different positions: each row attends to itself alone, so what a layer caches
differs between rows by the rotation only. Which channels are rotated, in which pairs, how fast and in which direction
is fitted among exact candidates; a model that fits none is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from transformers import DynamicCache

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    device_of,
    evaluating,
    family,
    parameters,
    sink_tokens,
    text_config,
    unobserved,
    unwrapped,
    with_cache,
)

Layout = Literal["half", "interleaved"]
PLACES = (0, 1, 2, 3, 5, 17, 40, 41, 1009, 8191, 65521)  # distant ones separate slow frequencies
OWN_CACHES = ("minimax", "recurrent_gemma")
ALIBI = ("bloom", "mpt")  # a bias linear in a key's index among the kept ones, which is what streaming needs
BIASES = ("alibi", "relative_t5", "relative_paper")  # of lab models
DEPENDS_ON_LENGTH = ("dynamic", "longrope")
BASES = (10000.0, 500000.0, 1000000.0)


@dataclass(frozen=True)
class Rotation:
    """A rotation of channel pairs by position: pair i is rotated by position · frequencies[i] (Su et al. 2021).

    With z_i the complex number whose parts are the two channels of pair i, x at position p holds z_i · exp(i p f_i).
    `start`: the first of the 2n rotated channels, for n frequencies in radians per position, negative if the model
    rotates the other way. `layout`: pair i is channels (i, i + n) for "half", (2i, 2i + 1) for "interleaved", counted
    from `start`.
    """

    start: int
    frequencies: tuple[float, ...]
    layout: Layout

    @property
    def width(self) -> int:
        """Number of rotated channels."""
        return 2 * len(self.frequencies)

    def turn(self, x: Float[Tensor, "*rows dim"], by: Num[Tensor, "..."]) -> Float[Tensor, "*rows dim"]:
        """x rotated forward by so many positions; `by` is broadcast to x.shape[:-1] and may be negative or fractional.

        Angles are computed in fp64, so they are exact for any position; the rest is fp32, or fp64 for an fp64 x.
        """
        angles = by.to(torch.float64)[..., None] * self._on(x.device)
        kind = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angles.cos().to(kind), angles.sin().to(kind)
        # The clone keeps the other channels as they are, and lets the second `copy_` read the unrotated `real`.
        turned = x.clone()
        real, imaginary = self.pairs(x.to(kind))
        new_real, new_imaginary = self.pairs(turned)
        new_real.copy_(real * cos - imaginary * sin)
        new_imaginary.copy_(imaginary * cos + real * sin)
        return turned

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the two channels of each pair, (*rows, n) each."""
        rotated = x[..., self.start : self.start + self.width]
        half = self.width // 2
        if self.layout == "half":
            return rotated[..., :half], rotated[..., half:]
        return rotated[..., 0::2], rotated[..., 1::2]

    @cached_property
    def _fp64(self) -> Tensor:
        # Cached across modes: autograd could not save an inference tensor later.
        with torch.inference_mode(False):
            return torch.tensor(self.frequencies, dtype=torch.float64)

    def _on(self, device: torch.device) -> Tensor:
        return self._fp64.to(device)


@dataclass(frozen=True)
class LayerRotation:
    """How a layer rotates what it caches as keys and as values; None for no rotation.

    Latent attention caches its rotated part as values.
    """

    keys: Rotation | None
    values: Rotation | None


def measured_rotations(model: nn.Module) -> dict[int, LayerRotation]:
    """The rotations of every caching layer, by the layer's index in the cache.

    Raises `UnsupportedModelError`, by name, for a model whose cached keys depend on position in any way other than a
    fixed rotation (absolute positions, relative biases, frequencies that change with the length), and for one that
    brings its own cache.
    """
    model = unwrapped(model)
    _check(model)
    cached = _cached(unobserved(model))  # not counted by observers, not changed by editors
    rotations: dict[int, LayerRotation] = {}
    known: list[Rotation] = []
    for index, (keys, values) in sorted(cached.layers.items()):
        fits = [_fit(model, cached.places, rows, known, index) for rows in (keys, values)]
        known += [rotation for rotation in fits if rotation is not None and rotation not in known]
        rotations[index] = LayerRotation(*fits)
    return rotations


class _Recorder(DynamicCache):
    """A cache that records what it is given, (row, heads, dim) of keys and values per layer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.recorded: list[tuple[int, Tensor, Tensor]] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self.recorded.append((layer_idx, key_states[:, :, 0].detach(), value_states[:, :, 0].detach()))
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


@dataclass(frozen=True, eq=False)
class _Cached:
    places: Float[Tensor, " row"]
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


def _check(model: nn.Module) -> None:
    name, config = family(model), text_config(model)
    if config is None:
        raise UnsupportedModelError(f"family '{name}' has no configuration of a text decoder")
    if name in OWN_CACHES:
        raise UnsupportedModelError(f"family '{name}' brings a cache of its own")
    # MPT and BLOOM count keys themselves; other families without position_ids use positions that cannot be measured.
    if name not in ALIBI and not _takes_positions(model):
        raise UnsupportedModelError(
            f"family '{name}' takes no position_ids, so how its keys depend on position cannot be measured"
        )
    if name not in ALIBI and getattr(config, "alibi", False):
        raise UnsupportedModelError(f"family '{name}' with ALiBi sizes its bias by tokens seen, not kept")
    if hasattr(config, "rel_extent") or getattr(config, "position_bias_num_buckets", None):
        raise UnsupportedModelError(f"family '{name}' adds a learned bias by distance, made for the tokens seen")
    if sink_tokens(model):
        raise UnsupportedModelError("the model puts learned sink tokens before every text: not streamed yet")
    if getattr(config, "position", None) in BIASES:
        raise UnsupportedModelError(
            f"position '{config.position}' is a bias by distance in the text, dropped tokens included; "
            "what works: rotary, none"
        )
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
            if kind in DEPENDS_ON_LENGTH:
                raise UnsupportedModelError(
                    f"rope_type '{kind}' changes the frequencies with the length, so keys of one pass do not fit those "
                    "of the next; what works: default, linear, llama3, yarn"
                )


def _takes_positions(model: nn.Module) -> bool:
    return "position_ids" in parameters(model).parameters


@torch.no_grad()
def _cached(model: nn.Module) -> _Cached:
    """What each layer caches of one token by itself at each of the places."""
    config = text_config(model)
    limit = getattr(config, "max_position_embeddings", None)
    # Beyond the limit, a table by position (learned embeddings, GPT-J's sines) has no row.
    near = [place for place in PLACES if not isinstance(limit, int) or place < limit]
    places = torch.tensor(near, device=device_of(model))
    # Not padding: its embedding may be zero, and keys of zeros look the same at every position.
    token = next(token_id for token_id in (1, 2) if token_id != getattr(config, "pad_token_id", None))
    inputs = {"input_ids": torch.full((len(near), 1), token, device=places.device)}
    if _takes_positions(model):
        inputs["position_ids"] = places[:, None]
    recorder = _Recorder(config)
    try:
        with evaluating(model):
            model(**inputs, use_cache=True, **with_cache(model, recorder))
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"family '{family(model)}' does not run on single tokens at given positions, so how its keys depend on "
            f"them cannot be measured: {str(error).splitlines()[0]}"
        ) from error
    if not recorder.recorded:
        raise UnsupportedModelError(f"family '{family(model)}' does not keep its keys in the cache that it is given")
    indices = [index for index, _, _ in recorder.recorded]
    if len(set(indices)) < len(indices):
        raise UnsupportedModelError(f"family '{family(model)}' caches more than once per layer")
    return _Cached(places.double(), {index: (keys, values) for index, keys, values in recorder.recorded})


def _fit(model: nn.Module, places: Tensor, rows: Tensor, known: list[Rotation], layer: int) -> Rotation | None:
    """The rotation that takes the first row to every other one; None if the rows are equal."""
    if not bool(torch.isfinite(rows).all()):
        raise InputError(f"the model computes NaN or infinity for a single token, first in layer {layer}")
    tolerance = 4 * torch.finfo(rows.dtype).eps + 1e-4 + 2.5e-7 * places  # the model's own angles are fp32
    rows = rows.to(torch.float64)
    # Errors are relative to the length of a pair, which a rotation keeps; one of its channels alone may be near 0.
    # The floor is for pairs that are near 0 as a whole, and `tiny` for keys of zeros.
    floor = 0.05 * rows[0].square().mean().sqrt() + torch.finfo(torch.float32).tiny

    def misfit(rotation: Rotation | None) -> float:
        expected = rows[:1].expand_as(rows)
        amplitude = rows[0].abs().clone()
        if rotation is not None:
            expected = rotation.turn(expected.contiguous(), places[:, None])
            for channels in rotation.pairs(amplitude):
                channels.copy_(torch.hypot(*rotation.pairs(rows[0])))
        error = (expected - rows).abs() / (amplitude + floor)
        return float((error.amax((-2, -1)) / tolerance).max())

    if misfit(None) <= 1:
        return None
    for candidates in (iter(known), _candidates(model, rows.shape[-1])):
        # The best fit: in half precision, several may be within rounding.
        # The index breaks ties, since rotations cannot be ordered.
        errors = ((misfit(candidate), place, candidate) for place, candidate in enumerate(candidates))
        fits = [error for error in errors if error[0] <= 1]
        if fits:
            return min(fits)[2]
    raise UnsupportedModelError(
        f"family '{family(model)}': what layer {layer} caches depends on position, but is not rotated by it: absolute "
        "positions that reach the residual stream, or a rotation of another kind; what works: families with rotary "
        "positions, ALiBi or none (Llama, Mistral, Qwen, Gemma, Phi, GPT-NeoX, Falcon, DeepSeek, BLOOM …)"
    )


def _candidates(model: nn.Module, dim: int) -> Iterator[Rotation]:
    """Every rotation of `dim` channels by the model's own frequencies or by powers of a common base."""
    for frequencies in dict.fromkeys((*_buffers(model), *_powers(model, dim))):
        if (width := 2 * len(frequencies)) > dim:
            continue
        # Partial rotations: the first channels (GPT-NeoX, Phi) or the last ones (DeepSeek-V4). nanochat's sign is −1.
        for start in dict.fromkeys((0, dim - width)):
            for layout in ("half", "interleaved"):
                for sign in (1.0, -1.0):
                    yield Rotation(start, tuple(sign * one for one in frequencies), layout)


def _buffers(model: nn.Module) -> Iterator[tuple[float, ...]]:
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq") and buffer.ndim == 1:
            yield tuple(buffer.double().tolist())


def _powers(model: nn.Module, dim: int) -> Iterator[tuple[float, ...]]:
    """theta^(−2i/w) for the widths named in the configuration, for models that store no frequencies (GPT-J)."""
    config = text_config(model)
    widths = (getattr(config, name, None) for name in ("rotary_dim", "qk_rope_head_dim", "head_dim"))
    theta = getattr(config, "rope_theta", None)
    bases = dict.fromkeys((theta, *BASES) if isinstance(theta, float | int) else BASES)
    for width in dict.fromkeys((*widths, dim)):
        if isinstance(width, int) and 0 < width <= dim and width % 2 == 0:
            for base in bases:
                yield tuple(float(base) ** (-2 * i / width) for i in range(width // 2))
