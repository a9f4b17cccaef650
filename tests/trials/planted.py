"""A small model, and arms whose effect is known: noise of a stated size on its logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.trials import Arm, Texts


def llama(layers: int = 2, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def ids(texts: int = 5, tokens: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(1, 50, (texts, tokens), generator=torch.Generator().manual_seed(seed))


def noisy(
    name: str, size: float, *, seed: int = 0, calls: list[tuple[str, slice]] | None = None, **options: Any
) -> Arm:
    """Adds noise to the logits that depends on the text, the place and the seed, never on the batch."""

    @contextmanager
    def opened(model: nn.Module, texts: Texts) -> Iterator[None]:
        if calls is not None:
            calls.append((name, texts.rows))

        def edit(module: nn.Module, args: Any, output: Any) -> Any:
            for place, row in enumerate(range(texts.rows.start, texts.rows.stop)):
                generator = torch.Generator().manual_seed(1000 * seed + row)
                output.logits[place] += size * torch.randn(output.logits[place].shape, generator=generator)
            return output

        handle = model.register_forward_hook(edit)
        try:
            yield None
        finally:
            handle.remove()

    return Arm(name, opened, **options)


def beaten(size: float, draws: float, **options: Any) -> Arm:
    """An arm with controls whose noise is `draws`."""
    return noisy("arm", size, control=lambda draw, texts: noisy("any", draws, seed=10 + draw), **options)
