"""The committed outcomes of the sweep, and the table of them on the site's page of families.

`python -m tests.families.sweep.table [MODEL_TYPE …]` measures again, everything or these, and writes the outcomes down.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import transformers

from tests.families.sweep import zoo
from tests.families.sweep.check import NEEDS, OUTCOMES, Result, outcome

FILE = Path(__file__).with_name("outcomes.json")
HEAD = "| model type | class | inputs | outcome |"
MEANINGS = {
    "equal": "agrees with the model's own eager attention to 1e-5 (padded: 1e-4), also under `sdpa`",
    "refused": "is not measured, with the reason that a user sees",
    "not built": "has no tiny model here, and so was not looked at",
    "DIFFERENT": "gives another number: an error of this library",
    "crash": "agrees, but an observer ends in an error: an error of this library",
}


def committed() -> tuple[str, dict[str, Result]]:
    """The version of transformers that was swept, and what came of each model type."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return found["transformers"], {kind: Result(kind, *values) for kind, values in found["outcomes"].items()}


def write(kinds: list[str]) -> None:
    """Measure model types, in full, and write down what came of them, beside what is known of others."""
    cases = list(zoo.cases())
    known = {} if not kinds or not FILE.exists() else committed()[1]
    known = {kind: row for kind, row in known.items() if kind in cases}
    for kind in kinds or cases:
        found = outcome(kind)
        if kind in known and found.detail.startswith(NEEDS):
            continue  # what was seen where that package is installed
        known[kind] = found
        print(*map(str, (kind, known[kind].outcome, known[kind].inputs, known[kind].detail)), sep="\t", flush=True)
    rows = {kind: [row.model, row.outcome, row.inputs, row.detail] for kind, row in sorted(known.items())}
    lines = ",\n".join(
        f"    {json.dumps(kind)}: {json.dumps(values, ensure_ascii=False)}" for kind, values in rows.items()
    )
    version = json.dumps(transformers.__version__)
    FILE.write_text(f'{{\n  "transformers": {version},\n  "outcomes": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")


def section() -> str:
    """The part of the page that is made of the outcomes."""
    version, rows = committed()
    counts = Counter(row.outcome for row in rows.values())
    said = "\n".join(f"- **{counts[name]} {name}**: {MEANINGS[name]}" for name in OUTCOMES if counts[name])
    lines = [
        f"All {len(rows)} model types of transformers {version} that have attention in their code, or in that of their",
        "default parts: one class each, as a tiny random model that is built by rule from the configuration's fields.",
        "Each reads two rows, the second shorter: alone, padded right and padded left (sounds and images only right),",
        "under `eager` and `sdpa`. The reference is what each layer's own eager function returned, and arithmetic that",
        "shares no code with this library. Rows of a padded batch are compared with the same row alone; where the",
        "model itself computes other weights there (*not invariant to padding*), with its own weights on the tokens",
        "that its mask keeps. *Inputs* are what the model was given; stacks without inputs were not checked. *Peak* is",
        "given where the largest weight of a row is not far above that of uniform attention. Rows *with timm* need the",
        "given version of it, which no other row does; attention inside timm is not measured, as the record says.",
        "",
        said,
        "",
        HEAD,
        "|---|---|---|---|",
        *(f"| {row.kind} | {row.model} | {row.inputs} | {_said(row)} |" for row in rows.values()),
    ]
    return "\n".join(lines)


def _said(row: Result) -> str:
    detail = row.detail.replace("|", "/").replace("<", "").replace(">", "").replace("*", "…")
    return f"{row.outcome}: {detail}" if detail else row.outcome


if __name__ == "__main__":
    write(sys.argv[1:])
