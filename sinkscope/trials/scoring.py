"""What the arms of a trial predict on the same texts, as numbers per text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, DynamicCache

from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import device_of, evaluating, family, part, without_cache
from sinkscope.trials.arm import REFERENCE, Arm, OnePass, Reading, Texts, Written
from sinkscope.trials.feeding import Feed, Prompt

PLACES = 8  # of a text that are compared at once
UNKNOWN = (torch.nan, torch.nan)


@dataclass(frozen=True, eq=False)
class Scores:
    """Numbers of one arm, one per text, NaN for what does not apply.

    `kl`: mean of KL(reference ‖ arm) over the scored places, in nats; `nats`: mean of −log p of the next token;
    `agreement`: share of the places at which both find the same token most likely; `scored`: how many places; `bytes`:
    what the cache holds after the context, per text; `bytes_16`: the same of a model in 16 bits, whose numbers in full
    precision take two bytes; `seconds`: time per text.
    """

    kl: Float[Tensor, " text"]
    nats: Float[Tensor, " text"]
    agreement: Float[Tensor, " text"]
    scored: Float[Tensor, " text"]
    bytes: float
    bytes_16: float
    seconds: float


def scored(
    model: nn.Module, texts: Texts, arms: Sequence[Arm], reading: Reading, left_out: Bool[Tensor, "text token"] | None
) -> Iterator[tuple[str, Scores]]:
    """The scores of each arm on these texts.

    Args:
        model: The model.
        texts: A batch, of few texts: predictions of arms that others are compared with are held, texts × scored ×
            vocabulary × 4 bytes each.
        arms: An arm that others are compared with comes before them.
        reading: How the texts are read.
        left_out: Tokens whose predictions are not scored; None to score all.

    Raises `InputError` for predictions that are NaN.
    """
    referred = {arm.against for arm in arms}
    held: dict[str, _Reference] = {}
    prompt: Prompt | None = None
    for arm in arms:
        start = time.perf_counter()
        with evaluating(model), torch.no_grad(), arm.open(model, texts) as cache:
            predicted = _predicted(model, texts, reading, cache, arm, prompt, arms if arm.name == REFERENCE else ())
        prompt = predicted.prompt or prompt
        seconds = (time.perf_counter() - start) / texts.count
        if bool(predicted.logs[..., :1].isnan().any()):  # log_softmax makes a row with one NaN a row of them
            raise InputError(f"predictions of '{arm.name}' are NaN, so there is nothing to compare")
        if arm.name in referred:
            held[arm.name] = _Reference(predicted.logs)
        if arm.against not in held:
            raise ValueError(f"'{arm.name}' is compared with '{arm.against}', which does not come before it")
        yield arm.name, _compared(predicted, held[arm.against], texts, left_out, seconds)


@dataclass(frozen=True, eq=False)
class _Predicted:
    """`logs`: log p (text, place, vocabulary), or the written ids where tokens are written; `first`: the token after
    which the first place stands; `bytes`: held by the cache, all texts together, as it is and of a model in 16 bits."""

    logs: Tensor
    first: int
    bytes: tuple[float, float]
    written: bool = False
    prompt: Prompt | None = None


@dataclass(frozen=True, eq=False)
class _Reference:
    """The predictions of an arm that others are compared with."""

    logs: Tensor

    @cached_property
    def best(self) -> Tensor:
        """The most likely token of each place."""
        return self.logs.argmax(-1)


def _predicted(
    model: nn.Module,
    texts: Texts,
    reading: Reading,
    cache: Cache | None,
    arm: Arm,
    first_pass: Prompt | None,
    others: Sequence[Arm],
) -> _Predicted:
    """What one arm predicts, from `first_pass` on where it can. `others`: arms that may go on from this one's."""
    if isinstance(reading, OnePass):
        if cache is not None:
            raise ValueError("an arm with a cache is read through it")
        inputs = part(texts.inputs, slice(0, texts.count), texts.count, device_of(model))
        logits = getattr(model(**inputs, **without_cache(model)), "logits", None)
        if not isinstance(logits, Tensor):
            raise UnsupportedModelError(
                f"family '{family(model)}', {type(model).__name__}: it has no logits, so there is nothing to compare; "
                "load the model with its head"
            )
        cut = logits[:, reading.from_token :] if logits.ndim == 3 else logits
        return _Predicted(cut.float().log_softmax(-1).cpu(), reading.from_token, UNKNOWN)
    ids = texts.ids
    assert ids is not None
    stored = cache is not None
    feed = Feed(model, DynamicCache(config=model.config) if cache is None else cache)
    if isinstance(reading, Written):
        new, coming = [], ids[:, feed.seen :]
        for _ in range(reading.n):
            coming = feed.read(coming).argmax(-1, keepdim=True)
            new.append(coming.cpu())
        return _Predicted(torch.cat(new, 1), 0, _sizes(feed.cache), written=True)
    context, prompt = ids[:, feed.seen : reading.context].to(device_of(model)), None
    if others:
        logits, prompt = feed.read_for(context, others)
    else:
        logits = feed.read_after(first_pass, arm, context)
    logs = [logits[:, None].log_softmax(-1).cpu()]
    held = _sizes(feed.cache)
    # The last token is predicted, not read.
    rest = ids[:, reading.context : -1]
    # Such an arm leaves the model as it is; the full cache is read like those that it is compared with.
    if reading.chunk == 1 and any(one.first_pass == "states" for one in (arm, *others)):
        parts = feed.read_singly(rest)
    else:
        parts = (feed.read_all(one) for one in rest.split(reading.chunk or rest.shape[1], 1) if rest.shape[1])
    logs += [read.log_softmax(-1).cpu() for read in parts]
    held = held if stored or held[0] else UNKNOWN
    return _Predicted(torch.cat(logs, 1), reading.context - 1, held, prompt=prompt)


