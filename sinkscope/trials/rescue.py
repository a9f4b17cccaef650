"""The fewest linear maps in 16 bits, and the fewest tokens, that give back most of what rounding costs.

Ranked by one backward pass, verified on other texts, compared with random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from sinkscope.data import fed, seeded
from sinkscope.errors import InputError
from sinkscope.grids import Grid, fake_quantize
from sinkscope.hooks import device_of, evaluating, family, frozen, is_encoder_decoder, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.measurement import rows_of
from sinkscope.model.columns import columns_of
from sinkscope.quantization import LinearMap, QuantizationScheme, QuantizeLinear, linear_maps, scheme_named
from sinkscope.sinks import Tokens
from sinkscope.statistics import Interval, ratio_interval
from sinkscope.trials.arm import Arm, OnePass, Texts
from sinkscope.trials.run import Progress, run
from sinkscope.trials.texts import split
from sinkscope.trials.words import percent

SHARE = 0.9
RUNS = 20  # passes over the scored texts, at most, the unchanged model's among them
FEWEST = 12  # of them, with which an answer and its controls can be found
MANY = 17  # with fewer, every second number is tried first
MAPS = (1, 2, 4, 8, 16, 32, 64)  # numbers of maps that are tried first
TOKENS = (1, 2, 4, 8)  # numbers of tokens of a text that are tried
BASE = "everything rounded"
Unit = Literal["maps", "tokens"]
UNITS: tuple[Unit, ...] = ("maps", "tokens")


@dataclass(frozen=True, eq=False)
class Costs:
    """The cost of rounding as estimated by a backward pass, in nats of KL per token.

    `maps`: by path, the most expensive first; `tokens`: what protecting each token of each text would give back, over
    all maps together, (text, token).
    """

    maps: Mapping[str, float]
    tokens: Float[np.ndarray, "text token"]


def rounding_costs(
    model: nn.Module, ids: Int[Tensor, "text token"], quantizer: QuantizeLinear, batch_size: int = 8, seed: int = 0
) -> Costs:
    """An estimate of the KL that `quantizer` costs, split over maps and over tokens, from one pass forward and back.

    A map costs ½ Σ_t (g_t · δ_t)² / T: δ_t is the error of its output at token t if it alone is rounded, g_t the
    gradient of −Σ log p(y) with respect to that output, for y drawn from the model itself: the diagonal over tokens of
    the Fisher information, of which the KL is half, to second order.

    A token's credit: where each token has a range of its own, what its own errors cost. Where a text shares a range,
    errors shrink with the square of its end, so of a map's cost c the token with the j-th largest |x| is credited
    c (a_j² − a_{j+1}²) / a_1²: what taking it out of the range gives back when those before it are out already.

    Transforms before rounding, calibrated roundings and frozen ranges are not followed: weights and inputs are rounded
    to the nearest value in ranges of these texts. Experts are left out, and maps of groups of channels.

    Args:
        model: A causal decoder.
        ids: The texts to estimate on.
        quantizer: What is rounded, and how.
        batch_size: Texts per pass.
        seed: Seed of the tokens y.
    """
    maps = {
        path: one
        for path, one in linear_maps(model, quantizer.skip).items()
        if isinstance(one.module, nn.Linear | Conv1D) and not one.routed
    }
    costs = dict.fromkeys(maps, 0.0)
    credits = torch.zeros(ids.shape, dtype=torch.float64)
    generator = seeded("modules", seed)
    rows = slice(0, 0)

    def read(path: str, module: nn.Linear | Conv1D, args: tuple[Any, ...], output: Tensor) -> Tensor:
        x = args[0].detach()
        with torch.no_grad():
            weight = _rounded_weight(maps[path], quantizer)
            if output.shape[-1] != len(weight):  # a part of the matrix for each group of channels
                costs.pop(path, None)
                return output
            error = functional.linear(_rounded_input(x, quantizer), weight, module.bias)
            error -= output.detach()
        # A copy, whose gradient is that of this map alone.
        copied = output.clone()

        def add(gradient: Tensor) -> None:
            by_token = (gradient * error).sum(-1).double().square().cpu().reshape(rows.stop - rows.start, -1)
            costs[path] += float(by_token.sum())
            credits[rows] += _credited(x.reshape(*by_token.shape, -1), by_token, quantizer)

        if copied.requires_grad:
            copied.register_hook(add)
        return copied

    with ExitStack() as stack, evaluating(model), frozen(model), torch.enable_grad():
        embedded: Any = model.get_input_embeddings()  # type: ignore[operator]
        stack.callback(embedded.register_forward_hook(_with_gradient).remove)
        for path, one in maps.items():
            stack.callback(one.module.register_forward_hook(partial(read, path)).remove)
        for start in range(0, len(ids), batch_size):
            part = ids[start : start + batch_size].to(device_of(model))
            rows = slice(start, start + len(part))
            logs = model(**fed(model, part)).logits.float().log_softmax(-1)
            drawn = torch.multinomial(logs.detach().exp().flatten(0, 1).cpu(), 1, generator=generator)
            (-logs.flatten(0, 1).gather(1, drawn.to(logs.device)).sum()).backward()
    scaled = {path: cost / (2 * ids.numel()) for path, cost in costs.items()}
    ranked = dict(sorted(scaled.items(), key=lambda item: -item[1]))
    return Costs(ranked, (credits / (2 * ids.shape[1])).numpy())


def _with_gradient(module: nn.Module, args: Any, embedded: Tensor) -> Tensor:
    """The embeddings as a tensor that gradients reach; no leaf, since some families write into it."""
    return embedded.detach().requires_grad_().clone()


def _rounded_input(x: Tensor, quantizer: QuantizeLinear) -> Tensor:
    grid = quantizer.activations
    if grid is None:
        return x
    if not isinstance(grid, Grid):
        return grid.rounded(x)
    # (text, token, in): a range over the tensor becomes one per text, which does not depend on the batch.
    flat = x.reshape(-1, *x.shape[-2:])
    return fake_quantize(flat, replace(grid, over="head") if grid.over == "tensor" else grid).reshape(x.shape)


def _rounded_weight(one: LinearMap, quantizer: QuantizeLinear) -> Tensor:
    weight, grid = one.weight.detach(), quantizer.weights
    if isinstance(grid, Grid):
        return fake_quantize(weight, grid)
    return grid.fitted(weight).rounded(weight)


def _credited(
    x: Float[Tensor, "text token in"], cost: Float[Tensor, "text token"], quantizer: QuantizeLinear
) -> Float[Tensor, "text token"]:
    """What protecting each token would give back of the cost of one map, `cost`, summed over a text."""
    grid = quantizer.activations
    if grid is None:
        return torch.zeros_like(cost)
    if not isinstance(grid, Grid) or grid.over == "token":
        return cost
    size = x.double().abs().amax(-1).cpu()
    # a_1 ≥ a_2 ≥ … and 0 after the last: the shares of a text telescope to 1.
    ordered, places = size.sort(-1, descending=True)
    ends = functional.pad(ordered, (0, 1)).square()
    shares = (ends[:, :-1] - ends[:, 1:]) / ends[:, :1].clamp(min=1e-30)
    return torch.zeros_like(cost).scatter_(1, places, cost.sum(-1, keepdim=True) * shares)


@dataclass(frozen=True, eq=False)
class Rescued:
    """One set of maps or tokens: what it recovers of the KL, as many `random` ones recover, and what is left.

    `word`: the grade of what is left; `values`: its KL, text by text; `enough`: whether the share is that asked for.
    """

    count: int
    recovered: Interval
    random: float | None
    word: str
    values: Float[np.ndarray, " text"]
    enough: bool

    def recovered_in_words(self) -> str:
        """The share in percent, with its interval, and that of random ones."""
        share = percent(self.recovered)
        return share if self.random is None else f"{share}, as many random ones {100 * self.random:.0f} %"


@dataclass(frozen=True, eq=False)
class Rescue:
    """What of a scheme to leave in full precision.

    `tried`: one row for each set that ran: `what` (maps or tokens), `count`, `recovered` (of the KL, with its interval
    over texts), `random` (whether it is a control), `kl` (what is left, nats a token), `word` (its grade). `maps`: the
    fewest maps that recover `share`; `tokens`: the fewest tokens of a text; None if no number that was tried does.
    `costs`: the ranking. `values`: the KL of each text under what was tried, by its arm's name. `runs`: passes over the
    texts.
    """

    scheme: str
    share: float
    cost: Interval
    texts: int
    maps: tuple[str, ...] | None
    tokens: int | None
    of_maps: int
    tried: pd.DataFrame
    costs: Mapping[str, float]
    positions: tuple[int, ...]
    values: Mapping[str, Float[np.ndarray, " text"]]
    runs: int

    def best(self, what: Unit) -> Rescued | None:
        """The fewest that recover `share`, else the number that recovers most; None if no number was tried."""
        count = self.tokens if what == "tokens" else self.maps and len(self.maps)
        rows = self.tried[(self.tried["what"] == what) & ~self.tried["random"]]
        if rows.empty:
            return None
        row = rows.loc[rows["recovered"].idxmax()] if count is None else rows[rows["count"] == count].iloc[0]
        random = self.tried[(self.tried["what"] == what) & self.tried["random"] & (self.tried["count"] == row["count"])]
        return Rescued(
            int(row["count"]),
            Interval(row["recovered"], row["low"], row["high"]),
            float(random["recovered"].mean()) if len(random) else None,
            row["word"],
            self.values[f"{what} {row['count']}"],
            enough=count is not None,
        )

    @property
    def found(self) -> dict[Unit, Rescued]:
        """The best of each that was tried: models of experts alone have no map to rank, schemes of weights no token."""
        return {what: best for what in UNITS if (best := self.best(what)) is not None}

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.tried.empty:
            return f"'{self.scheme}': a KL of {self.cost.value:.3g} cannot be told from 0: no rescue."
        parts = [self._sentence_of(best, what) for what, best in self.found.items()]
        return f"'{self.scheme}': of a KL of {self.cost.value:.3g}, {'; '.join(parts)} ({self.texts} texts)."

    def _sentence_of(self, best: Rescued, what: Unit) -> str:
        one = best.count == 1
        token = "token of a text" if one else "tokens of a text"
        noun = f" of {self.of_maps} linear maps in 16 bits" if what == "maps" else f" {token}"
        text = f"{best.count}{noun} give{'s' if one else ''} back {best.recovered_in_words()}"
        if best.enough:
            return text
        return f"no number of {what} that was tried gives back {100 * self.share:.0f} %: {text}"

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data."""
        ranked = [[path, float(f"{cost:.3g}")] for path, cost in list(self.costs.items())[: max(MAPS)]]
        return {
            "scheme": self.scheme,
            "share": self.share,
            "cost": asdict(self.cost),
            "texts": self.texts,
            "maps": None if self.maps is None else list(self.maps),
            "tokens": self.tokens,
            "positions": list(self.positions),
            "tried": self.tried.to_dict("records"),
            "ranked": ranked,
            "runs": self.runs,
            "sentence": self.sentence,
        }


