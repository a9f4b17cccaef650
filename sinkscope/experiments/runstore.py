"""Where runs lie, by what decides their numbers: two experiments that ask for the same run share it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.data.corpora import load_corpus
from sinkscope.data.encoding import encode_corpus
from sinkscope.errors import InputError
from sinkscope.experiments.observing import OBSERVED
from sinkscope.training import Recipe, Run
from sinkscope.training.log import LOG, read_rows
from sinkscope.training.record import read_record

DECIDES_FINGERPRINT = ("corpus", "tokenizer", "max_characters", "validation_share", "split_seed")


@dataclass
class RunStore:
    """A folder of runs, which several processes and machines may share. Fingerprints are computed once per corpus."""

    path: Path
    _fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, recipe: Recipe) -> Run:
        """The run of a recipe, whether it exists or not. Prepares the recipe's corpus where that was not done yet."""
        return Run(self.path / recipe.folder(self._fingerprint(recipe)))

    def settled(self, run: Run) -> bool:
        """Whether a run is finished or diverged, and what is known of it is written down."""
        record = read_record(run.path)
        done = record is not None and record["status"] in ("finished", "diverged")
        return done and (run.path / OBSERVED).is_file()

    def progress(self, run: Run) -> dict[str, Any]:
        """The newest row of a run's log; empty before there is one."""
        try:
            rows = read_rows(run.path / LOG)
        except InputError:
            return {}
        return {name: value for row in rows[-12:] for name, value in row.items()}

    def _fingerprint(self, recipe: Recipe) -> dict[str, Any]:
        data = recipe.data.model_dump(mode="json")
        key = json.dumps({name: data[name] for name in DECIDES_FINGERPRINT})
        if key not in self._fingerprints:
            corpus = load_corpus(recipe.data.corpus, recipe.data.max_characters)
            self._fingerprints[key] = encode_corpus(corpus, recipe.data).fingerprint
        return self._fingerprints[key]
