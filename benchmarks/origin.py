"""What makes the sink of a model: the tests of `sinkscope intervene --what origin`, on docstrings.

Texts are the first 64 tokens of the docstrings of the corpus `python:prose`, as `benchmarks.folding` has them: each
begins with another token, but for the package's own models, which get the BOS (or the [CLS]) that they were trained
with. 24 are scored (40 for the package's own), 8 others show what the sink is made of; 2 controls for each test.
`--work` and `--at-most` as there.

Run: python -m benchmarks.origin [--model NAME] [--work FOLDER] [--at-most 3] [--save]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

import sinkscope as ss
from benchmarks.folding import CORPUS, TOKENS, Pieces, Unfinished, texts
from benchmarks.sides import REAL, provenance
from sinkscope.files import write_json
from sinkscope.hooks import position_limit
from sinkscope.trials import Trial, origin_trial
from sinkscope.trials.origin import table

LOOKED_AT, CONTROLS = 8, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--work", type=Path, default=None, help="a folder for finished pieces")
    parser.add_argument("--at-most", type=int, default=1000, help="stop after so many new pieces")
    parser.add_argument("--save", action="store_true", help="keep what is found in results/real")
    asked = parser.parse_args()
    title, ours = Path(asked.model).name, asked.model.startswith("nano")
    model: Any = ss.load(asked.model)
    limit = position_limit(model) or TOKENS + 1
    rows = texts(asked.model, min(TOKENS, limit - 1), LOOKED_AT + (40 if ours else 24))  # `relocate` adds a token
    work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    work.mkdir(parents=True, exist_ok=True)

    def tried(part: Tensor) -> Trial:
        return origin_trial(model, part, test=TOKENS // 4, calibrate_on=rows[:LOOKED_AT], controls=CONTROLS)

    try:
        trial = Pieces(work, asked.at_most).trial("origin", rows[LOOKED_AT:], 8 if ours else 3, tried)
    except Unfinished as unfinished:
        print(unfinished)
        return
    found = {
        "model": title,
        "corpus": CORPUS,
        "tokens": rows.shape[1],
        "texts": trial.texts,
        "controls": CONTROLS,
        "origin": trial.record["origin"],
        "unchanged": {
            name: [trial.mean("full", name).value, trial.mean("full", name).low, trial.mean("full", name).high]
            for name in ("rate_at_sink", "rate_at_test")
        },
        "tests": json.loads(table(trial).to_json(orient="records", double_precision=6)),
    }
    print(trial.verdict)
    command = f"python -m benchmarks.origin --model {title} --save"
    name = title if ours else title.partition("-")[0].lower()
    path = (REAL if asked.save else Path(tempfile.gettempdir())) / f"origin_{name.replace('-', '_')}.json"
    write_json(path, {"command": command, "provenance": provenance(), **found})


if __name__ == "__main__":
    main()
