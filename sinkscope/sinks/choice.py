"""Choices of tokens, as values: the only vocabulary for "these tokens".

Tokens protected from eviction or rounding, and tokens that an intervention acts on, are given as a choice; choices are
added with `+`. Some can be evaluated in a single pass, from positions or ids (`places`); all can be resolved into
`Tokens` from the evidence that they need (`needs`, `resolve`), which `sinkscope.find_tokens` measures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import InputError, is_number, is_whole
from sinkscope.sinks.rule import EPSILON, by_position, by_row, check_epsilon, counted, means_by_position
from sinkscope.sinks.tokens import Rows, Tokens

DOWN = "down"  # the role of a map


class NothingChosenError(InputError):
    """Raised if a choice selects no token of the texts; the message names the nearest one."""


@dataclass(frozen=True, eq=False)
class ReceivedAttention:
    """What tokens receive, from a measurement of one stack.

    `received` is α, `visible` the number of queries that see a position, `uniform` what uniform attention would give; a
    sample is a document of text `row` that starts at its real token `start`. `layers`: the model's own numbers.
    `slots`: the mean share of attention that learned slots take.
    """

    received: Float[np.ndarray, "sample layer head position"]
    visible: Float[np.ndarray, "sample layer position"]
    uniform: Float[np.ndarray, "sample layer position"]
    layers: tuple[int, ...]
    row: Int[np.ndarray, " sample"]
    start: Int[np.ndarray, " sample"]
    slots: float = 0.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """Texts, and what was measured in them; None for what was not measured.

    `peaks`: max_j |x_tj| of every token at the input of each linear map, (row, token), by the map's role (down, up,
    query …); `channels`: |h_t| at a depth and dimension, (row, token), by that pair; `sites`: for roles that the model
    has no map of, the role that was read instead.
    """

    rows: Rows
    received: ReceivedAttention | None = None
    peaks: Mapping[str, tuple[Float[np.ndarray, "row token"], ...]] = field(default_factory=dict)
    channels: Mapping[tuple[int, int], Float[np.ndarray, "row token"]] = field(default_factory=dict)
    sites: Mapping[str, str] = field(default_factory=dict)


By = Literal["position", "row"]


class Choice(ABC):
    """A choice of tokens: a frozen value. `str(choice)` are its words, which `parse` reads.

    `by` and `measurement` of `Measured` have no words and are left out of them.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """The evidence that it needs: "attention", "activations", "hidden", "ids"; empty if positions suffice."""

    def __add__(self, other: Choice) -> Choice:
        parts = dict.fromkeys((*parts_of(self), *parts_of(other)))
        return Sum(tuple(parts)) if len(parts) > 1 else self

    @property
    def in_a_pass(self) -> bool:
        """Whether positions and ids determine its tokens, so that any pass can evaluate it (`places`)."""
        return False

    def places(self, order: Any, ids: Any, real: Any) -> Any:
        """Which columns of a pass are chosen, for numpy and torch alike.

        `order`: positions within documents; `ids`: token ids or None; `real`: False for padding. Raises `InputError`,
        naming the alternative, for a choice that a pass cannot evaluate.
        """
        raise InputError(
            f"'{self}' is known after a look at whole texts, which a pass does not show: resolve it first, with "
            "find_tokens(model, texts, choice)"
        )

    @abstractmethod
    def resolve(self, evidence: Evidence) -> Tokens:
        """The tokens, from the evidence. Raises `NothingChosenError` if there are none."""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Measured(Choice):
    """The sinks: tokens that some head gives more than `epsilon` of its attention, by the rule of `sinks.rule`.

    by="position": positions, from means over the measured texts, valid for any text. by="row": the tokens of each text,
    which must itself be measured. With a `measurement` nothing is run.

    Args:
        epsilon: Attention per query that sees the token, between 0 and 1.
        by: Whether positions of all texts or tokens of each text are chosen.
        measurement: A `Measurement` with `attention_received`, of the same model.
    """

    epsilon: float = EPSILON
    by: By = "position"
    measurement: Any = None

    needs = frozenset({"attention"})

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.by not in ("position", "row"):
            raise InputError(f"by = {self.by!r}: 'position' or 'row'")
        if self.by == "row" and self.measurement is not None:
            raise InputError("Measured(by='row'): the tokens of a text are read in that text: leave out measurement")

    def resolve(self, evidence: Evidence) -> Tokens:
        if self.measurement is not None:
            return self.measurement.sinks(epsilon=self.epsilon, by="position")
        known = evidence.received
        if known is None:
            raise InputError(f"'{self}' needs the attention that tokens receive: find_tokens(model, texts, choice)")
        return self.of(known, evidence)

    def of(self, known: ReceivedAttention, evidence: Evidence | None = None) -> Tokens:
        """The tokens, from what a stack's tokens receive; `evidence` has the texts, for by="row".

        Raises `NothingChosenError` if no head has a sink, naming the nearest α, and slots if they take the attention.
        """
        arrays = known.received, known.visible, known.uniform
        by_sample = by_row(*arrays, self.epsilon)
        mask = by_position(*arrays, self.epsilon)[None] if self.by == "position" else by_sample
        if not mask.any():
            own = int(by_sample.any((1, 2, 3)).sum())
            raise NothingChosenError(_no_sink(known, self.epsilon, self.by, own))
        texts = f"{len(known.received)} documents"
        about = {"epsilon": self.epsilon, "by": self.by, "measured_on": texts}
        if self.by == "position":
            width = int(np.flatnonzero(mask.any((0, 1, 2)))[-1]) + 1
            return Tokens(mask[..., :width], None, known.layers, str(self), about)
        assert evidence is not None
        rows = evidence.rows
        wide = np.zeros((len(rows), *mask.shape[1:3], rows.order.shape[1]), dtype=bool)
        for sample, (row, start) in enumerate(zip(known.row.tolist(), known.start.tolist(), strict=True)):
            stop = min(start + mask.shape[-1], wide.shape[-1])
            # Several documents of a row are samples of their own, each put back where it starts.
            wide[row, ..., start:stop] |= mask[sample, ..., : stop - start]
        return Tokens(wide & rows.real[:, None, None], rows, known.layers, str(self), about)

    def __str__(self) -> str:
        return "measured" if self.epsilon == EPSILON else f"measured@{_number(self.epsilon)}"


