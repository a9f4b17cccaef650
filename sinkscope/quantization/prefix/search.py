"""Which tokens belong in a prefix: the outliers of these texts, or tokens after which nothing is an outlier."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import batches, checked_inputs, evaluating, unwrapped
from sinkscope.measurement.peaks import BATCH, Site, peaks, sites_of
from sinkscope.model.columns import columns_of
from sinkscope.quantization.prefix.identity import bos_of, check_decoder, room_of
from sinkscope.quantization.prefix.prefix import Prefix
from sinkscope.quantization.prefix.serving import own_tokens
from sinkscope.statistics import mean_interval

Objective = Literal["outliers", "peak", "bos"]
Progress = Callable[[int, int], object]

RARE = 0.1  # a token that is an outlier in a smaller share of the texts is not a candidate
MOST = 8  # tokens of a prefix found by its peak
TRIED = 24  # tokens tried for each of its positions
ENOUGH = 0.95  # a further token must lower the peak below this share of it
TEXTS = 8  # before which each candidate is tried
CHEAP = 4  # tokens with the lowest peaks, among which one without a cost is preferred
TOLERANCE = 0.02  # nats per token that a prefix may cost in full precision
MEDIAN_FLOOR = 1e-30


@dataclass(frozen=True)
class Outlier:
    """The token with the largest input to a linear map: in medians of its row, and which token it is."""

    site: str
    ratio: float
    token: int
    position: int
    largest_other: float


def find_prefix(
    model: nn.Module,
    inputs: Any,
    objective: str = "outliers",
    *,
    threshold: float = 64.0,
    site: str = "down",
    candidates: Sequence[int] | None = None,
    length: int | None = None,
    bos: int | None = None,
    tokenizer: Any = None,
    progress: Progress | None = None,
) -> Prefix:
    """The prefix for a model, found in full precision on texts as it will read them (token ids, or a dict).

    Every objective measures m_t = max_j |x_tj| at the inputs of the linear maps `site`, in medians of the text, and
    stores the largest at each in `Prefix.found["sites"]`.

    - "outliers" (Chen et al. 2024): a token is an outlier if m_t exceeds `threshold` medians. The length is the average
      number of outliers per text in the map with most of them, rounded up: the most frequent tokens among the outliers
      beyond position 0 that occur in at least a tenth of the texts, then the BOS. Their 64 is for large models; if no
      token reaches it, an `InputError` names the one that came closest.
    - "peak" (Son et al. 2024, whose second stage, tuning, is `calibrate_prefix`): greedily the token after which the
      largest activation of the texts is smallest, while each lowers it below 95 %, at most `length` (8) tokens. Each of
      the `candidates` costs a pass; by default they are the BOS and the 24 most frequent tokens.
    - "bos" (Liu et al. 2024b): the BOS alone.

    A prefix changes what the model reads, so it may cost something before anything is rounded: `found["cost"]`
    (`prefix_cost`). Prefixes without a cost are preferred: "peak" takes, for each position, the token with the lowest
    peak among those without a cost; "outliers" falls back to the BOS or to one of its tokens alone. A `UserWarning`
    reports a cost.

    Args:
        model: A causal language model.
        inputs: Texts.
        objective: "outliers", "peak" or "bos".
        threshold: For "outliers", in medians.
        site: The kind of linear maps whose inputs are measured; "experts", what a mixture is given, in models whose
            feed-forwards all are mixtures in one module.
        candidates: For "peak": the tokens to try.
        length: The largest number of tokens.
        bos: The token that begins a text, if the configuration does not name it; "outliers" needs none.
        tokenizer: Adds the tokens' names and a fingerprint.
        progress: Called after each candidate with its number and their total.

    Raises `InputError` for unknown objectives and sites, and as `Prefix.of`.
    """
    model = unwrapped(model)
    check_decoder(model)
    if objective not in get_args(Objective):
        raise unknown("objective", objective, get_args(Objective))
    if not threshold > 1:
        raise InputError(f"threshold = {threshold!r}: expected a number of medians above 1, such as 64")
    if length is not None and length < 1:
        raise InputError(f"length = {length}: expected at least 1")
    checked, _ = checked_inputs(model, inputs)
    bos = bos_of(model) if bos is None else bos
    site, places = sites_of(model, site)
    texts = _Texts.of(model, checked, places)
    report: dict[str, Any] = {"objective": objective, "site": site, "sites": [asdict(one) for one in texts.outliers()]}
    if objective == "outliers":
        ids, more = _by_outliers(texts, threshold, bos)
        ids = ids if length is None else ids[-length:]
        alone = [(token,) for token in reversed(ids)] if len(ids) > 1 else []  # the BOS, the last, is tried first
        ids, cost = _cheapest(model, checked, [ids, *alone], bos)
    elif objective == "peak":
        ids, more = _by_peak(model, checked, places, bos, candidates, length or MOST, progress)
        ids, cost = _cheapest(model, checked, [ids], bos)
    else:
        ids, cost = _cheapest(model, checked, [(_bos(bos),)], bos)
        more = {}
    if _costs(cost):
        warnings.warn(
            f"the prefix {ids} costs the full-precision model {cost['nats']:+.3f} nats per token on {cost['texts']} "
            "texts, before anything is rounded",
            UserWarning,
            stacklevel=2,
        )
    return Prefix.of(model, ids, found={**report, **more, "cost": cost}, tokenizer=tokenizer, bos=bos)


def prefix_cost(model: nn.Module, inputs: Any, prefix: Prefix) -> dict[str, Any]:
    """What reading after a prefix costs the model in full precision.

    `nats`: −log p of the next token with the prefix minus that without it, a mean over texts of the mean over a text's
    tokens that do not belong to the prefix, with its 95 % interval over texts as `low` and `high` (NaN for one text);
    `texts`: their number. 0 if every text begins with the prefix.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, BATCH)
    checked = {name: checked[name] for name in ("input_ids", "attention_mask") if checked.get(name) is not None}
    if (room := room_of(model)) is not None:
        checked = {name: value[:, : room - len(prefix.ids)] for name, value in checked.items()}
    first = checked["input_ids"][:, 0]
    anew = int(
        prefix.bos in prefix.ids[:-1] and bool((first == prefix.bos).all())
    )  # the prefix contains the BOS of the rows
    differences: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for batch in batches(model, checked, samples, BATCH):
            plain = _next_losses(model, batch)[:, anew:]
            batch = {name: value[:, anew:] for name, value in batch.items()}
            ids, mask = batch["input_ids"], batch.get("attention_mask")
            real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
            counted = (real & ~own_tokens(prefix, batch))[:, :-1] & real[:, 1:]
            with prefix.applied(model):
                after = _next_losses(model, batch)
            apart = torch.where(counted, after - plain, 0.0).sum(-1) / counted.sum(-1)
            differences.append(apart[counted.any(-1)])
    each = torch.cat(differences).double().cpu().numpy()
    if not len(each):
        raise InputError("no token of these texts is predicted after the prefix: give longer texts")
    cost = mean_interval(each)
    return {"nats": cost.value, "low": cost.low, "high": cost.high, "texts": len(each)}


