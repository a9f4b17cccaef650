"""`python -m tools.pages.atlas`: write `docs/atlas.md`, the table of models, from the files in `results/models`."""

from __future__ import annotations

import pandas as pd

from sinkscope.checks.atlas import read_entries, table
from tools.pages import ROOT, write

MODELS = ROOT / "results" / "models"
TEXT = """# Atlas: sinks of models that people know

One row per model, from `results/models/`, each file of which one command wrote:

```text
sinkscope check YOUR_MODEL --full --submit results/models
```

Add yours: one command, one file, one pull request. A file holds numbers with their intervals and hashes of the texts,
and no text. `make atlas` makes this page; a test validates every file.

{table}

Heads with a sink: of all (layer, head) pairs, those that give the position that most heads attend to over 30 % of
their attention. Block of the jump: after which the hidden state of that token has grown most. Bits the cache bears: the
fewest of 8, 4 and 2 whose cost is *free* or *small* on all texts named; 16 where none is. Empty: not measured.
"""


def pages() -> dict[str, str]:
    """The page, from all files."""
    frame = table(read_entries(MODELS))
    rows = [map(_cell, frame), ["---"] * frame.shape[1], *(map(_cell, row) for row in frame.itertuples(index=False))]
    return {"atlas.md": TEXT.format(table="\n".join(f"| {' | '.join(row)} |" for row in rows))}


def _cell(value: object) -> str:
    """A value as Markdown shows it; names of models are other people's."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    text = f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())
    for mark, shown in (("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("`", "\\`"), ("<", "&lt;")):
        text = text.replace(mark, shown)
    return text


if __name__ == "__main__":
    write(pages())