@dataclass(frozen=True)
class Online(Choice):
    """The sinks so far while a text is read: the rule of `sinks.rule` over the queries so far.

    For caches, which see attention as it happens; a group of heads that shares keys uses the largest α of its heads. It
    cannot be resolved elsewhere.
    """

    epsilon: float = EPSILON

    needs = frozenset({"attention"})

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    def resolve(self, evidence: Evidence) -> Tokens:
        raise InputError(f"'{self}' is read inside a cache, as the text comes: for whole texts take measured")

    def __str__(self) -> str:
        return "online" if self.epsilon == EPSILON else f"online@{_number(self.epsilon)}"


@dataclass(frozen=True)
class First(Choice):
    """The first n tokens of each document, whatever they are. Source: Xiao et al. 2023 (there 4)."""

    n: int = 4

    def __post_init__(self) -> None:
        _check_count("first", self.n)

    @property
    def in_a_pass(self) -> bool:
        return True

    def places(self, order: Any, ids: Any, real: Any) -> Any:
        return (order >= 0) & (order < self.n) & real

    def resolve(self, evidence: Evidence) -> Tokens:
        return Tokens(np.ones((1, 1, 1, self.n), dtype=bool), None, (), str(self))

    def __str__(self) -> str:
        return f"first:{self.n}"


@dataclass(frozen=True)
class Last(Choice):
    """The last n tokens of each document; in a cache the newest n."""

    n: int = 4

    def __post_init__(self) -> None:
        _check_count("last", self.n)

    def resolve(self, evidence: Evidence) -> Tokens:
        rows = evidence.rows
        seen = rows.visible  # the last token of a document is seen by one query
        return Tokens(((seen > 0) & (seen <= self.n))[:, None, None], rows, (), str(self))

    def __str__(self) -> str:
        return f"last:{self.n}"


@dataclass(frozen=True, init=False)
class Positions(Choice):
    """The tokens at these positions of each document, counted from 0: `Positions(0, 5)`."""

    positions: tuple[int, ...]

    def __init__(self, *positions: int) -> None:
        object.__setattr__(self, "positions", _numbers("positions", positions))

    @property
    def in_a_pass(self) -> bool:
        return True

    def places(self, order: Any, ids: Any, real: Any) -> Any:
        # By comparisons: `isin` is one function in numpy and another in torch.
        mask = (order == self.positions[0]) & real
        for position in self.positions[1:]:
            mask = mask | ((order == position) & real)
        return mask

    def resolve(self, evidence: Evidence) -> Tokens:
        mask = np.zeros((1, 1, 1, max(self.positions) + 1), dtype=bool)
        mask[..., list(self.positions)] = True
        return Tokens(mask, None, (), str(self))

    def __str__(self) -> str:
        return f"positions:{','.join(map(str, self.positions))}"


