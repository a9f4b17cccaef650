"""VAR: weight on visual sinks moves to the other tokens of an image (Kang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import OpenStream, family, unwrapped
from sinkscope.interventions.finding import largest_activations
from sinkscope.interventions.intervention import Intervention, whole
from sinkscope.interventions.reweigh.call import Call
from sinkscope.interventions.reweigh.head_changes import editing_heads, heads_of, opening, others_in
from sinkscope.interventions.reweigh.reweigh import check_factor

NAMES = ("image_token_id", "image_token_index")  # of a configuration


def image_token(model: nn.Module) -> int | None:
    """The id that represents a part of an image in a model's texts; None if its configuration names none."""
    config = getattr(model, "config", None)
    return next((token for name in NAMES if isinstance(token := getattr(config, name, None), int)), None)


FIRST_LAYERS = 2  # without sinks
EPSILON = 1e-6  # per image token, in the share of visual sinks, as in the authors' code
NORM = 1e-6
LARGEST = 16  # largest activations, whose dimensions are used


@dataclass(frozen=True)
class VisualRedistribution(Intervention):
    """In image-centric heads, A'[t, k] = p A[t, k] for sinks k, and the freed weight goes to the image's other tokens.

    A token is a sink of a layer if max_d |x_d| / rms(x) > τ for the layer's input x and d in `dimensions`; a visual one
    if it belongs to the image (`image_token`). A head is image-centric for a query t after the image if the visual
    sinks have at most ρ of its weight on the image, and the image has at least `least` of its whole weight. There,
    visual sinks and text sinks keep p of their weight, and Ω_t = (1 − p) Σ_sinks A[t, k] is distributed over the
    image's other tokens in proportion: A'[t, j] = A[t, j] (1 + Ω_t / Σ_others A). Layers without a visual sink, the
    first two and the last stay unchanged.

    Computed by the layer's own function on marks and parts of the values: three more runs, no T × T map. Observers of a
    layer read its weights before this change. `seed`: as many random tokens of the image and of the text instead of the
    sinks: the control. Source: Kang et al. 2025, with the constants of their code for LLaVA-1.5 (their dimensions for
    Llama-2-7B are 1415 and 2533; `of` finds those of another model). As here, they leave out the norm's gain in the
    comparison; they take one sample without padding.
    """

    dimensions: Sequence[Any]
    image_token: int
    tau: float = 20.0
    rho: float = 0.5
    least: float = 0.2
    p: float = 0.6
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimensions", whole("dimensions", self.dimensions))
        for name in ("tau", "rho", "least", "p"):
            check_factor(name, getattr(self, name))
        if max(self.rho, self.least, self.p) > 1:
            raise InputError(f"rho = {self.rho}, least = {self.least}, p = {self.p}: expected shares from 0 to 1")

    @classmethod
    def of(
        cls, model: nn.Module, inputs: Any, count: int = 2, batch_size: int = 8, **options: Any
    ) -> VisualRedistribution:
        """With the dimensions of the `count` largest activations, and the configuration's image token."""
        model = unwrapped(model)
        token = image_token(model)
        if token is None:
            raise UnsupportedModelError(
                f"family '{family(model)}': its configuration names no image token (looked for {', '.join(NAMES)})"
            )
        activations = largest_activations(model, inputs, LARGEST, batch_size)
        dimensions = list(dict.fromkeys(activation.entry[2] for activation in activations))[:count]
        return cls(tuple(dimensions), token, **options)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = opening(model, stack)
        layers = opened.stream.layers
        if len(layers) != len(opened.stream.blocks):
            raise UnsupportedModelError(
                f"family '{opened.stream.family}': {len(layers)} attention layers in {len(opened.stream.blocks)} "
                "blocks, so it is unknown which stream a layer reads"
            )
        chosen = layers[FIRST_LAYERS:-1]
        if not chosen:
            raise InputError(
                f"{len(layers)} layers: the first {FIRST_LAYERS} and the last stay unchanged, so none is left"
            )
        state = _Seen(self, opened)
        for number in range(FIRST_LAYERS, len(layers) - 1):
            # What layer n reads is the input of the block that outputs depth n + 1.
            opened.read_input(number + 1, partial(state.note, layers[number]))
        heads = heads_of(model, opened, None)
        editing_heads(opened, stack, {module: heads[module] for module in chosen}, state.change)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> VisualRedistribution:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))


