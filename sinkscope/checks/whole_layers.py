"""vLLM's rounded caches, and which layers to keep in full precision: `--kv-cache-dtype-skip-layers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Cache

from sinkscope.caches.engines import VllmFp8
from sinkscope.checks.row import ADVISED, Row
from sinkscope.checks.section import Progress
from sinkscope.checks.sizes import cache_bytes
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.data import fed
from sinkscope.errors import InputError
from sinkscope.hooks import text_config
from sinkscope.quantization import QuantizeCache, quantized_cache, rounded_layers, scheme_named
from sinkscope.trials import Arm, Texts, ThroughCache, Trial, cached, run

DTYPES = ("fp8", "turboquant_4bit_nc", "turboquant_3bit_nc")
"""Values of `--kv-cache-dtype`, most bits first. TurboQuant never rounds the first two and last two layers."""
COUNTS = (1, 2, 4, 8)  # layers to skip
DRAWS = 3  # random controls, of as many layers


@dataclass(frozen=True)
class VllmCache:
    """A cache of vLLM on one model.

    Args:
        dtype: The value of `--kv-cache-dtype`.
        layers: Number of layers of the model.
        rounded: The layers that vLLM rounds if none is skipped.
        skip: The layers of `--kv-cache-dtype-skip-layers`.
    """

    dtype: str
    layers: int
    rounded: tuple[int, ...]
    skip: tuple[int, ...] = ()

    @classmethod
    def for_model(cls, dtype: str, model: nn.Module) -> VllmCache:
        """The cache with no layer skipped. Raises `InputError` if the dtype rounds no layer of the model."""
        rounded = rounded_layers(model, _scheme(dtype, model).scheme)
        return cls(dtype, int(text_config(model).num_hidden_layers), tuple(rounded))

    @property
    def name(self) -> str:
        """The arm's name."""
        return f"vllm-{self.dtype}"

    @property
    def unrounded(self) -> list[int]:
        """The layers in full precision: the skipped ones, and those that vLLM never rounds."""
        rounded = set(self.rounded) - set(self.skip)
        return [layer for layer in range(self.layers) if layer not in rounded]

    def skipping(self, skip: Sequence[int]) -> VllmCache:
        """The same cache with other layers skipped."""
        return replace(self, skip=tuple(sorted(skip)))

    def only(self, layer: int) -> VllmCache:
        """The same cache with only this layer rounded."""
        return self.skipping([other for other in self.rounded if other != layer])

    def arm(self, name: str, **options: Any) -> Arm:
        """The arm. A prompt sees its own keys rounded in fp8, and in full precision in TurboQuant."""
        if self.dtype == "fp8":
            fp8 = VllmFp8(skip=self.skip)
            return cached(name, fp8.cache, facts=fp8.describe(), **options)

        def make(model: nn.Module) -> Cache:
            scheme = _scheme(self.dtype, model)
            return quantized_cache(model, scheme.keys, scheme.values, ends=scheme.ends, skip=self.skip)

        facts = {"scheme": self.dtype, "whole": self.unrounded}
        return cached(name, make, first_pass="states", facts=facts, **options)


def _scheme(dtype: str, model: nn.Module) -> QuantizeCache:
    scheme = scheme_named(dtype).make(model, {}, None)
    assert isinstance(scheme, QuantizeCache)
    return scheme


def calibrated_fp8(subject: CheckedModel, texts: TextSet) -> Arm:
    """vLLM's fp8 cache with a scale for the keys and one for the values of each layer, fitted to other texts.

    A simulation: a cache knows no texts.
    """
    scheme = scheme_named("fp8-calibrated")
    made = cache(lambda: scheme.make(subject.model, fed(subject.model, texts.calibration), None))

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[None]:
        with made().applied(model):
            yield None

    return Arm("vllm-fp8-calibrated", opened, facts={"scheme": scheme.name})


