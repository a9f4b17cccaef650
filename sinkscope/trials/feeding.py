"""A model that reads through a cache, at the positions that the tokens truly have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from sinkscope.caches import EngineCache, EvictingCache
from sinkscope.caches.first_pass import Attended, recording
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    cache_name,
    device_of,
    evaluating,
    family,
    is_encoder_decoder,
    parameters,
    reads_at_once,
    with_cache,
)
from sinkscope.quantization import SinkQuantizedCache
from sinkscope.trials.arm import Arm, Texts, unchanged

Watch = Callable[[], None]
"""Called after each step that was made."""

TOGETHER = 1024  # the most tokens, of all texts, that one pass reads in place of a pass each: their logits are held


@dataclass(frozen=True, eq=False)
class Prompt:
    """What the unchanged model's pass over a context left, for arms that go on from it (`Arm.first_pass`).

    `logits`: after its last token, fp32; `states`: each layer's keys and values, empty where a layer keeps other things
    than those of all tokens; `calls`: of its attention functions, empty where they were not recorded.
    """

    ids: Int[Tensor, "batch context"]
    logits: Float[Tensor, "batch vocabulary"]
    states: Sequence[tuple[Tensor, Tensor]]
    calls: Sequence[Attended] = ()

    @classmethod
    def of(cls, model: nn.Module, ids: Int[Tensor, "batch context"], arms: Sequence[Arm]) -> Prompt | None:
        """Read a context for the arms that go on from it; nothing is read where none does, or only one."""
        if sum(arm.first_pass != "own" for arm in arms) < 2:
            return None
        with feeding(model, unchanged(), ids) as feed:
            return feed.read_for(ids, arms)[1]


@dataclass
class Feed:
    """A model with the cache that it fills. `seen`: tokens read so far, or in the cache from before.

    Positions are always given: some families count from 0 at each pass without them.
    """

    model: nn.Module
    cache: Cache
    seen: int = 0
    _takes: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._takes = frozenset(parameters(self.model).parameters)
        if is_encoder_decoder(self.model) or cache_name(self.model) is None:
            raise InputError(f"{type(self.model).__name__} is not a decoder that reads on from a cache")
        self.seen = self.seen or self.cache.get_seq_length()

    def read(self, ids: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocabulary"]:
        """Read tokens in one pass; the logits after the last of them, fp32."""
        return self.read_all(ids, last=1)[:, -1]

    def read_for(
        self, ids: Int[Tensor, "batch new"], arms: Sequence[Arm]
    ) -> tuple[Float[Tensor, "batch vocabulary"], Prompt | None]:
        """`read` of a context through the unchanged model, and what these arms need of it; None where none does."""
        kinds = {arm.first_pass for arm in arms}
        ids = ids.to(device_of(self.model))
        calls: Sequence[Attended] | None = ()
        if "calls" in kinds:
            with recording(self.model) as recorder:
                logits = self.read(ids)
            calls = recorder.calls
        else:
            logits = self.read(ids)
        if kinds <= {"own"}:
            return logits, None
        layers = list(getattr(self.cache, "layers", ()))
        plain = all(type(layer) is DynamicLayer and layer.keys is not None for layer in layers)
        states = [(layer.keys, layer.values) for layer in layers] if plain else []
        return logits, Prompt(ids, logits, states, calls or ())

    def read_after(
        self, prompt: Prompt | None, arm: Arm, ids: Int[Tensor, "batch new"]
    ) -> Float[Tensor, "batch vocabulary"]:
        """`read` of a context that the prompt may have read, where this arm goes on from it and its cache can."""
        ids = ids.to(device_of(self.model))
        if prompt is None or arm.first_pass == "own" or self.seen or not torch.equal(prompt.ids, ids):
            return self.read(ids)
        if not self._takes_over(prompt, ids):
            return self.read(ids)
        self.seen = ids.shape[1]
        return prompt.logits

    def _takes_over(self, prompt: Prompt, ids: Tensor) -> bool:
        if isinstance(self.cache, SinkQuantizedCache):
            return bool(prompt.states) and self.cache.take_over(ids, prompt.states)
        return isinstance(self.cache, EvictingCache) and self.cache.take_over(ids, prompt.states, prompt.calls)

    def read_singly(self, ids: Int[Tensor, "batch new"]) -> Iterator[Float[Tensor, "batch part vocabulary"]]:
        """The logits after each token as if they came one by one, fp32, of successive parts.

        Several tokens are read in a pass where each sees there what it would see alone: through a full cache, and
        through a rounded one up to the next token that completes a block. This holds for models that compute a token's
        states without regard to the others in its pass, so not where activations share a range.
        """
        most = max(1, TOGETHER // len(ids))
        while ids.shape[1]:
            size = 1
            if isinstance(self.cache, SinkQuantizedCache):
                size = min(most, self.cache.until_rounding)
            elif type(self.cache) is DynamicCache:
                size = most
            yield self.read_all(ids[:, :size])
            ids = ids[:, size:]

    def read_all(
        self, ids: Int[Tensor, "batch new"], last: int | None = None
    ) -> Float[Tensor, "batch kept vocabulary"]:
        """Read tokens in one pass; the logits after each of the `last` ones (None: after all of them), fp32.

        One by one where the model has states that it would forget between two passes of several.
        """
        ids = ids.to(device_of(self.model))
        kept = ids.shape[1] if last is None else last
        if self.seen and ids.shape[1] > 1 and not reads_at_once(self.model, self.cache):
            return torch.cat([self.read_all(one, 1) for one in ids.split(1, 1)], 1)[:, -kept:]
        if isinstance(self.cache, EngineCache) and kept > 1:
            outputs = [output.logits for output in self.cache.read(self.model, ids)]
            self.seen += ids.shape[1]
            return torch.cat(outputs, 1)[:, -kept:].float()
        inputs: dict[str, Any] = {"input_ids": ids, "use_cache": True} | with_cache(self.model, self.cache)
        places = torch.arange(self.seen, self.seen + ids.shape[1], device=ids.device)
        inputs |= {"position_ids": places.expand(len(ids), -1)} if "position_ids" in self._takes else {}
        inputs |= {"logits_to_keep": kept} if "logits_to_keep" in self._takes else {}
        logits = getattr(self.model(**inputs), "logits", None)
        if not isinstance(logits, Tensor) or logits.ndim != 3:
            raise UnsupportedModelError(f"family '{family(self.model)}': it has no logits for each of its tokens")
        self.seen += ids.shape[1]
        # Families that do not take `logits_to_keep` return the logits of all tokens.
        return logits[:, -kept:].float()


@contextmanager
def feeding(model: nn.Module, arm: Arm, ids: Int[Tensor, "text token"], start: int = 0) -> Iterator[Feed]:
    """The model as the arm has it for these texts, with an empty cache, in eval mode and without gradients."""
    with evaluating(model), torch.no_grad(), arm.open(model, Texts.of_ids(ids, start)) as cache:
        # With the configuration, by which layers with a window get a sliding cache.
        yield Feed(model, DynamicCache(config=model.config) if cache is None else cache)


def stream_nll(
    model: nn.Module, ids: Int[Tensor, "text token"], arm: Arm, *, context: int = 1
) -> Float[Tensor, "text scored"]:
    """−log p, in nats, of each token after the context, float64.

    The first `context` tokens are read in one pass, as `generate` does; then each pass reads one. Raises `InputError`
    where no token is left after the context.
    """
    if not 0 < context < ids.shape[1]:
        raise InputError(f"context = {context}: at least 1, and fewer than the texts' {ids.shape[1]} tokens")
    steps = []
    with feeding(model, arm, ids) as feed:
        for place in range(context, ids.shape[1]):
            # The whole context at first, then the one token that was predicted last.
            logs = feed.read(ids[:, feed.seen : place]).log_softmax(-1).cpu()
            steps.append(logs.gather(1, ids[:, place : place + 1].cpu())[:, 0].double().neg())
    return torch.stack(steps, 1)
