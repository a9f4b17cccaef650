"""The comparison of a function with float64 arithmetic, case by case."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from sinkscope.attention.oracle.backends import AttentionFunction, backend
from sinkscope.attention.oracle.cases import CASES, FEATURES, Case, Problem
from sinkscope.attention.oracle.reference import DEFECTS, Exact, exact
from sinkscope.attention.oracle.styles import STYLES, Style
from sinkscope.errors import InputError, unknown
from sinkscope.files import finite

Outcome = Literal["agrees", "differs", "raised", "not supported"]
COLUMNS = ("case", "dtype", "", "output", "lse", "gradients", "limit", "note")
COLORS: dict[Outcome, str] = {"agrees": "green", "differs": "red", "raised": "red", "not supported": "yellow"}


class Disagreement(AssertionError):
    """An attention function computes something other than asked."""


@dataclass(frozen=True)
class ParityRow:
    """One case in one dtype. `errors`: largest differences of output, lse and gradients, relative to the largest number
    that was expected; `limit`: the largest output error due to rounding; `note`: the known mistake that gives the same
    numbers, the exception, or what is missing."""

    case: str
    dtype: str
    outcome: Outcome
    errors: Mapping[str, float] = field(default_factory=dict)
    limit: float = math.nan
    note: str = ""

    @classmethod
    def judged(
        cls, case: str, dtype: str, errors: Mapping[str, float], limit: float, notes: Sequence[str] = ()
    ) -> ParityRow:
        """Agrees where no error is above the limit, or NaN; without notes, names the first that is."""
        wrong = [name for name, error in errors.items() if not error <= limit]  # true for NaN as well
        if wrong and not notes:
            notes = [f"{wrong[0]} is off by {errors[wrong[0]]:.1e}, at most {limit:.1e}"]
        return cls(case, dtype, "differs" if wrong else "agrees", errors, limit, "; ".join(notes))

    @classmethod
    def of_error(cls, case: str, dtype: str, error: Exception, limit: float = math.nan) -> ParityRow:
        return cls(case, dtype, "raised", limit=limit, note=f"{type(error).__name__}: {_line(error)}")


@dataclass(frozen=True)
class Parity:
    """The comparison of a function; prints as a table, also in notebooks."""

    function: str
    rows: tuple[ParityRow, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differs. Unsupported cases do not count: see `missing`."""
        compared = [row for row in self.rows if row.outcome != "not supported"]
        return bool(compared) and all(row.outcome == "agrees" for row in compared)

    @property
    def wrong(self) -> tuple[ParityRow, ...]:
        """The rows that differ or raised."""
        return tuple(row for row in self.rows if row.outcome in ("differs", "raised"))

    @property
    def missing(self) -> tuple[ParityRow, ...]:
        """The rows that were not compared, because the function does not support them."""
        return tuple(row for row in self.rows if row.outcome == "not supported")

    @property
    def summary(self) -> str:
        """How many of each, in a line."""
        counts = {outcome: sum(row.outcome == outcome for row in self.rows) for outcome in COLORS}
        return f"{self.function}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)

    def cells(self) -> list[tuple[str, ...]]:
        """The words of each row: case, dtype, outcome, the errors of output, lse and gradients, limit, note."""
        return [(row.case, row.dtype, row.outcome, *_numbers(row), row.note) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The rows, and whether they agree, JSON-able; null for what is not a number."""
        return finite({"function": self.function, "ok": self.ok, "rows": [asdict(row) for row in self.rows]})

    def check(self, *, complete: bool = False) -> Parity:
        """Itself, or `Disagreement` naming the first wrong row; with `complete` also where a case is not supported."""
        for row in (*self.wrong, *(self.missing if complete else ())):
            raise Disagreement(f"{self.function}, {row.case} in {row.dtype}: {row.outcome}; {row.note}")
        if not self.ok:
            raise Disagreement(f"{self.function}: no case was compared")
        return self

    def table(self) -> Table:
        """A rich table of all rows."""
        table = Table(*COLUMNS, title=self.summary)
        for row in self.rows:
            outcome = Text(row.outcome, COLORS[row.outcome])
            table.add_row(row.case, row.dtype, outcome, *_numbers(row), Text(row.note))
        return table

    def __str__(self) -> str:
        console = Console(width=160, color_system=None)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get()

    def _repr_html_(self) -> str:
        import pandas as pd

        table = pd.DataFrame(self.cells(), columns=COLUMNS).to_html(index=False, border=0)
        return f"<p>{escape(self.summary)}</p>{table}"


def _numbers(row: ParityRow) -> tuple[str, str, str, str]:
    gradients = [error for name, error in row.errors.items() if name.startswith("d")]
    values = (row.errors.get("output"), row.errors.get("lse"), max(gradients) if gradients else None, row.limit)
    output, lse, gradient, limit = ("" if value is None or math.isnan(value) else f"{value:.1e}" for value in values)
    return output, lse, gradient, limit


def drawn(case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Problem:
    """The case in numbers, those of `dtype`, so that the reference sees what the function sees."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    rows = 1 if case.texts else 2  # kernels of variable length have no batch: all texts are in one row
    query, key = draw(rows, case.heads, case.queries, case.width), draw(rows, case.kv_heads, case.keys, case.width)
    value = draw(rows, case.kv_heads, case.keys, case.value_width)
    scaling = case.width**-0.5 if case.scaling is None else case.scaling
    if case.offset:  # one channel that is the same for all tokens adds the same to all scores
        size = (case.offset / scaling) ** 0.5
        query[..., 0], key[..., 0] = size, size
    else:
        query = 2 * query  # sharp enough for masks to matter
    problem = Problem(case, query.to(device), key.to(device), value.to(device), None, scaling)
    return problem if case.sink is None else replace(problem, sink=_sink(problem))


def _sink(problem: Problem) -> Tensor:
    """Logits from a little below to well above those of the tokens, in the problem's dtype."""
    tokens = exact(problem).tokens
    beside = tokens.where(tokens.isfinite(), torch.nan).nanmean((0, 2))  # not of queries that see nothing
    spread = torch.linspace(-1.4, 1.4, len(beside), dtype=beside.dtype, device=beside.device)
    logits = beside - 1e4 if problem.case.sink == "closed" else beside + spread
    return logits.to(torch.bfloat16 if problem.case.sink_dtype else problem.query.dtype)


Convention = Literal["tokens", "total"]


def parity(
    function: Callable[..., Any] | str,
    *,
    style: str | Style | None = None,
    without: Iterable[str] = (),
    lse: Convention | None = None,
    gradients: bool = True,
    dtypes: Sequence[torch.dtype] | None = None,
    device: torch.device | str = "cpu",
    cases: Sequence[Case] = CASES,
    quiet: bool = False,
) -> Parity:
    """Compare an attention function with float64 arithmetic, in a table that is printed and returned.

    Compared are sinks, windows, softcaps, grouped heads, odd lengths, decoding, log-sum-exps and gradients. Mistakes of
    the function do not raise (`.check()` does).

    Sinks are large enough to matter in each dtype: a sink at zero, with scores of a few nats, is lost in half-precision
    rounding, so a function that drops it would pass.

    Args:
        function: An attention function, or the name of one: "eager", "flash", any attention implementation of
            transformers, or "module:function" (`backend`).
        style: Its calling convention: "plain", "transformers", "unmasked" or "sdpa" (documented in the classes in
            `STYLES`), or your own `Style`; None: "plain", or "transformers" for a name.
        without: Names in `FEATURES` that it does not support; a parameter missing from its signature and a
            `NotImplementedError` mean the same. Such cases are listed as not supported.
        lse: What its log-sum-exp sums over, "tokens" or "total" (tokens and sink); None accepts either, if the same in
            all cases, and reports which.
        gradients: Whether to compare those of the output with respect to queries, keys, values and sinks, and of the
            log-sum-exp with respect to queries and keys (and sinks, if it is over them), because a detached one
            silently drops part of the gradient.
        dtypes: None: float32, for flash attentions bfloat16.
        device: Where the function runs.
        cases: What is compared; default: all.
        quiet: Whether not to print.

    Raises `InputError` for unknown names and for anything that is not a function.
    """
    chosen = backend(function) if isinstance(function, str) else AttentionFunction(function, STYLES["plain"])
    function, style = chosen.function, style or chosen.style
    dtypes = [chosen.dtype] if dtypes is None else dtypes
    if not callable(function):
        raise InputError(f"parity: expected an attention function, got a {type(function).__name__}")
    if isinstance(style, str):
        if style not in STYLES:
            raise unknown("style", style, STYLES)
        style = STYLES[style]
    if lse not in (None, "tokens", "total"):
        raise unknown("lse", str(lse), ("tokens", "total"))
    without = tuple(without)
    for feature in without:
        if feature not in FEATURES:
            raise unknown("feature", feature, FEATURES)
    if not cases or not dtypes:
        raise InputError("nothing to compare: give at least one case and one dtype")
    comparison = _Comparison(function, style, without, lse, gradients and "gradients" not in without)
    rows = [comparison.row(case, dtype, torch.device(device)) for dtype in dtypes for case in cases]
    name = getattr(function, "__qualname__", None) or type(function).__name__
    result = Parity(str(name), tuple(rows))
    if not quiet:
        Console().print(result.table())
    return result


class _Comparison:
    """A function, its calling convention, and the log-sum-exp convention found so far."""

    def __init__(
        self,
        function: Callable[..., Any],
        style: Style,
        without: tuple[str, ...],
        lse: Convention | None,
        gradients: bool,
    ) -> None:
        self.function, self.style, self.without, self.gradients = function, style, without, gradients
        self.lse, self.stated = lse, lse is not None

    def row(self, case: Case, dtype: torch.dtype, device: torch.device) -> ParityRow:
        named = str(dtype).removeprefix("torch.")
        missing = next((f"declared without '{name}'" for name in case.features if name in self.without), None)
        missing = missing or self.style.missing(self.function, case)
        if missing:
            return ParityRow(case.name, named, "not supported", note=missing)
        problem = drawn(case, dtype, device)
        limit = allowed(problem, dtype)
        try:
            errors, notes = self._compared(problem, limit)
        except NotImplementedError as error:
            return ParityRow(case.name, named, "not supported", note=_line(error) or "raises NotImplementedError")
        except Exception as error:  # whatever a kernel raises is a finding, and the next case may still run
            return ParityRow.of_error(case.name, named, error)
        return ParityRow.judged(case.name, named, errors, limit, notes)

    def _compared(self, problem: Problem, limit: float) -> tuple[dict[str, float], list[str]]:
        """Errors by name, and notes on them."""
        leaves = {name: tensor.clone().requires_grad_(self.gradients) for name, tensor in problem.inputs.items()}
        wanted, notes = exact(problem), list[str]()
        output, lse = self.style.call(self.function, problem.on(leaves))
        if output.shape != wanted.output.shape:
            raise ValueError(f"output {tuple(output.shape)}, expected {tuple(wanted.output.shape)}")
        errors = {"output": relative_error(output, wanted.output)}
        if not errors["output"] <= limit:
            notes += _diagnosis(problem, output, limit)
        if lse is not None and "lse" not in self.without:
            within = allowed(problem, lse.dtype)
            error, note = self._lse(lse, wanted, problem, within)
            errors["lse"] = error * limit / within  # in units of the row's limit
            notes += [note] if note else []
        if self.gradients:
            read = lse is not None and not {"lse", "lse_gradient"} & {*self.without}
            gradient_errors, note = _gradients(problem, leaves, output, read)
            errors |= gradient_errors
            notes += [note] if note else []
            if read and lse is not None:
                error, note = _lse_gradient(problem, leaves, lse, self.lse or "tokens")
                errors["dlse"] = error
                notes += [note] if note else []
        return errors, notes

    def _lse(self, lse: Tensor, wanted: Exact, problem: Problem, limit: float) -> tuple[float, str]:
        """The error of a log-sum-exp, and a note on what it sums over if that differs from what was declared."""
        if lse.shape != wanted.total.shape:
            raise ValueError(f"lse {tuple(lse.shape)}, expected (batch, heads, query) = {tuple(wanted.total.shape)}")
        sides: dict[Convention, Tensor] = {"tokens": wanted.tokens, "total": wanted.total}
        some = wanted.tokens.isfinite()
        unseen = lse[~some], wanted.total[~some]
        lse, sides = lse[some], {name: side[some] for name, side in sides.items()}
        scale = 1 + wanted.tokens[some].abs().max().item()
        errors = {name: (lse.double() - side).abs().max().item() / scale for name, side in sides.items()}
        # Without a sink, or with a closed one, both conventions give the same number.
        tellable = problem.case.sink in ("beside", "far")
        if self.lse is None and tellable:
            self.lse = next((name for name, error in errors.items() if error <= limit), None)
        error = errors[self.lse or "tokens"] if tellable else min(errors.values())
        if error <= limit and (note := _without_keys(*unseen, self.lse, limit)):
            return math.inf, note
        if error <= limit or math.isnan(error):
            return error, ""
        other: Convention = "tokens" if self.lse == "total" else "total"
        if tellable and errors[other] <= limit:
            source = "declared" if self.stated else "found in other cases"
            return error, f"its lse is over {_words(other)}, {source} over {_words(self.lse or 'tokens')}"
        if any((lse.double() * math.log(2) - side).abs().max().item() / scale <= limit for side in sides.values()):
            return error, "its lse is in base 2"
        return error, f"its lse is neither over tokens nor over tokens and sink, off by {error * scale:.1e}"


def _without_keys(lse: Tensor, sink: Tensor, convention: Convention | None, limit: float) -> str:
    """What is wrong with the log-sum-exps of queries that see no key; empty if nothing is.

    Over tokens it is −∞, which kernels write as any infinity or very low number; over tokens and sink it is the sink's
    logit, by which outputs of several parts of the keys are joined. `sink`: that logit, −∞ without a sink.
    """
    low = ~lse.isfinite() & ~lse.isnan() | (lse < -1e4)
    total = low | ((lse.double() - sink).abs() <= limit * (1 + sink.abs())) if convention != "tokens" else low
    if convention == "total":
        total &= low == sink.isinf()
    if bool(total.all()):
        return ""
    expected = {"tokens": "−∞", "total": "the sink's logit"}.get(convention or "", "the sink's logit or −∞")
    return f"its lse of a query that sees no key is {lse[~total][0].item():.3g}, not {expected}"


def allowed(problem: Problem, dtype: torch.dtype) -> float:
    """Errors that are rounding, relative to the largest expected number: four roundings of `dtype`, and sixteen of fp32
    and those of scores, which are sums in fp32. Every defect is at least ten times as large in half precision."""
    fine = torch.finfo(torch.float32).eps
    largest = (problem.query.double().norm(dim=-1).max() * problem.key.double().norm(dim=-1).max()).item()
    return 4 * torch.finfo(dtype).eps + fine * (16 + 2 * largest * problem.scaling)


def _lse_gradient(
    problem: Problem, leaves: dict[str, Tensor], lse: Tensor, convention: Convention
) -> tuple[float, str]:
    """Error of the gradient of a fixed combination of log-sum-exps in queries and keys; infinite without a gradient."""
    if not lse.requires_grad:
        return math.inf, "its lse has no gradient: what is made of it (a sink's share, a z-loss) would not train"
    wide = {name: tensor.double().requires_grad_() for name, tensor in problem.inputs.items()}
    wanted = exact(problem.on(wide))
    total = convention == "total" and problem.sink is not None
    # Over tokens a query without keys has −∞ and no gradient; with the sink it has b, whose gradient is 1.
    some = torch.ones_like(wanted.tokens, dtype=torch.bool) if total else wanted.tokens.isfinite()
    side = (wanted.total if total else wanted.tokens)[some]
    direction = torch.randn(side.shape, generator=torch.Generator().manual_seed(2)).to(lse.device)
    names = ("query", "key", "sink") if total else ("query", "key")
    computed = torch.autograd.grad(
        lse[some], [leaves[name] for name in names], direction.to(lse.dtype), allow_unused=True
    )
    expected = torch.autograd.grad(side, [wide[name] for name in names], direction.double())
    filled = [torch.zeros_like(other) if one is None else one for one, other in zip(computed, expected, strict=True)]
    size = {"query": problem.key, "key": problem.query}
    least = {name: problem.scaling * other.double().norm(dim=-1).max().item() / 10 for name, other in size.items()}
    least["sink"] = 0.1
    errors = [
        relative_error(one, other, least[name]) / _roundings(problem, one)
        for name, one, other in zip(names, filled, expected, strict=True)
    ]
    return max(errors), ""


def _gradients(
    problem: Problem, leaves: dict[str, Tensor], output: Tensor, keep: bool = False
) -> tuple[dict[str, float], str]:
    """Errors of the gradient of a fixed combination of outputs; a note where there is no gradient.

    `keep`: the graph is used again.
    """
    if not output.requires_grad:
        raise NotImplementedError("its output has no gradient: pass gradients=False to compare values alone")
    wide = {name: tensor.double().requires_grad_() for name, tensor in problem.inputs.items()}
    reference = exact(problem.on(wide)).output
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.device, output.dtype)
    computed = torch.autograd.grad(output, list(leaves.values()), direction, allow_unused=True, retain_graph=keep)
    wanted = torch.autograd.grad(reference, list(wide.values()), direction.double())
    least = _usual(problem, direction)
    # A gradient that does not arrive counts as 0, which is right only where 0 is wanted.
    filled = [torch.zeros_like(other) if one is None else one for one, other in zip(computed, wanted, strict=True)]
    errors = {  # a backward pass has several products, each with the rounding that a forward pass has once
        f"d{name}": relative_error(one, other, least[name]) / _roundings(problem, one)
        for name, one, other in zip(leaves, filled, wanted, strict=True)
    }
    absent = [
        name
        for name, one, other in zip(leaves, filled, wanted, strict=True)
        if not one.any() and other.abs().max() > 1e-9
    ]
    return errors, f"no gradient reaches {absent[0]}" if absent else ""