@dataclass(eq=False)
class _Seen:
    """The rows so far: which columns hold the image, and which are sinks of each layer."""

    of: VisualRedistribution
    opened: OpenStream
    images: Bool[Tensor, "batch column"] | None = None
    sinks: dict[nn.Module, Bool[Tensor, "batch column"]] = field(default_factory=dict)

    def note(self, module: nn.Module, hidden: Float[Tensor, "batch position width"]) -> None:
        """Note the sinks of a layer, and once per pass where the image is."""
        if max(self.of.dimensions) >= hidden.shape[-1]:
            raise InputError(
                f"dimension {max(self.of.dimensions)} does not exist: the stream has 0 to {hidden.shape[-1] - 1}"
            )
        ids = self.opened.passes.now.forward.ids
        if ids is None or ids.shape[1] != hidden.shape[1]:
            raise UnsupportedModelError(
                f"family '{self.opened.stream.family}': the tokens of an image are recognized in input_ids, one per "
                "token of the stream, and there are none"
            )
        real = self.opened.at(None, hidden).expand(hidden.shape[:2])
        image = (ids.to(hidden.device) == self.of.image_token) & real
        sinks = sinks_of(hidden, tuple(self.of.dimensions), self.of.tau) & real
        if self.of.seed is not None:
            of_image, of_text = (others_in(self.opened, sinks, kind, self.of.seed) for kind in (image, real & ~image))
            sinks = of_image | of_text
        before = None if self.opened.seen == 0 else self.sinks.get(module)
        if self.opened.seen and (before is None or before.shape != (len(hidden), self.opened.seen)):
            raise InputError("VAR reads the image where rows begin: apply it before the prompt is read")
        self.sinks[module] = sinks if before is None else torch.cat([before, sinks], 1)
        if self.images is None or self.opened.seen == 0:
            self.images = image
        # Only the first layer of a pass adds to it: for the others it covers this pass already.
        elif self.images.shape[1] == self.opened.seen:
            self.images = torch.cat([self.images, image], 1)

    def change(self, call: Call) -> Float[Tensor, "batch heads query value_dim"]:
        keys, total = call.key.shape[2], self.opened.seen + call.query.shape[2]
        assert self.images is not None
        first = max(0, total - keys)
        image, sinks = (_columns(mask, first, keys) for mask in (self.images, self.sinks[call.module]))
        visual, others = image & sinks, image & ~sinks
        if not bool((visual.any(-1) & others.any(-1)).any()):
            return call.output
        places = torch.arange(total, device=image.device)
        # The last column of a row's image, and which queries come after it: (batch, query).
        last = places.where(_columns(self.images, 0, total), -1).amax(-1)
        after = places[self.opened.seen :] > last[:, None]
        mass, on_visual, on_others = call.masses(sinks, visual, others)
        on_image = on_visual + on_others
        share = on_visual / (on_image + EPSILON * image.sum(-1)[:, None, None])
        centric = (share <= self.of.rho) & (on_image >= self.of.least) & (on_others > 0)
        centric = centric & after[:, None] & visual.any(-1)[:, None, None]
        # Rows without weight on the others are not centric; the fill keeps them finite. Then
        # o' = o − (1 − p) o_sinks + (Ω / Σ_others A) o_others.
        freed = (1 - self.of.p) * mass / on_others.masked_fill(on_others == 0, 1.0)
        changed = call.output - (1 - self.of.p) * call.part(sinks) + freed[..., None] * call.part(others)
        return torch.where(centric[..., None], changed, call.output)


def sinks_of(
    hidden: Float[Tensor, "batch position width"], dimensions: tuple[int, ...], tau: float
) -> Bool[Tensor, "batch position"]:
    """max_d |x_d| / rms(x) > τ over the given dimensions."""
    large = hidden.float()
    size = large.pow(2).mean(-1).add(NORM).rsqrt()
    return large[..., list(dimensions)].abs().amax(-1) * size > tau


def _columns(mask: Tensor, first: int, count: int) -> Tensor:
    """Columns first … first + count − 1; unknown ones are False."""
    return functional.pad(mask, (0, max(0, first + count - mask.shape[1])))[:, first : first + count]
