"""A model that writes through one cache: prompts, or the turns of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.caches import StreamingCache
from sinkscope.cli.writing import tokens
from sinkscope.cli.writing.cost import Cost
from sinkscope.errors import InputError
from sinkscope.hooks import text_config
from sinkscope.report.terminal import note

WRITTEN = 256  # tokens to write where nothing else is said and there is room
STREAMED = 1024  # keys that a stream keeps at most where nothing else is said


class Writer:
    """Reads what is new, writes until an end or a limit, and keeps its cache from one turn to the next.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        streaming: sinks, window (None: what the model has positions for) and distance of a `StreamingCache`.
        quantized: a scheme's name, and the tokens that it keeps in full precision.
        sampling: temperature, top-p, top-k (None: as the generation config says) and the seed.
        limit: tokens of one text at most.
        endless: write on after the text has ended.
        chat: whether prompts are turns of a conversation.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        streaming: tuple[int, int | None, str] | None,
        quantized: tuple[str, str] | None,
        sampling: tuple[float | None, float | None, int | None, int],
        limit: int | None,
        endless: bool,
        chat: bool,
    ) -> None:
        self.model, self.tokenizer, self.quantized, self.limit = model, tokenizer, quantized, limit
        self.config = tokens.settings(model, *sampling[:3])
        self.draw = torch.Generator(device=model.device).manual_seed(sampling[3])
        if chat and not tokenizer.chat_template:
            raise InputError("--chat needs a chat template, which this model's tokenizer has not: give --prompt alone")
        turn = tokens.turn_end(tokenizer) if chat else set()
        self.ends = set() if endless else tokens.ends(model, tokenizer) | turn
        most = getattr(text_config(model), "max_position_embeddings", None)
        self.most = most if isinstance(most, int) else None
        self.streams = None if streaming is None else self._streams(*streaming)
        self.messages: list[dict[str, str]] = []
        self.prompt_tokens = 0
        self.held: list[int] = []  # the tokens that the cache has read
        self.cache: Any = None

    @property
    def sampled(self) -> dict[str, Any]:
        """How tokens are drawn."""
        names = ("do_sample", "temperature", "top_p", "top_k")
        return {name: getattr(self.config, name) for name in names}

    def prompt(self, text: str) -> Tensor:
        """Token ids of a text, (1, position), after a BOS where the tokenizer has one."""
        ids = self.tokenizer(text, add_special_tokens=True)["input_ids"] if text else []
        if self.tokenizer.bos_token_id is not None and ids[:1] != [self.tokenizer.bos_token_id]:
            ids = [self.tokenizer.bos_token_id, *ids]
        if not ids:
            raise InputError("nothing to continue, and the tokenizer has no BOS to begin with: give --prompt TEXT")
        return torch.tensor([ids], device=self.model.device)

    def conversation(self, text: str) -> Tensor:
        """Token ids of the whole conversation, (1, position), with `text` as its next message."""
        self.messages.append({"role": "user", "content": text})
        ids = self.tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)["input_ids"]
        return torch.tensor([ids], device=self.model.device)

    def answered(self, text: str) -> None:
        """What was written is the next message of a conversation."""
        if self.messages:
            self.messages.append({"role": "assistant", "content": text})

    def begin(self, ids: Tensor) -> Cost:
        """Read all but the last of `ids`; what the cache has read is not read again where it begins them."""
        self.prompt_tokens = ids.shape[1]
        length = self._limit(ids.shape[1])
        if self.cache is None or self.quantized or self.held != ids[0, : len(self.held)].tolist()[: ids.shape[1] - 1]:
            self.cache, self.held = self._new_cache(ids), []
        unread = ids[:, len(self.held) :]
        if unread.shape[1] > 1:
            if isinstance(self.cache, StreamingCache):
                self.cache.prefill(self.model, unread)
            else:
                with torch.inference_mode():
                    self.model(unread[:, :-1], past_key_values=self.cache, use_cache=True)
        self.held = ids[0, :-1].tolist()
        self.room = length
        return Cost(self.cache)

    def tokens(self, ids: Tensor, cost: Cost) -> Iterator[int]:
        """What the model writes, until the limit."""
        last = int(ids[0, -1])
        for token in tokens.written(self.model, ids, self.cache, self.config, self.draw):
            cost.tokens += 1
            if self.messages:
                self.held.append(last)
            last = token
            yield token
            if cost.tokens == self.room:
                return

    def _new_cache(self, ids: Tensor) -> Any:
        if self.streams is not None:
            return StreamingCache(self.model, **self.streams)
        if self.quantized is None:
            return DynamicCache(config=text_config(self.model))
        from sinkscope.cli.writing.rounded import rounded_cache

        return rounded_cache(self.model, *self.quantized)

    def _limit(self, length: int) -> int | None:
        """How many tokens may follow a prompt of that length. Raises `InputError` where they do not fit."""
        if self.streams is not None or self.most is None:
            return self.limit or (None if self.streams else WRITTEN)
        room = self.most - length
        if room < 1:
            raise InputError(
                f"the prompt has {length} tokens, but the model has positions for {self.most}: shorten it, or --stream"
            )
        if self.limit is not None and self.limit > room:
            raise InputError(
                f"{length} tokens of prompt and {self.limit} to write, but the model has positions for {self.most}: "
                f"at most --max-tokens {room}, or --stream"
            )
        return self.limit or min(WRITTEN, room)

    def _streams(self, sinks: int, window: int | None, distance: str) -> dict[str, Any]:
        fitting = min(STREAMED, self.most or STREAMED) - sinks
        if window is None and fitting < 1:
            raise InputError(f"--sinks {sinks}: the model has positions for {self.most}, which leaves no window")
        if window is not None and self.most is not None and sinks + window > self.most:
            note(
                f"warning: {sinks} sinks and a window of {window} are more than the {self.most} positions that the "
                f"model was made for: --window {max(1, self.most - sinks)} stays within them"
            )
        return {"sinks": sinks, "window": fitting if window is None else window, "distance": distance}
