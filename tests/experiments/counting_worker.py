"""A worker that notes in the file `$COUNTS` every training that it begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from transformers import Trainer

from sinkscope.experiments.sweep.worker import main

train = Trainer.train


def counted(self: Trainer, *args: object, **kwargs: object) -> object:
    with open(os.environ["COUNTS"], "a") as counts:
        counts.write(f"{Path(self.args.output_dir).parent.name}\n")
    return train(self, *args, **kwargs)


Trainer.train = counted
sys.exit(main())
