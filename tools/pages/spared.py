"""`python -m tools.pages.spared`: the measured part of `docs/which_tokens_to_spare.md`, from the record of it.

`python -m benchmarks.quantization --save` measures it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.sides import RESULTS
from tools.pages import above, write

PAGE, HEAD = "which_tokens_to_spare.md", "## What nano shows"
TEXT = """{head}

One small model, one seed: directions, not digits. {texts}, of the python corpus' validation
text; nats a token worse than the full model, with 95 % intervals over windows. Made by
`python -m benchmarks.quantization --save` before the [corrections](corrections.md): ε was 0.2, one range was shared by
all texts of a call, tokens were chosen in the scored texts, and intervals are percentile bootstraps. The command does
otherwise now, and these tables wait to be made anew.

**W8A8, one range for all tokens of a call.** The sink is the BOS at position 0, so the first token is the same choice.

{w8a8}
**The same with a second BOS at position 64.** It is a sink as well, and the first tokens do not contain it.

{second}
{more}

**Other schemes**, with the measured sink spared; the last column is the range of three random choices. Of linear maps
48 windows, of caches 16, which are read through the cache.

{schemes}
Read the intervals: where that of what is given back contains 0, sparing says nothing here. Where each token has a range
of its own, or channels are rotated or smoothed first, sparing gives back a large share of very little. Caches gain
least: nothing that can be told from chance with a range for each token or head, a fifth with KIVI's groups.
"""


def pages() -> dict[str, str]:
    """The page, with its tables as they were measured last."""
    found, second = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["details"]
        for name in ("quantization", "quantization_second")
    )
    return {PAGE: f"{above(PAGE, HEAD)}{measured(found, second['second'])}"}


def measured(found: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    """The tables, and what they say. `more`: the same with a second BOS, on more windows."""
    w8a8, second, schemes = found["w8a8"], found["second"], found["schemes"]
    texts = f"{w8a8['rows']} windows of {w8a8['tokens']} tokens, {w8a8['batch_size']} in a call"
    return TEXT.format(
        head=HEAD, texts=texts, w8a8=arms(w8a8), second=arms(second), more=decided(more), schemes=overview(schemes)
    )


def arms(study: Mapping[str, Any]) -> str:
    """A line per arm; controls of one budget as one line with their range."""
    cost = "loss_cost" if study["by"] == "loss" else "kl"
    lines = ["| spared | tokens | nats lost | given back |", "|---|---|---|---|"]
    for row in study["arms"]:
        if row["role"] in ("nothing", "spared", "first"):
            name = {"nothing": "nothing"}.get(row["role"], row["arm"])
            back = "" if row["role"] == "nothing" else _share(row)
            lines.append(f"| {name} | {row['spared']:.3g} | {_interval(row, cost)} | {back} |")
    for choice in dict.fromkeys(row["choice"] for row in study["arms"] if row["role"] == "control"):
        rows = [row for row in study["arms"] if row["role"] == "control" and row["choice"] == choice]
        lines.append(_controls(rows, cost))
    return "\n".join(lines) + "\n"


def decided(study: Mapping[str, Any]) -> str:
    """What the first tokens give back on more windows, of which the first ones are those of the table."""
    shares = {row["arm"]: _share(row) for row in study["arms"] if row["role"] in ("spared", "first")}
    controls = _range([row["recovered"] for row in study["arms"] if row["role"] == "control"])
    return (
        f"Whether the first tokens give back a tenth or less, so few windows cannot tell. On {study['rows']}\n"
        "(`python -m benchmarks.quantization more`) the measured sinks give back "
        f"{shares['measured']}, the first token\n{shares['first 1']}, the first two {shares['first 2']}, the first "
        f"four {shares['first 4']}, random ones {controls}.\nSo the first tokens give back about a tenth: more than "
        "chance, and a small part of what measuring gives."
    )


def overview(schemes: Iterable[Mapping[str, Any]]) -> str:
    """A line per scheme: cost, what the measured sink gives back, the range of the controls."""
    lines = ["| scheme | what it does | nats lost | given back | random |", "|---|---|---|---|---|"]
    for study in schemes:
        by_name = {row["arm"]: row for row in study["arms"]}
        cost = "loss_cost" if study["by"] == "loss" else "kl"
        controls = [row["recovered"] for row in study["arms"] if row["role"] == "control"]
        says = f"| `{study['scheme']}` | {study['scheme_says']} | {_interval(by_name['nothing'], cost)} |"
        lines.append(f"{says} {_share(by_name['measured'])} | {_range(controls)} |")
    return "\n".join(lines) + "\n"


def _controls(rows: list[Mapping[str, Any]], cost: str) -> str:
    lost = [row[cost] for row in rows]
    tokens = f"{rows[0]['spared']:.3g}"
    costs = f"{min(lost):.4f} … {max(lost):.4f}"
    return f"| {len(rows)} random choices | {tokens} | {costs} | {_range([row['recovered'] for row in rows])} |"


def _interval(row: Mapping[str, Any], cost: str) -> str:
    return f"{row[cost]:.4f} ({row[f'{cost}_low']:.4f} to {row[f'{cost}_high']:.4f})"


def _share(row: Mapping[str, Any]) -> str:
    if row["recovered"] is None:
        return "nothing to give back"
    return f"{_percent(row['recovered'])} % ({_percent(row['recovered_low'])} to {_percent(row['recovered_high'])})"


def _range(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{_percent(min(known))} … {_percent(max(known))} %" if known else ""


def _percent(share: float) -> str:
    return (
        f"{100 * share:.0f}".replace("-0", "0") if round(100 * share) == 0 else f"{100 * share:.0f}".replace("-", "−")
    )


if __name__ == "__main__":
    write(pages())
