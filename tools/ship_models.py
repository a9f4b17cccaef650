"""`python -m tools.ship_models RUN NAME`: put a trained run into the package, as a model that loads by its name."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from sinkscope.files import writing
from sinkscope.names import FOLDER
from sinkscope.training.run import LOG, RECORD, Run


def ship(run: Run, name: str, folder: Path = FOLDER) -> Path:
    """Store a finished run's model in bfloat16 with its tokenizer, record and log; return where.

    Raises `InputError` for a run that is not finished and a folder that cannot be written.
    """
    model, tokenizer = run.model, run.tokenizer
    with writing(folder / name) as draft:
        model.to(torch.bfloat16).save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        for file in (RECORD, LOG):
            shutil.copyfile(run.path / file, draft / file)
    return folder / name


if __name__ == "__main__":
    print(ship(Run(Path(sys.argv[1])), sys.argv[2]))