def vllm_caches(model: nn.Module) -> tuple[dict[str, VllmCache], dict[str, str]]:
    """vLLM's caches on this model by name, and the reasons why its other caches cannot be used."""
    caches, reasons = {}, {}
    for dtype in DTYPES:
        try:
            cache = VllmCache.for_model(dtype, model)
            caches[cache.name] = cache
        except InputError as error:
            reasons[f"vllm-{dtype}"] = str(error)
    return caches, reasons


def skip_row(
    subject: CheckedModel, texts: TextSet, unsafe: VllmCache, progress: Progress | None
) -> tuple[Row, dict[str, Any]] | None:
    """The fewest layers to skip in an unsafe cache, compared with random layers; None for a model with too few layers.

    On the calibration texts, layers are ranked by the cost of rounding each one alone, and the most expensive ones are
    skipped: the fewest of 1, 2, 4 and 8 that make the cache free or small, else the most. These layers, and as many
    random ones, are then skipped on the scored texts.
    """
    counts = [count for count in COUNTS if 2 * count <= len(unsafe.rounded)]
    if not counts:
        return None
    ranked, costs, count = subject.once(("layers", unsafe.name), lambda: _chosen(subject, unsafe, counts, progress))
    chosen = unsafe.skipping(ranked[:count])

    def control(draw: int, texts: Texts) -> Arm:
        # Random among the layers that were not chosen; `counts` leaves at least as many of them.
        others = np.random.default_rng([draw, count]).permutation(ranked[count:])[:count]
        return unsafe.skipping([int(layer) for layer in others]).arm(f"{count} random {draw}")

    name = f"{unsafe.name}-skip"
    arms = [unsafe.arm(unsafe.name, baseline=True), replace(chosen.arm(name), control=control)]
    trial = _run(subject, texts.ids, arms, progress, DRAWS)
    row = _row(trial, chosen, name, cache_bytes(subject, texts, chosen.arm(name)))
    ranking = [[layer, costs[layer]] for layer in ranked]
    return row, {name: {"layers": list(chosen.skip), "whole": chosen.unrounded, "ranked": ranking}}


def _chosen(
    subject: CheckedModel, unsafe: VllmCache, counts: Sequence[int], progress: Progress | None
) -> tuple[list[int], dict[int, float], int]:
    """The layers, most expensive first, the cost of rounding each alone, and how many to skip."""
    calibration = subject.sets[0].calibration  # for all sets of texts, so that they score the same layers
    single = [unsafe.only(layer).arm(f"layer {layer}") for layer in unsafe.rounded]
    trial = _run(subject, calibration, single, progress)
    costs = {layer: trial.mean(f"layer {layer}").value for layer in unsafe.rounded}
    ranked = sorted(costs, key=lambda layer: -costs[layer])
    candidates = [unsafe.skipping(ranked[:count]).arm(f"{count} whole") for count in counts]
    trial = _run(subject, calibration, candidates, progress)
    return ranked, costs, next((count for count in counts if trial.word(f"{count} whole") in ADVISED), counts[-1])


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
    grade, beats_random = trial.grade(name), trial.difference(name).high < 0
    recovered = trial.recovered(name, of=chosen.name)
    why = [grade.why]
    if np.isfinite(recovered.value):
        low, high = 100 * recovered.low, 100 * recovered.high
        why.append(f"gives back {100 * recovered.value:.0f} % ({low:.0f} to {high:.0f})")
    if not beats_random:
        why.append("no more than as many random layers")
    layers = ", ".join(map(str, chosen.skip))
    finding = f"{chosen.name} with layer{'s' if len(chosen.skip) > 1 else ''} {layers} whole"
    added = [layer for layer in chosen.unrounded if layer not in chosen.skip]
    finding += f", besides {', '.join(map(str, added))}" if added else ""
    return Row(
        name,
        finding,
        trial.cost(name),
        "KL a token",
        trial.texts,
        grade.word,
        "; ".join(filter(None, why)),
        f"leave {'them' if len(chosen.skip) > 1 else 'it'} whole" if grade.word in ADVISED and beats_random else "",
        *size,
        tuple(trial.values(name).tolist()),
    )