@dataclass(frozen=True, init=False)
class TokenIds(Choice):
    """Every token with one of these ids, at any position: `TokenIds(2)` for a BOS or a delimiter."""

    ids: tuple[int, ...]

    needs = frozenset({"ids"})

    def __init__(self, *ids: int) -> None:
        object.__setattr__(self, "ids", _numbers("ids", ids))

    @property
    def in_a_pass(self) -> bool:
        return True

    def places(self, order: Any, ids: Any, real: Any) -> Any:
        if ids is None:
            raise InputError(f"'{self}': which tokens these are is not known without token ids")
        mask = (ids == self.ids[0]) & real
        for token in self.ids[1:]:
            mask = mask | ((ids == token) & real)
        return mask

    def resolve(self, evidence: Evidence) -> Tokens:
        rows = evidence.rows
        mask = self.places(rows.order, rows.ids, rows.real)
        if not mask.any():
            raise NothingChosenError(f"'{self}': no token of the texts has one of these ids")
        return Tokens(mask[:, None, None], rows, (), str(self))

    def __str__(self) -> str:
        return f"ids:{','.join(map(str, self.ids))}"


@dataclass(frozen=True)
class Outliers(Choice):
    """Tokens t with max_j |x_tj| above `ratio` medians of their document at the input of a linear map of kind `site`.

    `site` is a map's role: down, up, gate, query, key, value, output …; the layer with the largest ratio counts. Models
    whose feed-forwards all are mixtures of experts in one module have no map of the role down, and are read at what the
    mixtures are given (experts).
    Attention sinks and massive activations need not be the same tokens. Source: Chen et al. 2024 (PrefixQuant), who use
    down and ratios of 64, 50 or 20.
    """

    ratio: float = 20.0
    site: str = DOWN

    needs = frozenset({"activations"})

    def __post_init__(self) -> None:
        if not is_number(self.ratio, 1):
            raise InputError(f"ratio = {self.ratio!r}: a number of medians above 1, such as 20")

    def resolve(self, evidence: Evidence) -> Tokens:
        site = evidence.sites.get(self.site, self.site)
        if self.site not in evidence.peaks:
            raise InputError(f"'{self}' needs the activations at '{self.site}': find_tokens(model, texts, choice)")
        rows = evidence.rows
        largest = np.zeros(rows.order.shape)
        for size in evidence.peaks[self.site]:
            for number in np.unique(rows.document):
                in_document = (rows.document == number) & rows.real
                for row in np.flatnonzero(in_document.any(-1)):
                    here = size[row, in_document[row]]
                    ratio = here / max(float(np.nanmedian(here)), 1e-30)
                    largest[row, in_document[row]] = np.fmax(largest[row, in_document[row]], ratio)
        mask = largest > self.ratio
        if not mask.any():
            raise NothingChosenError(
                f"no token outlies at '{site}': the largest is {largest.max():.1f} medians of its text, and ratio "
                f"= {self.ratio:g}"
            )
        return Tokens(mask[:, None, None], rows, (), str(self), {"ratio": self.ratio, "site": site})

    def __str__(self) -> str:
        if self.site == Outliers.site:
            return "outliers" if self.ratio == Outliers.ratio else f"outliers:{_number(self.ratio)}"
        return f"outliers:{_number(self.ratio)},{self.site}"