def _diagnosis(problem: Problem, output: Tensor, limit: float) -> list[str]:
    """The known mistake that gives this output."""
    if not torch.isfinite(output).all():
        return ["its output is not finite"]
    features = problem.case.features
    for defect, needed in DEFECTS.items():
        shows = all(feature in features for feature in needed)
        if shows and relative_error(output, exact(problem, defect).output) <= limit:
            return [defect]
    return []


def _roundings(problem: Problem, gradient: Tensor) -> float:
    """How many of the row's limits a gradient may be off by: four, of its own dtype where that is coarser."""
    return 4 * max(1.0, allowed(problem, gradient.dtype) / allowed(problem, problem.query.dtype))


def _usual(problem: Problem, direction: Tensor) -> dict[str, float]:
    """A tenth of the largest terms that a gradient sums: where they cancel, the sum itself is no scale."""
    tensors = {name: tensor.double().norm(dim=-1).max().item() for name, tensor in problem.inputs.items()}
    moved = direction.double().norm(dim=-1).max().item() * tensors["value"] / 10
    products = {"query": problem.scaling * tensors["key"], "key": problem.scaling * tensors["query"], "sink": 1.0}
    return {name: moved * products[name] if name in products else 1e-6 for name in tensors}


def relative_error(computed: Tensor, wanted: Tensor, least: float = 1e-6) -> float:
    """Largest difference, relative to the largest expected number, or to `least` if that is larger."""
    difference = (computed.double() - wanted).abs().max().item()
    return difference / max(wanted.abs().max().item(), least)


def _words(convention: Convention) -> str:
    return "tokens alone" if convention == "tokens" else "tokens and sink"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