def _next_losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Float[Tensor, "row position"]:
    log_p = model(**batch).logits[:, :-1].float().log_softmax(-1)
    return -log_p.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]


def _costs(cost: Mapping[str, Any]) -> bool:
    """Whether the interval of a cost lies above the tolerance; for one text, whether its value does."""
    low = cost["low"]
    return (cost["nats"] if low != low else low) > TOLERANCE  # NaN: one text has no interval


def _cheapest(
    model: nn.Module, inputs: Mapping[str, Any], prefixes: Sequence[tuple[int, ...]], bos: int | None
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The first of these prefixes without a cost, otherwise the one with the lowest cost; and its cost."""
    texts = {name: value[:TEXTS] for name, value in inputs.items() if name in ("input_ids", "attention_mask")}
    costs: list[dict[str, Any]] = []
    for ids in prefixes:
        costs.append(prefix_cost(model, texts, Prefix.of(model, ids, bos=bos)))
        if not _costs(costs[-1]):
            return ids, costs[-1]
    best = min(range(len(costs)), key=lambda at: costs[at]["nats"])
    return prefixes[best], costs[best]


@dataclass(frozen=True, eq=False)
class _Texts:
    """Texts, and the size of each of their tokens at each site, in medians of its row: NaN for padding."""

    ids: Int[Tensor, "row position"]
    order: Int[Tensor, "row position"]
    ratios: Mapping[str, Float[Tensor, "row position"]]

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any], places: Sequence[Site]) -> _Texts:
        read = peaks(model, inputs, places)
        if read.unread:
            raise InputError(
                f"'{read.unread[0]}' gets the tokens routed to it, whose positions are unknown: use site='experts', "
                "the input of the whole mixture"
            )
        columns = columns_of(model, inputs)
        ratios = {}
        for path, size in read.values.items():
            size = size.masked_fill(~columns.real.cpu(), torch.nan)
            ratios[path] = size / size.nanmedian(-1, keepdim=True).values.clamp(min=MEDIAN_FLOOR)
        return cls(inputs["input_ids"].cpu(), columns.order.cpu().expand(inputs["input_ids"].shape), ratios)

    def outliers(self) -> Iterator[Outlier]:
        """At each site the largest token, its size, and the largest size of any other token."""
        for path, ratio in self.ratios.items():
            flat = ratio.nan_to_num(0.0)
            row, column = divmod(int(flat.argmax()), flat.shape[1])
            token = int(self.ids[row, column])
            others = flat.masked_fill(self.ids == token, 0.0)
            position = int(self.order[row, column])
            yield Outlier(path, float(flat[row, column]), token, position, float(others.max()))


def _by_outliers(texts: _Texts, threshold: float, bos: int | None) -> tuple[tuple[int, ...], dict[str, Any]]:
    counts = {path: float((ratio > threshold).sum(-1).float().mean()) for path, ratio in texts.ratios.items()}
    if not any(counts.values()):
        top = max(texts.outliers(), key=lambda outlier: outlier.ratio)
        raise InputError(
            f"no token exceeds {threshold:g} medians at the {len(counts)} measured maps: the largest is "
            f"{top.ratio:.1f}, token {top.token} at position {top.position} in the input of '{top.site}'; lower "
            f"threshold (the largest of another token is {top.largest_other:.1f}), or use the BOS (objective='bos')"
        )
    number = ceil(max(counts.values()))
    outlying = torch.stack([ratio > threshold for ratio in texts.ratios.values()]).any(0) & (texts.order > 0)
    texts_with = Counter(
        token for ids, mask in zip(texts.ids, outlying, strict=True) for token in {*ids[mask].tolist()}
    )
    total = Counter(texts.ids[outlying].tolist())
    common = [token for token, _ in total.most_common() if token != bos and texts_with[token] >= RARE * len(texts.ids)]
    # The BOS goes last, so that texts that begin with one share it (`overlap`).
    ids = (*common[: number if bos is None else number - 1], *(() if bos is None else (bos,)))
    if not ids:
        raise InputError(
            "only first tokens are outliers, and the model has no BOS: any first token becomes the sink; give bos=, or "
            "choose ids yourself with Prefix.of"
        )
    share = {int(token): texts_with[token] / len(texts.ids) for token in texts_with}
    return ids, {"threshold": threshold, "outlying_per_text": counts, "number": number, "share_of_texts": share}


def _by_peak(
    model: nn.Module,
    inputs: Mapping[str, Any],
    places: Sequence[Site],
    bos: int | None,
    candidates: Sequence[int] | None,
    length: int,
    progress: Progress | None,
) -> tuple[tuple[int, ...], dict[str, Any]]:
    texts = inputs["input_ids"][:TEXTS]
    if inputs.get("attention_mask") is not None and not bool(inputs["attention_mask"].all()):
        raise InputError("objective='peak' tries tokens before texts: give texts without padding")
    if bos is not None and bool((texts[:, 0] == bos).all()):
        texts = texts[:, 1:]  # so that the BOS is tried as part of the prefix
    room = room_of(model)
    if room is not None and texts.shape[1] + length > room:
        texts = texts[:, : room - length]
    if not texts.shape[1]:
        raise InputError("objective='peak' needs texts of at least one token after a BOS, short enough for a prefix")
    tried = _tried(inputs["input_ids"], bos) if candidates is None else list(dict.fromkeys(candidates))
    if not tried:
        raise InputError("candidates: give at least one token")
    start = peak = _peak(model, texts, (), places)
    chosen: tuple[int, ...] = ()
    steps, done = [], 0
    while len(chosen) < length:
        left = [token for token in tried if not (token == bos and bos in chosen)]
        after = {}
        for token in left:
            after[token] = _peak(model, texts, (*chosen, token), places)
            done += 1
            if progress is not None:
                progress(done, length * len(tried))
        if not after:
            break
        lower = sorted((token for token in after if after[token] <= ENOUGH * peak), key=after.__getitem__)
        if not lower:
            break
        (*_, best), _ = _cheapest(model, inputs, [(*chosen, token) for token in lower[:CHEAP]], bos)
        chosen, peak = (*chosen, best), after[best]
        steps.append({"token": best, "peak": peak})
    if not chosen:
        raise InputError(
            f"no token of {len(tried)} lowers the largest activation of the texts, {start:.3g}, below {ENOUGH:.0%} of "
            "it: give other candidates, or there is no such sink"
        )
    return chosen, {"peak_without": start, "steps": steps, "candidates": tried}


def _peak(model: nn.Module, texts: Tensor, prefix: tuple[int, ...], places: Sequence[Site]) -> float:
    """The largest activation at the tokens after the prefix."""
    front = texts.new_tensor(prefix).expand(len(texts), -1)
    with evaluating(model):
        read = peaks(model, {"input_ids": torch.cat([front, texts], 1)}, places)
    if not read.values:
        raise InputError("the inputs of these maps are not the tokens of the texts: use another site")
    return max(float(size[:, len(prefix) :].max()) for size in read.values.values())


def _tried(ids: Tensor, bos: int | None) -> list[int]:
    frequent = [token for token, _ in Counter(ids.flatten().tolist()).most_common(TRIED)]
    return list(dict.fromkeys([*([] if bos is None else [bos]), *frequent]))


def _bos(bos: int | None) -> int:
    if bos is None:
        raise InputError("objective='bos', and the configuration names no BOS: give bos=")
    return bos
