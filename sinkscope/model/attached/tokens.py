"""Learned tokens before every sequence of a hub model, and registers after an image model's CLS.

The base model's `forward` is replaced on this model only: callers and hooks see the sequence without them, as in lab
models. Sources: Xiao et al. 2024 (learnable sink token), Darcet et al. 2023 (registers).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError, is_whole
from sinkscope.hooks import given_cache
from sinkscope.model.sink_tokens import SinkTokens

PLACE = "sink_tokens"  # the attribute of a base model under which its tokens are kept
IMAGES, ENCODERS = ("vit",), ("bert",)
COUNTED = ("gpt2", "opt")  # a row of a table for each position, none for positions before the first

SKIPS = "generate() skips tokens where it goes on with a cache, whose length counts the sink tokens: start anew"


class Registers(nn.Module):
    """n learned embeddings (1, n, width) between the CLS token and the patches of an image model."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.register_tokens = nn.Parameter(0.02 * torch.randn(1, count, width))

    def forward(self, hidden: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch longer width"]:
        """CLS, the registers, the patches."""
        registers = self.register_tokens.to(hidden.dtype).expand(len(hidden), -1, -1)
        return torch.cat([hidden[:, :1], registers, hidden[:, 1:]], 1)


def check_tokens(model: PreTrainedModel, count: int) -> None:
    """Raises `InputError` for an invalid count, `UnsupportedModelError` for a model that cannot have them."""
    if not is_whole(count):
        raise InputError(f"sink_tokens = {count!r}: a whole number, 0 for none")
    for reason in _obstacles(model) if count else ():
        raise UnsupportedModelError(f"family '{model.config.model_type}': no sink tokens, {reason}")


def add_tokens(model: PreTrainedModel, count: int) -> None:
    """Add learned tokens before every sequence, or registers after the CLS of an image model."""
    base = _holder(model)
    like, image = next(base.parameters()), model.config.model_type in IMAGES
    made = (Registers if image else SinkTokens)(count, model.config.hidden_size)
    setattr(base, PLACE, made.to(device=like.device, dtype=model.dtype))
    if image:
        _replace(base.embeddings, _embedded, base)
        _replace(base, _without_registers)
    else:
        _replace(base, _with_sinks, tuple(inspect.signature(base.forward).parameters))


def remove_tokens(model: PreTrainedModel) -> None:
    """Remove them again."""
    base = _holder(model)
    if not hasattr(base, PLACE):
        return
    delattr(base, PLACE)
    for module in (base, getattr(base, "embeddings", None)):
        if module is not None and "forward" in vars(module):
            del module.forward


def learned_tokens(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that hold the tokens of a model."""
    yield from (module for module in model.modules() if isinstance(module, SinkTokens | Registers))


def _holder(model: PreTrainedModel) -> Any:
    """The innermost model, which every head calls: OPT's head passes its base model by and calls the decoder in it."""
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)][-1]