def _sizes(cache: Cache) -> tuple[float, float]:
    """Bytes that a cache holds, and those that it would hold of a model in 16 bits."""
    return held_bytes(cache), held_bytes(cache, 2)


def _compared(
    predicted: _Predicted, reference: _Reference, texts: Texts, left_out: Tensor | None, seconds: float
) -> Scores:
    held, held_16 = (size / texts.count for size in predicted.bytes)
    if predicted.written:
        # cumprod: 1 up to the first token that differs, 0 from there on.
        same = (predicted.logs == reference.logs).long().cumprod(1).double().mean(1)
        nothing = torch.full((texts.count,), torch.nan, dtype=torch.float64)
        count = torch.full((texts.count,), float(predicted.logs.shape[1]), dtype=torch.float64)
        return Scores(nothing, nothing, same, count, held, held_16, seconds)
    logs = (
        predicted.logs
        if predicted.logs.ndim == 3
        else predicted.logs.flatten(1, -2)
        if predicted.logs.ndim > 3
        else predicted.logs[:, None]
    )
    # Now (text, place, vocabulary): a model that predicts once per text has one place.
    against = reference.logs.view(logs.shape)
    counted, targets = _places(logs, predicted.first, texts, left_out)
    kl, same = torch.empty(logs.shape[:2], dtype=torch.float64), torch.empty(logs.shape[:2], dtype=torch.float64)
    # The reference itself: exactly 0, without a pass over the vocabulary.
    if against.data_ptr() == logs.data_ptr():
        kl.zero_(), same.fill_(1.0)
    else:
        best = reference.best.view(logs.shape[:2])
        for row in range(len(logs)):  # a few places at a time: their products stay in the processor's cache
            for start in range(0, logs.shape[1], PLACES):
                part = slice(start, start + PLACES)
                p, q = against[row, part], logs[row, part]
                # Terms in single precision, which the logs have, and their sum in double: 3 times as fast.
                sums = p.exp().mul_(p - q).sum(-1, dtype=torch.float64)
                if bool(sums.isnan().any()):  # 0 · log 0, of tokens that the reference rules out
                    terms = (p.exp() * (p - q)).masked_fill_(p == -torch.inf, 0.0)
                    sums = terms.sum(-1, dtype=torch.float64)
                kl[row, part] = sums
                same[row, part] = (best[row, part] == q.argmax(-1)).double()
    nats = torch.full_like(kl, torch.nan)
    if targets is not None:
        nats = -logs.gather(-1, targets[..., None])[..., 0].double()
    return Scores(
        _mean(kl, counted), _mean(nats, counted), _mean(same, counted), counted.double().sum(1), held, held_16, seconds
    )


def _places(
    logs: Tensor, first: int, texts: Texts, left_out: Tensor | None
) -> tuple[Bool[Tensor, "text place"], Tensor | None]:
    """Which predictions count, and the tokens that they are of; None where the model predicts no next token.

    Predictions at padding do not count, nor those of it, nor those at tokens that are left out. Raises
    `UnsupportedModelError` for a model that is given a mask over other tokens than those that it predicts at.
    """
    ids, mask, places = texts.ids, texts.real, logs.shape[1]
    if mask is not None and not bool(mask.all()) and first + places != mask.shape[1]:
        raise UnsupportedModelError(
            f"it predicts at {places} places, and the mask is over {mask.shape[1]} tokens, so which predictions are "
            "of padding cannot be told: give texts of one length, without a mask"
        )
    tokens = ids if ids is not None else texts.inputs.get(texts.mask_name.replace("attention_mask", "inputs_embeds"))
    real = mask
    if real is None and isinstance(tokens, Tensor):
        real = torch.ones(tokens.shape[:2], dtype=torch.bool)
    if real is None or first + places > real.shape[1]:
        return torch.ones(logs.shape[:2], dtype=torch.bool), None
    window = slice(first, first + places)
    counted = real[:, window].cpu()
    if left_out is not None:
        counted = counted & ~left_out[:, window].cpu()
    # The place of token t predicts token t + 1, which must be real as well.
    follows = functional.pad(real, (0, 1), value=False)[:, first + 1 : first + 1 + places].cpu()
    if ids is None or not texts.predicts_next:
        return counted & follows if texts.predicts_next else counted, None
    return counted & follows, functional.pad(ids, (0, 1))[:, first + 1 : first + 1 + places].cpu()


def _mean(values: Tensor, counted: Tensor) -> Float[Tensor, " text"]:
    """The mean of each text over its counted places; NaN where it has none."""
    total = values.masked_fill(~counted, 0.0).sum(1)
    return torch.where(counted.any(1), total / counted.sum(1).clamp(min=1), torch.nan)