def rescue(
    model: nn.Module,
    inputs: Any,
    scheme: str | QuantizationScheme,
    share: float = SHARE,
    *,
    calibrate_on: Any = None,
    batch_size: int = 8,
    seed: int = 0,
    runs: int = RUNS,
    progress: Progress | None = None,
) -> Rescue:
    """The fewest linear maps left in 16 bits, and the fewest tokens of a text, that recover `share` of a scheme's KL.

    Maps are ranked on texts that are not scored (`rounding_costs`), 1, 2, 4 … 64 of them are left alone, then counts
    between the last that fails and the first that succeeds. Tokens are ranked within the scored texts themselves, as
    outliers are, and protected in all maps; ranges that are fitted beforehand are fitted anew without as many tokens of
    each text that they are fitted on. Each answer is compared with as many random maps and tokens.

    Args:
        model: A transformers model of one stack, with logits and token ids.
        inputs: Token ids (N, T) without padding: texts to rank on and to score.
        scheme: A scheme of linear maps, by name or as a value.
        share: The share of the KL of everything rounded.
        calibrate_on: Texts of one's own to rank and fit on; all of `inputs` are scored then.
        batch_size: Texts that go through the model at once.
        seed: For draws and controls.
        runs: Passes over the scored texts, at most, 12 to 20; with fewer than 17, 1, 4, 16 and 64 maps are tried first.
        progress: Called after each arm of each batch.

    Raises `InputError` for encoder-decoders, schemes of caches and others than `QuantizeLinear`, and for shares outside
    0…1.
    """
    if not FEWEST <= runs <= RUNS:
        raise InputError(f"runs = {runs}: passes over the texts, {FEWEST} to {RUNS}")
    if not 0 < share < 1:
        raise InputError(f"share = {share}: the part of the cost to give back, above 0 and below 1")
    model = unwrapped(model)
    if is_encoder_decoder(model):
        raise InputError(
            f"family '{family(model)}': a rescue ranks the maps of one stack, and this is an encoder-decoder; leave "
            "maps out by name instead (skip)"
        )
    chosen = scheme_named(scheme) if isinstance(scheme, str) else scheme
    if chosen.caches:
        raise InputError(
            f"{chosen.name} rounds the cache: a rescue leaves linear maps in 16 bits; protect tokens instead"
        )
    parts = split(model, inputs, "fits" if chosen.fits else "chooses", calibrate_on=calibrate_on)
    scored, calibration = parts.scored, parts.calibration
    assert calibration is not None
    if scored.ids is None or calibration.ids is None or not (scored.real is None or bool(scored.real.all())):
        raise InputError("a rescue needs texts of token ids, in rows of one length without padding")
    make = chosen.on(model, calibration.inputs)
    made = make(None)
    if not isinstance(made, QuantizeLinear):
        raise InputError(f"{chosen.name} is {type(made).__name__}: a rescue needs a scheme of QuantizeLinear")
    costs = rounding_costs(model, calibration.ids, made, batch_size, seed)
    verifying = _Verifying(
        model, scored, chosen, calibration, make, made, batch_size, seed, parts.record, progress, runs
    )
    with_tokens = made.activations is not None
    credits = rounding_costs(model, scored.ids, made, batch_size, seed).tokens if with_tokens else None
    return verifying.search(share, costs, credits)


