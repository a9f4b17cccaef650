"""vLLM's rounded caches, and which layers to leave whole in one that is not safe: `--kv-cache-dtype-skip-layers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Cache, DynamicCache

from sinkscope.caches.engines import VllmFp8
from sinkscope.caches.sizes import held_bytes
from sinkscope.checks.row import ADVISED, Row
from sinkscope.checks.section import Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.errors import InputError
from sinkscope.hooks import device_of, evaluating, text_config
from sinkscope.quantization import QuantizeCache, quantized_cache, rounded_layers, scheme_named
from sinkscope.trials import REFERENCE, Arm, Texts, ThroughCache, Trial, cached, run

DTYPES = ("fp8", "turboquant_4bit_nc", "turboquant_3bit_nc")
"""Of `--kv-cache-dtype`, the most bits first. TurboQuant leaves the first and last two layers whole by itself."""
COUNTS = (1, 2, 4, 8)  # layers that are left whole besides
DRAWS = 3  # of as many random layers


@dataclass(frozen=True)
class VllmCache:
    """A cache of vLLM on one model. `skip`: layers that are named to be left whole; `added`: those that vLLM adds."""

    dtype: str
    layers: int
    rounded: tuple[int, ...]
    skip: tuple[int, ...] = ()

    @classmethod
    def of(cls, dtype: str, model: nn.Module) -> VllmCache:
        """Raises `InputError` where the dtype leaves every layer of the model whole."""
        made = cls(dtype, int(text_config(model).num_hidden_layers), ())
        scheme = made._scheme(model).scheme
        return replace(made, rounded=tuple(rounded_layers(model, scheme)))

    @property
    def name(self) -> str:
        """Of its arm."""
        return f"vllm-{self.dtype}"

    @property
    def whole(self) -> list[int]:
        """The layers that are whole: the union of those that are named and those that vLLM adds."""
        rounded = set(self.rounded) - set(self.skip)
        return [layer for layer in range(self.layers) if layer not in rounded]

    def skipping(self, skip: Sequence[int]) -> VllmCache:
        """The same with these layers whole."""
        return replace(self, skip=tuple(sorted(skip)))

    def alone(self, layer: int) -> VllmCache:
        """The same with this layer alone rounded."""
        return self.skipping([other for other in self.rounded if other != layer])

    def arm(self, name: str, **options: Any) -> Arm:
        """It as an arm. A prompt sees itself rounded in fp8, and in full precision in TurboQuant."""
        if self.dtype == "fp8":
            rule = VllmFp8(skip=self.skip)
            return cached(name, rule.cache, facts=rule.describe(), **options)

        def make(model: nn.Module) -> Cache:
            made = self._scheme(model)
            return quantized_cache(model, made.keys, made.values, ends=made.ends, skip=self.skip)

        facts = {"scheme": self.dtype, "whole": self.whole}
        return cached(name, make, full_prompt=True, facts=facts, **options)

    def _scheme(self, model: nn.Module) -> QuantizeCache:
        made = scheme_named(self.dtype).make(model, {}, None)
        assert isinstance(made, QuantizeCache)
        return made


def vllm_caches(model: nn.Module) -> tuple[list[VllmCache], dict[str, str]]:
    """vLLM's caches on this model, and why others of its caches are none."""
    found, reasons = [], {}
    for dtype in DTYPES:
        try:
            found.append(VllmCache.of(dtype, model))
        except InputError as error:
            reasons[f"vllm-{dtype}"] = str(error)
    return found, reasons


