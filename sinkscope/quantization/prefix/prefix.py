"""A prefix: tokens whose keys and values come from the full-precision model and stay in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import cache_of, checked_inputs, device_of, difference_behind, evaluating, family, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.quantization.prefix import files
from sinkscope.quantization.prefix.identity import (
    bos_of,
    check_decoder,
    check_same,
    fingerprint,
    room_of,
    tokenizer_fingerprint,
)
from sinkscope.quantization.prefix.serving import Serving, joined_inputs

PROBE = 4  # tokens after a new prefix, read with the cache and in one pass


@dataclass(frozen=True, eq=False)
class Prefix(Intervention):
    """Tokens `ids`, and the cache (keys and values) that the full-precision model has after them.

    They are the sinks of all text that follows, so no token of the text has to be one, and quantization never affects
    them: IntactKV with ids = (BOS,), PrefixQuant and CushionCache with the ids that `find_prefix` finds. Make one with
    `find_prefix` or `Prefix.of`; it belongs to that model, whose sizes and token embeddings it remembers.

        ids = prefix.before(tokens)                                        # what generate() reads: prefix and text
        model.generate(**ids, past_key_values=prefix.cache(len(tokens)))
        with prefix.applied(model), QuantizeLinear(...).applied(model):    # any pass without a cache
            model(tokens)

    `logits` (token, vocabulary): the full-precision predictions after each of its tokens. `found`: how it was chosen,
    JSON-able. Two prefixes are equal if ids, keys and values are.

    Source: Liu et al. 2024b (IntactKV), Chen et al. 2024 (PrefixQuant), Son et al. 2024 (CushionCache).
    """

    ids: tuple[int, ...]
    logits: Float[Tensor, "token vocabulary"]
    made_with: Mapping[str, Any]
    bos: int | None
    room: int | None
    found: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    tokens: tuple[str, ...] = ()
    held: Cache = field(default_factory=DynamicCache, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        ids: Iterable[int],
        *,
        found: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        bos: int | None = None,
    ) -> Prefix:
        """The prefix of these tokens.

        Args:
            model: A decoder, whose full-precision cache is kept.
            ids: Token ids, in order.
            found: How they were chosen, JSON-able, for the record.
            tokenizer: Gives the texts of the tokens; None: none are kept.
            bos: The token that begins a text, if the configuration does not name it.

        Raises `InputError` for no tokens, tokens outside the vocabulary, as many tokens as the model has positions, and
        two BOS; `UnsupportedModelError` for a model that returns no cache.
        """
        model = unwrapped(model)
        check_decoder(model)
        chosen = tuple(ids)
        _check_ids(model, chosen)
        bos = bos_of(model) if bos is None else bos
        if bos is not None and chosen.count(bos) > 1:
            raise InputError(f"prefix {chosen}: it contains the BOS ({bos}) {chosen.count(bos)} times: one is enough")
        with evaluating(model), torch.no_grad():
            output = model(torch.tensor([chosen], device=device_of(model)), use_cache=True)
        cache = cache_of(output)
        if cache is None or cache.get_seq_length() != len(chosen):
            raise UnsupportedModelError(
                f"family '{family(model)}': it returned no cache of the {len(chosen)} tokens it read"
            )
        _check_reading(model, chosen, cache)
        return cls(
            ids=chosen,
            logits=output.logits[0].detach(),
            made_with=fingerprint(model),
            bos=bos,
            room=room_of(model),
            found=dict(found or {}),
            tokenizer=None if tokenizer is None else tokenizer_fingerprint(tokenizer),
            tokens=() if tokenizer is None else tuple(tokenizer.convert_ids_to_tokens(list(chosen))),
            held=cache,
        )

    def cache(self, rows: int = 1) -> Cache:
        """A new cache with the prefix for `rows` rows: `generate(..., past_key_values=prefix.cache(rows))`."""
        if rows < 1:
            raise InputError(f"a cache for {rows} rows: at least 1")
        cache = deepcopy(self.held)  # passes append to the cache that they get
        for layer in cache.layers if rows > 1 else ():  # the only way to repeat rows that layers with states have too
            layer.reorder_cache(torch.zeros(rows, dtype=torch.long))
        return cache

    def before(
        self, inputs: Int[Tensor, "row token"] | Mapping[str, Tensor], attention_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The tokens of each row after the prefix, with a mask of as many columns: goes with `cache(rows)`.

        If rows begin with the tokens that end the prefix (usually the BOS), these tokens occur once. `inputs`: ids, or
        the output of a tokenizer. Raises `InputError` for a second BOS, for rows too long to follow the prefix, and for
        padding on the left, which would separate the prefix from the text: pad on the right, or generate row by row.
        """
        arguments = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if attention_mask is not None:
            arguments["attention_mask"] = attention_mask
        return joined_inputs(self, arguments)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Passes without a cache read their text after the prefix.

        Predictions keep their shape: at tokens that belong to the prefix they are those of full precision.
        """
        self.check(model)
        Serving(self, model).attach(stack)

    @property
    def in_text(self) -> Intervention:
        """The same tokens as ordinary text before each text, without a cache: a quantizer rounds them too."""
        return _InText(self)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Prefix:
        """As many tokens drawn from the inputs, without the BOS and the prefix's own."""
        checked, _ = checked_inputs(model, inputs)
        there = sorted({*checked["input_ids"].flatten().tolist()} - {*self.ids, self.bos})
        if len(there) < len(self.ids):
            raise InputError(f"no control: {len(self.ids)} other tokens are needed, and the inputs have {len(there)}")
        drawn = torch.randperm(len(there), generator=generator)[: len(self.ids)]
        return Prefix.of(model, [there[index] for index in drawn.tolist()], found={"objective": "random"}, bos=self.bos)

    def check(self, model: nn.Module) -> None:
        """Raises `InputError` for another model than the one it was made with."""
        check_same(fingerprint(unwrapped(model)), self.made_with)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prefix) or (self.ids, self.made_with) != (other.ids, other.made_with):
            return False
        pairs = zip((self.logits, *_tensors(self.held)), (other.logits, *_tensors(other.held)), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)

    def __hash__(self) -> int:
        return hash(self.ids)

    def describe(self) -> dict[str, Any]:
        return {"name": "Prefix", "ids": list(self.ids), "tokens": list(self.tokens), "found": dict(self.found)}

    def save(self, folder: str | Path) -> None:
        """Write `prefix.json`, which other engines can act on, and keys and values to `prefix.safetensors`.

        Whole or not at all. Raises `UnsupportedModelError` for a cache that holds more than keys and values.
        """
        files.write_prefix(Path(folder), self.to_json(), self.logits, self.held)

    def check_written(self) -> None:
        """Raises `UnsupportedModelError` if `save` would."""
        files.whole(self.held, len(self.ids))

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module, tokenizer: Any = None) -> Prefix:
        """Read what `save` wrote, for the same model.

        Raises `InputError` for other files, for another model, and for another tokenizer if both are known.
        """
        model = unwrapped(model)
        read = files.read_prefix(Path(folder))
        check_same(fingerprint(model), read.described["model"])
        tokenizer_hash = read.described.get("tokenizer_sha256")
        if tokenizer is not None and tokenizer_hash is not None and tokenizer_fingerprint(tokenizer) != tokenizer_hash:
            raise InputError(
                f"the prefix in {folder} was made with another tokenizer, in which its ids are other tokens"
            )
        assert isinstance(model, PreTrainedModel)
        where = device_of(model)
        return cls(
            ids=tuple(read.described["prefix_token_ids"]),
            logits=read.logits.to(where),
            made_with=read.described["model"],
            bos=read.described["bos_token_id"],
            room=room_of(model),
            found=read.described["found"],
            tokenizer=tokenizer_hash,
            tokens=tuple(read.described["prefix_tokens"]),
            held=read.cache(model, where),
        )

    def to_json(self) -> dict[str, Any]:
        """What an engine needs to act on it: ids before every text, and no BOS after them."""
        has_bos = self.bos is not None and self.bos in self.ids
        return {
            "prefix_token_ids": list(self.ids),
            "prefix_tokens": list(self.tokens),
            "bos_token_id": self.bos,
            "prefix_has_bos": has_bos,
            "add_bos_token": not has_bos if self.bos is not None else False,
            "keep_in_full_precision": {"positions": list(range(len(self.ids))), "what": ["keys", "values"]},
            "how_to_use": "Compute keys and values of prefix_token_ids once with the model in full precision, keep "
            "them unquantized at the start of the cache, and read every text after them"
            + (", without a BOS of its own." if has_bos else "."),
            "found": dict(self.found),
            "model": dict(self.made_with),
            "tokenizer_sha256": self.tokenizer,
        }


