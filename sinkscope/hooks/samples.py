"""Samples that go through a model together, pass after pass with one cache."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.dispatch import was_reordered
from sinkscope.hooks.inputs import device_of, evaluating
from sinkscope.hooks.modules import family
from sinkscope.hooks.passes import Axis, Forward, parameters

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def unobserved(module: nn.Module) -> nn.Module:
    """A twin that shares parameters, buffers and settings, all the way down, but has no hooks and is nobody's layer."""
    twin: nn.Module = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__.update({name: type(hooks)() for name, hooks in module.__dict__.items() if name in _HOOKS})
    children = module._modules.items()
    twin.__dict__["_modules"] = {name: None if child is None else unobserved(child) for name, child in children}
    return twin


@dataclass(eq=False)
class Samples:
    """Samples that go through a model together, from their first pass to the last that continues their cache.

    `first`: tokens that were in the cache before the first pass; `length`: tokens by now.
    """

    size: int
    first: int
    length: int = 0
    prefix: int = 0
    cache: Cache | None = None
    ids: list[Tensor] = field(default_factory=list)
    real: dict[Axis, Tensor] = field(default_factory=dict)

    def continues(self, forward: Forward) -> bool:
        """Whether `forward` goes on with their cache. Raises `InputError` where that was changed in between."""
        if forward.seen == 0 or forward.cache is not self.cache or self.cache is None:
            return False
        if forward.seen != self.length or forward.batch != self.size:
            raise InputError(
                f"the cache holds {forward.batch} rows of {forward.seen} tokens, but {self.size} rows of {self.length} "
                "were observed: it was cropped or expanded between two passes (as assisted decoding does), and what "
                "was counted cannot be taken back; observe a plain decoding loop"
            )
        return True

    def extend(self, forward: Forward, length: int, cache: Cache | None) -> None:
        """Take over what a finished pass was given, and the cache that it left."""
        self.cache, self.length = cache, length
        self.real |= forward.real
        if forward.ids is not None:
            self.ids.append(forward.ids.detach())

    def token_ids(self) -> Int[np.ndarray, "batch position"] | None:
        """Ids of the real tokens, moved to the front, −1 behind them and for learned tokens.

        None where not all were given to the model.
        """
        if not self.ids or self.first:
            return None
        ids = functional.pad(torch.cat(self.ids, 1).cpu(), (self.prefix, 0), value=-1)
        real = self.real["tokens"][:, : ids.shape[1]].cpu() if "tokens" in self.real else torch.ones_like(ids).bool()
        if real.shape != ids.shape:
            return None
        order = torch.argsort((~real).int(), dim=-1, stable=True)
        front = ids.gather(1, order)
        return front.masked_fill(torch.arange(ids.shape[1]) >= real.sum(-1, keepdim=True), -1).numpy()


def check_order(forward: Forward) -> None:
    """Raises `InputError` where beam search permuted the rows of the cache since something is watched or edited."""
    if forward.cache is not None and forward.seen and was_reordered(forward.cache):
        raise InputError("beam search reorders the rows of its cache, so they are no samples: observe one beam")


def cache_of(output: Any) -> Cache | None:
    """The cache that a forward pass returned, from a model output or a tuple."""
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else ()
    return next((value for value in values if isinstance(value, Cache)), None)


# Whether a model reads several tokens behind its cache as it reads them in one pass.
#
# transformers' Mamba layers begin a scan of several tokens from an empty state, whatever the cache holds: silently, and
# in `generate` too. Tokens one by one are right. Nothing tells but trying.

PROBED = 4  # tokens, behind as many
APART = 30  # times what reading one by one differs by is more than rounding
_known: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def difference_behind(
    model: nn.Module, ids: Int[Tensor, "1 position"], first: int, cache: Cache | None = None, places: bool = False
) -> float:
    """By how much logits of the tokens behind the first ones differ from those of one pass, where they are read at once
    behind a `cache` of the first ones (by default, the model's own); 0 for what rounding explains.

    Rounding is what reading them one by one differs by, and never more than 1e-3 of the largest logit, in half
    precision 0.05. `places`: whether positions are given, without which some families count from 0 at each pass.
    """
    given = places and "position_ids" in parameters(model).parameters

    def read(start: int, stop: int, held: Cache | None) -> Any:
        at = {"position_ids": torch.arange(start, stop, device=ids.device)[None]} if given else {}
        return model(ids[:, start:stop], past_key_values=held, use_cache=True, **at)

    with evaluating(model), torch.no_grad():
        whole = model(ids).logits[:, first:]
        held = cache_of(read(0, first, None)) if cache is None else cache
        at_once = read(first, ids.shape[1], deepcopy(held)).logits.float()
        held = deepcopy(held)
        single = torch.cat([read(one, one + 1, held).logits.float() for one in range(first, ids.shape[1])], 1)
    half, whole = whole.dtype in (torch.float16, torch.bfloat16), whole.float()
    largest = float(whole.abs().max())
    rounding = max(APART * float((single - whole).abs().max()), APART * torch.finfo(torch.float32).eps * largest)
    apart = float((at_once - whole).abs().max())
    return 0.0 if apart <= min(rounding, (0.05 if half else 1e-3) * largest) else apart


def keeps_states(cache: Cache) -> bool:
    """Whether a cache holds states beside keys and values, which a pass may begin without."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in getattr(cache, "layers", ()))


def reads_at_once(model: nn.Module, cache: Cache) -> bool:
    """Whether several tokens behind what this cache holds may be read in one pass. Tried once for a model with states,
    on a few tokens."""
    if not keeps_states(cache):
        return True
    if model not in _known:
        ids = torch.arange(1, 2 * PROBED + 1, device=device_of(model))[None]
        _known[model] = difference_behind(unobserved(model), ids, PROBED, places=True)
    return _known[model] == 0


def check_continued(model: nn.Module, forward: Forward) -> None:
    """Raises `UnsupportedModelError` where a pass of several tokens goes on behind states that the model forgets, and
    where one of a single token takes padding into them: transformers keeps it out of passes of several tokens alone.
    """
    queries = forward.lengths.get("tokens", 0) - forward.seen
    real = forward.real.get("tokens")
    padded = real is not None and not bool(real[:, forward.seen :].all())
    if queries == 1 and padded and forward.cache is not None and keeps_states(forward.cache):
        raise UnsupportedModelError(
            f"family '{family(model)}': a pass of a single token takes padding into its states, so what follows would "
            "be wrong: read padded rows in passes of several tokens, or rows without padding"
        )
    if forward.cache is None or forward.seen == 0 or queries < 2 or reads_at_once(model, forward.cache):
        return
    raise UnsupportedModelError(
        f"family '{family(model)}': it reads {queries} tokens behind its cache otherwise than in one pass (logits "
        f"differ by {_known[model]:.2g}, transformers' Mamba layers drop their state there): read the whole text at "
        "once, or go on token by token"
    )