def skip_rows(
    subject: CheckedModel, texts: TextSet, unsafe: VllmCache, progress: Progress | None
) -> tuple[Row, dict[str, Any]] | None:
    """The fewest layers left whole in a cache that is not safe, compared with random ones; None with too few layers.

    Each layer is rounded alone on the texts for choosing, and the dearest are left whole: the fewest, of 1, 2, 4 and 8,
    with which the cache is free or small there, else the most. That set, and as many random layers, are then scored
    on the other texts.
    """
    counts = [count for count in COUNTS if 2 * count <= len(unsafe.rounded)]
    if not counts:
        return None
    alone = [unsafe.alone(layer).arm(f"layer {layer}") for layer in unsafe.rounded]
    each = _run(subject, texts.choosing, alone, progress)
    costs = {layer: each.mean(f"layer {layer}").value for layer in unsafe.rounded}
    ranked = sorted(costs, key=lambda layer: -costs[layer])
    tried = _run(
        subject,
        texts.choosing,
        [unsafe.skipping(ranked[:count]).arm(f"{count} whole") for count in counts],
        progress,
    )
    count = next((count for count in counts if tried.word(f"{count} whole") in ADVISED), counts[-1])
    chosen = unsafe.skipping(ranked[:count])

    def control(draw: int, texts: Texts) -> Arm:
        # Random among the layers that were not chosen; `counts` leaves at least as many of them.
        others = np.random.default_rng([draw, count]).permutation(ranked[count:])[:count]
        return unsafe.skipping([int(layer) for layer in others]).arm(f"{count} random {draw}")

    name = f"{unsafe.name}-skip"
    arms = [unsafe.arm(unsafe.name, baseline=True), replace(chosen.arm(name), control=control)]
    trial = _run(subject, texts.ids, arms, progress, DRAWS)
    row = _row(trial, chosen, name, bytes_of(subject, texts, trial, name, chosen))
    facts = {"layers": list(chosen.skip), "whole": chosen.whole, "ranked": [[one, costs[one]] for one in ranked]}
    return row, {name: facts}


def _run(
    subject: CheckedModel, ids: torch.Tensor, arms: Sequence[Arm], progress: Progress | None, controls: int = 0
) -> Trial:
    return run(
        subject.model,
        ids,
        arms,
        reading=ThroughCache(ids.shape[1] // 2, None),
        controls=controls,
        batch_size=subject.batch_size,
        seed=subject.seed,
        about={"kind": "engines"},
        progress=progress,
    )


def _row(trial: Trial, chosen: VllmCache, name: str, size: tuple[float, float]) -> Row:
    grade, back, gain = trial.grade(name), trial.recovered(name, of=chosen.name), trial.difference(name)
    why = [grade.why]
    if np.isfinite(back.value):
        why.append(f"gives back {100 * back.value:.0f} % ({100 * back.low:.0f} to {100 * back.high:.0f})")
    if gain.high >= 0:
        why.append("no more than as many random layers")
    layers = ", ".join(map(str, chosen.skip))
    finding = f"{chosen.name} with layer{'s' if len(chosen.skip) > 1 else ''} {layers} whole"
    added = [layer for layer in chosen.whole if layer not in chosen.skip]
    finding += f", besides {', '.join(map(str, added))}" if added else ""
    return Row(
        name,
        finding,
        trial.cost(name),
        "KL a token",
        trial.texts,
        grade.word,
        "; ".join(filter(None, why)),
        f"leave {'them' if len(chosen.skip) > 1 else 'it'} whole" if grade.word in ADVISED and gain.high < 0 else "",
        *size,
        tuple(trial.values(name).tolist()),
    )


@torch.no_grad()
def bytes_of(subject: CheckedModel, texts: TextSet, trial: Trial, name: str, chosen: VllmCache) -> tuple[float, float]:
    """Bytes of an arm's cache after the context of a text, and their share of a cache in 16 bits.

    Layers that are left whole are counted in 16 bits, in which engines hold them, also where the model here has more.
    """
    model, ids = subject.model, texts.ids[:1, : texts.ids.shape[1] // 2]
    with evaluating(model):
        plain = DynamicCache(config=model.config)
        model(input_ids=ids.to(device_of(model)), past_key_values=plain)
    sizes = [held_bytes(layer) for layer in plain.layers]
    of_16 = 2 / next(model.parameters()).element_size()
    # The trial counts whole layers in the model's dtype: of their bytes, the share of_16 remains.
    held = float(trial.data["bytes"].sel(arm=name)) - (1 - of_16) * sum(sizes[layer] for layer in chosen.whole)
    return held, held / (of_16 * float(trial.data["bytes"].sel(arm=REFERENCE)))