@dataclass
class _Verifying:
    """Runs sets of maps and tokens, and remembers what each recovered."""

    model: nn.Module
    scored: Texts
    scheme: QuantizationScheme
    calibration: Texts
    make: Callable[[Tokens | None], Intervention]
    made: QuantizeLinear  # without protected tokens
    batch_size: int
    seed: int
    calibrated_on: Mapping[str, Any] | None
    progress: Progress | None
    most: int  # runs

    def __post_init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.values: dict[str, np.ndarray] = {}
        self.runs = 0
        self.base: np.ndarray | None = None

    def search(self, share: float, costs: Costs, credits: Float[np.ndarray, "text token"] | None) -> Rescue:
        """Run what may answer. `costs`: on the texts to calibrate on; `credits`: of the scored texts' tokens."""
        rng = np.random.default_rng(self.seed)
        ranked = list(costs.maps)
        drawn = rng.permutation(ranked).tolist()
        tokens, random_tokens = self._nested(credits, rng)
        fitted = self._nested(costs.tokens if self.scheme.fits and credits is not None else None, rng)
        # The same in all arms and runs, so that all are scored on the same predictions.
        touched = None if tokens is None else (tokens >= 0) | (random_tokens >= 0)
        stride = 1 if self.most >= MANY else 2
        counts = [count for count in MAPS[::stride] if count < len(ranked)]
        nested = [] if tokens is None else list(TOKENS[::stride])
        cost = self._run(
            [
                self._arm(BASE, self.made, touched),
                *(self._maps(count, ranked, touched) for count in counts),
                *(self._tokens(count, tokens, fitted[0], touched) for count in nested),
            ],
            baseline=True,
        )
        fewest: dict[str, int | None] = {"maps": None, "tokens": None}
        if cost.low > 0:
            between = {"maps": self._between("maps", share, len(ranked)), "tokens": self._between("tokens", share)}
            left = self.most - self.runs - 4  # the unchanged model twice more, and two controls
            # One of the runs that are left is for tokens.
            more = [self._maps(count, ranked, touched) for count in between["maps"][: max(0, left - 1)]]
            more += [self._tokens(count, tokens, fitted[0], touched) for count in between["tokens"][: left > 0]]
            self._run(more)
            fewest = {what: self._fewest(what, share) for what in fewest}
            best = {what: fewest[what] or self._most(what) for what in fewest}
            controls = []
            if best["maps"]:
                # Controls may not be the maps that they are compared with.
                others = [path for path in drawn if path not in ranked[: best["maps"]]]
                if len(others) >= best["maps"]:
                    controls.append(self._maps(best["maps"], others, touched, random=True))
            if best["tokens"]:
                controls.append(self._tokens(best["tokens"], random_tokens, fitted[1], touched, random=True))
            self._run(controls)
        else:
            self.rows.clear()
        map_count = fewest["maps"]
        places: tuple[int, ...] = ()
        if tokens is not None:  # positions that are chosen in at least half of the texts
            chosen = (tokens >= 0) & (tokens < (fewest["tokens"] or max(TOKENS)))
            places = tuple(np.flatnonzero(chosen.mean(0) >= 0.5).tolist())
        columns = ["what", "count", "recovered", "low", "high", "random", "kl", "word"]
        table = pd.DataFrame(self.rows, columns=columns)
        return Rescue(
            self.scheme.name,
            share,
            cost,
            self.scored.count,
            None if map_count is None else tuple(ranked[:map_count]),
            fewest["tokens"],
            len(ranked),
            table.sort_values(["what", "random", "count"], ignore_index=True),
            costs.maps,
            places,
            self.values,
            self.runs,
        )

    def _nested(
        self, credits: Float[np.ndarray, "text token"] | None, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "text token"] | None, Any]:
        """For each token its rank among the first ones, and among random others; −1 beyond the largest count."""
        if credits is None:
            return None, None
        # A third of a text at most: as many random tokens are drawn, and some must be left to score.
        count, ranks = min(max(TOKENS), credits.shape[1] // 3), np.full(credits.shape, -1)
        random = np.full(credits.shape, -1)
        for row, values in enumerate(credits):
            order = np.argsort(-values, kind="stable")
            ranks[row, order[:count]] = np.arange(count)
            random[row, rng.permutation(order[count:])[:count]] = np.arange(count)
        return ranks, random

    def _maps(self, count: int, paths: Sequence[str], touched: Any, *, random: bool = False) -> Arm:
        name = f"{'random ' * random}maps {count}"
        return self._arm(name, replace(self.made, skip=(*self.made.skip, *paths[:count])), touched)

    def _tokens(self, count: int, ranks: Any, fitted: Any, touched: Any, *, random: bool = False) -> Arm:
        """The first `count` tokens of each scored text protected; `fitted`: ranks in the texts that ranges are of."""

        def chosen(ranks: Any, texts: Texts) -> Tokens:
            mask = (ranks >= 0) & (ranks < count)
            return Tokens(mask[:, None, None], rows_of(columns_of(self.model, texts.inputs)), (), "ranked tokens")

        made = self.made
        if fitted is not None:
            refitted = self.make(chosen(fitted, self.calibration))
            assert isinstance(refitted, QuantizeLinear)
            made = refitted
        return self._arm(f"{'random ' * random}tokens {count}", made, touched, chosen(ranks, self.scored))

    def _arm(self, name: str, made: QuantizeLinear, touched: Any, tokens: Tokens | None = None) -> Arm:
        def places(texts: Texts) -> Bool[Tensor, "text token"]:
            return torch.from_numpy(touched)[texts.rows]

        def opened(model: nn.Module, texts: Texts) -> Any:
            change = made if tokens is None else replace(made, protect=tokens.part(texts.rows))
            return change.applied(model)

        return Arm(name, opened, touched=None if touched is None else places, baseline=name == BASE)

    def _run(self, arms: Sequence[Arm], *, baseline: bool = False) -> Interval:
        """Run arms and note what each recovered; returns the cost of everything rounded, of the first run."""
        if not arms:
            return Interval(0.0, 0.0, 0.0)
        trial = run(
            self.model,
            self.scored,
            arms,
            reading=OnePass(),
            controls=0,
            calibrated_on=self.calibrated_on,
            seed=self.seed,
            batch_size=self.batch_size,
            about={"kind": "rescue"},
            progress=self.progress,
        )
        self.runs += len(trial.arms)
        if baseline:
            self.base = trial.values(BASE)
        assert self.base is not None
        for arm in arms:
            if arm.name == BASE:
                continue
            *random, what, count = arm.name.split()
            # The first run's baseline serves all: later ones read the same texts and leave it out.
            unrecovered = ratio_interval(trial.values(arm.name), self.base)
            row = {"what": what, "count": int(count), "random": bool(random)}
            row |= {"recovered": 1 - unrecovered.value, "low": 1 - unrecovered.high, "high": 1 - unrecovered.low}
            self.rows.append(row | {"kl": trial.mean(arm.name).value, "word": trial.word(arm.name)})
            self.values[arm.name] = trial.values(arm.name)
        return trial.mean(BASE) if baseline else Interval(0.0, 0.0, 0.0)

    def _tried(self, what: str) -> dict[int, float]:
        rows = [row for row in self.rows if row["what"] == what and not row["random"]]
        return {row["count"]: row["recovered"] for row in sorted(rows, key=lambda row: row["count"])}

    def _fewest(self, what: str, share: float) -> int | None:
        return next((count for count, recovered in self._tried(what).items() if recovered >= share), None)

    def _most(self, what: str) -> int | None:
        tried = self._tried(what)
        return max(tried, key=tried.__getitem__) if tried else None

    def _between(self, what: str, share: float, total: int | None = None) -> list[int]:
        """Counts between the last that failed and the first that succeeded, the middle first; `total` would succeed."""
        end = self._fewest(what, share) or total
        if end is None:
            return []
        start = max((count for count in self._tried(what) if count < end), default=0)
        middle = (start + end) // 2
        counts = [middle, (start + middle) // 2, (middle + end) // 2]
        return [count for count in dict.fromkeys(counts) if start < count < end]