@dataclass(frozen=True, eq=False)
class _InText(Intervention):
    """A prefix as the beginning of the text."""

    prefix: Prefix

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        self.prefix.check(model)
        Serving(self.prefix, model, as_text=True).attach(stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        return _InText(self.prefix.control(generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        return {**self.prefix.describe(), "read": "as text"}


def _check_reading(model: nn.Module, ids: tuple[int, ...], cache: Cache) -> None:
    """Raises `UnsupportedModelError` for a model that reads tokens after its cache differently than in one pass."""
    text = torch.tensor([[*ids, *(PROBE * ids)[:PROBE]]], device=device_of(model))
    if apart := difference_behind(model, text, len(ids), cache):
        raise UnsupportedModelError(
            f"family '{family(model)}': it reads tokens after its cache differently than in one pass (logits differ by "
            f"{apart:.2g}), so text after a prefix would be wrong; transformers' Mamba layers drop their state there"
        )


def _tensors(cache: Cache) -> list[Tensor]:
    """All tensors of a cache, layer by layer."""
    return [value for layer in cache.layers for _, value in sorted(vars(layer).items()) if isinstance(value, Tensor)]


def _check_ids(model: nn.Module, ids: tuple[int, ...]) -> None:
    if not ids or not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise InputError(f"prefix {ids!r}: expected token ids, at least one")
    room = room_of(model)
    if room is not None and len(ids) >= room:
        raise InputError(f"a prefix of {len(ids)} tokens leaves no room: the model has positions for {room}")
    checked_inputs(model, [list(ids)])
