"""Generation with a lab model: what `generate` must know about sink tokens, masks and bidirectional models."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, GenerationMixin

from sinkscope.errors import InputError
from sinkscope.model.config import LabConfig


class LabGenerationMixin(GenerationMixin):
    """transformers' `generate`, corrected: it counts tokens by the cache's length, and sink tokens are in there too."""

    config: LabConfig

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' `generate`. Raises `InputError` for a bidirectional model, which predicts no next token."""
        if not self.config.is_causal:
            raise InputError("a bidirectional model (is_causal=False) does not generate: it predicts no next token")
        return super().generate(*args, **kwargs)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        """Hand `generate`'s two-dimensional mask on as it is: the model binds its own mask from it, with any cache."""
        return attention_mask

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The tokens that the caller's cache lacks: all but the real tokens in it."""
        # `generate` reads the last (given − cached) tokens. The cache counts the sink tokens, which the caller's ids do
        # not contain: as many unread tokens would be skipped.
        seen = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        if is_first_iteration and next_sequence_length is not None and seen:
            next_sequence_length += self.config.sink_tokens
        return super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: Any, generation_mode: Any, batch_size: int, max_cache_length: int
    ) -> Any:
        """A cache of fixed length holds the sink tokens as well."""
        longer = max_cache_length + self.config.sink_tokens
        return super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, longer
        )
