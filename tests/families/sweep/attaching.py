"""Which model types that write text take an operation: each as a tiny random model, with softmax attached.

`python -m tests.families.sweep.attaching [MODEL_TYPE …]` tries all or these, and writes down what came of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Literal

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import sinkscope as ss
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import has_attention
from sinkscope.model.attached import FAMILIES
from tests.families.sweep.build import build

Outcome = Literal["attached", "refused", "its own", "not built"]
FILE = Path(__file__).with_name("attached.json")
REASON = re.compile(r"^family '[^']*':? ")
SOFTMAX = "attached softmax is not the model's own attention ("
HEAD = "| model type | reason |"


def outcome(kind: str) -> tuple[Outcome, str]:
    """What came of a model type, and why."""
    try:
        model = build(kind, "sdpa")
    except ValueError as error:
        if "sdpa" not in str(error) and "scaled_dot_product" not in str(error):
            return "not built", _line(error)
        model = build(kind, "eager")
    except Exception as error:  # whatever a configuration or a missing package raises
        return "not built", _line(error)
    if not has_attention(model):
        return "its own", ""
    try:
        ss.attach(model, "softmax")
    except UnsupportedModelError as error:
        return "refused", REASON.sub("", str(error))
    return "attached", ""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"


def committed() -> tuple[str, dict[str, tuple[Outcome, str]]]:
    """The version of transformers that was swept, and what came of each model type."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return found["transformers"], {kind: (row[0], row[1]) for kind, row in found["outcomes"].items()}


def write(kinds: list[str]) -> None:
    """Try model types, and store the outcomes, keeping those of other types."""
    known = committed()[1] if kinds and FILE.exists() else {}
    for kind in kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known[kind] = outcome(kind)
        print(kind, *known[kind], sep="\t", flush=True)
    lines = ",\n".join(
        f"    {json.dumps(kind)}: {json.dumps(row, ensure_ascii=False)}" for kind, row in sorted(known.items())
    )
    version = json.dumps(transformers.__version__)
    FILE.write_text(f'{{\n  "transformers": {version},\n  "outcomes": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")


def section() -> str:
    """The part of the site's page of families about attaching."""
    version, rows = committed()
    counts = Counter(result for result, _ in rows.values())
    named = {result: ", ".join(kind for kind, row in rows.items() if row[0] == result) for result in counts}
    lines = [
        "`ss.attach` checks each model: with softmax attached, its outputs must stay the same, on whole rows,",
        "on padded rows and continued from a cache. No list of families decides. The check was run",
        f"on the {len(rows)} model types of transformers {version} that write text, as tiny random models:",
        "",
        f"**Attached, {counts['attached']}:** {named['attached']}.",
        "",
        "Saving, training, adapters and compilation are tested for " + ", ".join(FAMILIES) + ".",
        "",
        f"**Own attention code, {counts['its own']}**, which no operation can replace: {named['its own']}.",
        "",
        f"**Not built here, {counts['not built']}:** {named['not built']}.",
        "",
        f"**Refused, {counts['refused']}:**",
        "",
        HEAD,
        "|---|---|",
        *(f"| {kind} | {_reason(why)} |" for kind, (result, why) in rows.items() if result == "refused"),
    ]
    return "\n".join(lines)


def _reason(why: str) -> str:
    shown = why.removeprefix(SOFTMAX).removesuffix(")") if why.startswith(SOFTMAX) else why
    return shown.removeprefix("attached operation: ").replace("|", "/")


if __name__ == "__main__":
    write(sys.argv[1:])