def _obstacles(model: PreTrainedModel) -> Iterator[str]:
    config = model.config
    if config.model_type in ENCODERS:
        yield "its first token is what its heads read"
    kinds = {kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"}
    if getattr(config, "sliding_window", None) is not None or kinds:
        yield "its sliding window would hide them from later tokens"


def _replace(module: nn.Module, forward: Any, *arguments: Any) -> None:
    """Replace one module's forward, keeping its signature."""
    signature = inspect.signature(module.forward)
    module.forward = partial(forward, module, *arguments)  # a partial, which a deep copy of the model copies along
    vars(module.forward)["__signature__"] = signature


def _embedded(embeddings: nn.Module, base: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    registers: Registers = getattr(base, PLACE)
    # The class's own forward: the instance's attribute is this function.
    return registers(type(embeddings).forward(embeddings, *args, **kwargs))


def _without_registers(base: nn.Module, *args: Any, **kwargs: Any) -> Any:
    count = getattr(base, PLACE).register_tokens.shape[1]
    output = type(base).forward(base, *args, **kwargs)
    hidden = output[0]
    return _with_hidden(output, torch.cat([hidden[:, :1], hidden[:, 1 + count :]], 1))


def _with_sinks(base: PreTrainedModel, names: tuple[str, ...], *args: Any, **kwargs: Any) -> Any:
    """The base model's forward, with the sink tokens in front where the cache does not hold them yet."""
    named: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
    sinks: SinkTokens = getattr(base, PLACE)
    count, cache = len(sinks.sink_tokens), given_cache(named)
    if cache is not None and cache.is_compileable:
        raise InputError("a static cache has no room for sink tokens, and generate() makes masks for it without them")
    seen = 0 if cache is None else cache.get_seq_length()
    first = not seen
    embedded = named.get("inputs_embeds")
    if (named.get("input_ids") is None) == (embedded is None):
        raise InputError("give exactly one of input_ids and inputs_embeds")
    if embedded is None:
        embedded = base.get_input_embeddings()(named["input_ids"])
    # The cache counts the sink tokens, the caller's mask and positions do not.
    text = 0 if first else seen - count
    mask = _mask(named.get("attention_mask"), text + embedded.shape[1])
    positions = _positions(base, named.get("position_ids"), mask, text, embedded)
    # Without a mask transformers takes positions that do not increase by one for the start of another document, and
    # the sink tokens of these families all have position 0.
    if mask is None and base.config.model_type in COUNTED:
        mask = embedded.new_ones(embedded.shape[0], text + embedded.shape[1], dtype=torch.long)
    if first:
        before = torch.arange(-count, 0, device=positions.device)[None]
        before = before.clamp(min=0) if base.config.model_type in COUNTED else before
        positions = torch.cat([before.expand(len(positions), -1), positions], 1)
        embedded = sinks(embedded)
    named |= {"input_ids": None, "inputs_embeds": embedded, "position_ids": positions}
    named["attention_mask"] = None if mask is None else F.pad(mask, (count, 0), value=1)
    output = type(base).forward(base, **named)
    return _with_hidden(output, output[0][:, count:]) if first else output


def _mask(mask: Any, tokens: int) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise InputError(
            "sink tokens are added to an attention_mask (batch, tokens), and this one is written out already"
        )
    if mask.shape[1] != tokens:
        raise InputError(
            f"attention_mask {tuple(mask.shape)}: expected (batch, {tokens}), one entry for each token so far; {SKIPS}"
        )
    return mask


def _positions(base: PreTrainedModel, position_ids: Any, mask: Tensor | None, text: int, embedded: Tensor) -> Tensor:
    """Positions of the tokens of this pass, which are those without sink tokens.

    Raises `InputError` for packed documents (later ones would not see the sink tokens), and for positions that do not
    continue the cache.
    """
    tokens = embedded.shape[1]
    if isinstance(position_ids, Tensor):
        # With a mask, repeated positions are those of padding, and transformers looks for no documents.
        if mask is not None or torch.compiler.is_compiling():
            return position_ids
        if position_ids.ndim != 2 or bool((position_ids.diff(dim=-1) != 1).any()):
            raise InputError("position_ids restart within a row: sink tokens need one document per row")
        if text and bool((position_ids[:, 0] != text).any()):
            raise InputError(
                f"position_ids begin at {int(position_ids[0, 0])}, but the cache holds {text} tokens; {SKIPS}"
            )
        return position_ids
    # Real tokens, so that left padding does not stand between sink tokens and text. GPT-2 itself counts padding too.
    if mask is not None and base.config.model_type != "gpt2":
        return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, text:]
    return torch.arange(text, text + tokens, device=embedded.device)[None].expand(len(embedded), -1)


def _with_hidden(output: Any, hidden: Tensor) -> Any:
    """A base model's output with its last hidden states replaced."""
    if isinstance(output, tuple):
        return (hidden, *output[1:])
    output.last_hidden_state = hidden
    return output