@dataclass(frozen=True)
class Spikes(Choice):
    """The `count` tokens of each document with the largest |h^(depth)[t, dimension]| (KVSink).

    Sinks coincide with spikes in a few stable channels of the residual stream. Source: Su & Yuan 2025.
    """

    depth: int
    dimension: int
    count: int = 1

    needs = frozenset({"hidden"})

    def __post_init__(self) -> None:
        if not (is_whole(self.depth) and is_whole(self.dimension) and is_whole(self.count, 1)):
            raise InputError(f"{self}: a depth and a dimension from 0 on, and a count of at least 1")

    def resolve(self, evidence: Evidence) -> Tokens:
        if (self.depth, self.dimension) not in evidence.channels:
            raise InputError(f"'{self}' needs the residual stream: find_tokens(model, texts, choice)")
        rows, size = evidence.rows, evidence.channels[self.depth, self.dimension]
        mask = np.zeros(rows.order.shape, dtype=bool)
        for number in np.unique(rows.document):
            in_document = (rows.document == number) & rows.real
            for row in np.flatnonzero(in_document.any(-1)):
                places = np.flatnonzero(in_document[row])
                mask[row, places[np.argsort(-size[row, places], kind="stable")[: self.count]]] = True
        return Tokens(mask[:, None, None], rows, (), str(self))

    def __str__(self) -> str:
        return f"spikes:{self.depth},{self.dimension},{self.count}"


@dataclass(frozen=True)
class Sum(Choice):
    """The union of several choices."""

    parts: tuple[Choice, ...]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset().union(*(part.needs for part in self.parts))

    @property
    def in_a_pass(self) -> bool:
        return all(part.in_a_pass for part in self.parts)

    def places(self, order: Any, ids: Any, real: Any) -> Bool[Any, "..."]:
        mask = self.parts[0].places(order, ids, real)
        for part in self.parts[1:]:
            mask = mask | part.places(order, ids, real)
        return mask

    def resolve(self, evidence: Evidence) -> Tokens:
        tokens, nothing = None, ""
        for part in self.parts:
            try:
                one = part.resolve(evidence)
            except NothingChosenError as error:
                # A sum chooses nothing only if every part does; the first message is then the reason.
                nothing = nothing or str(error)
                continue
            tokens = one if tokens is None else tokens | one
        if tokens is None:
            raise NothingChosenError(nothing)
        return tokens

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def parts_of(choice: Choice) -> tuple[Choice, ...]:
    """The choices of a sum, or the one that it is."""
    return choice.parts if isinstance(choice, Sum) else (choice,)


def _no_sink(known: ReceivedAttention, epsilon: float, by: Literal["position", "row"], texts: int) -> str:
    """The message for no sink: what was measured, and the nearest token. `texts`: how many have sinks of their own."""
    if by == "position":
        mean, flat, often = means_by_position(known.received, known.visible, known.uniform)
        alpha = np.where(often[:, None], np.nan_to_num(mean, nan=-1.0), -1.0)
        layer, _, position = np.unravel_index(int(alpha.argmax()), alpha.shape)
        uniform, where = float(flat[layer, position]), f"at position {position}"
        rule = f"on average over the texts ({len(known.received)}), no position receives"
    else:
        seen = counted(known.visible)[:, :, None]
        alpha = np.where(seen, np.nan_to_num(known.received, nan=-1.0), -1.0)
        sample, layer, _, position = np.unravel_index(int(alpha.argmax()), alpha.shape)
        uniform = float(known.uniform[sample, layer, position])
        where, rule = f"at position {position} of text {int(known.row[sample])}", "in no head does a token receive"
    reason = (
        f"no sink: {rule} more than epsilon = {epsilon:g} of the attention of the queries that see it, and twice what "
        f"uniform attention gives; the most is {float(alpha.max()):.3f}, {where}, where uniform attention gives "
        f"{uniform:.3f}"
    )
    if known.slots > 0.05:
        reason += f". Learned slots take {100 * known.slots:.0f} % of the attention, and they are no tokens"
    if by == "position" and texts:
        reason += f". In {texts} of them some token does, which Measured(by='row') chooses"
    return f"{reason}; lower epsilon, or name the tokens (first:4)"


def _number(value: float) -> str:
    """A number in words: short if that is exact, and without the + that joins words."""
    text = f"{value:g}"
    return (text if float(text) == value else repr(float(value))).replace("e+", "e")


def _check_count(what: str, n: Any) -> None:
    if not is_whole(n, 1):
        raise InputError(f"{what}:{n}: a number of tokens of at least 1; to choose none: none")


def _numbers(what: str, values: tuple[Any, ...]) -> tuple[int, ...]:
    if not values or not all(map(is_whole, values)):
        raise InputError(f"{what}: expected whole numbers from 0 on, at least one, not {values}")
    if len(set(values)) != len(values):
        raise InputError(f"{what}: expected different numbers, not {values}")
    return values
