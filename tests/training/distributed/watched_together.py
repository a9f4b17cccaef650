"""Somebody's own `Trainer` on two processes, DDP and then FSDP2, each with and without the sink callback.

Prints one JSON object from the main process: for each way whether the weights are equal, whether they were sharded in
training, and the steps at which the sink was logged.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from sinkscope.training import SinkCallback
from sinkscope.training.distributed.full_model import full_state_dict
from tests.training.distributed.sharded_together import on_cpus
from tests.training.test_sink import Texts, llama


class Look(TrainerCallback):
    """Whether the parameters are shards in the middle of training."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        self.sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())


def trained(folder: str, watched: bool, **how: Any) -> tuple[dict[str, Tensor], bool, list[int]]:
    arguments = TrainingArguments(
        folder,
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        **how,
    )
    trainer = Trainer(llama(dropout=0.0), arguments, train_dataset=Texts(), callbacks=[look := Look()])
    if watched:
        trainer.add_callback(SinkCallback(trainer, every=2, tokens=10, samples=8))
    trainer.train()
    logged = [row["step"] for row in trainer.state.log_history if "sink/strongest" in row]
    return full_state_dict(trainer), look.sharded, logged


def main(folder: str) -> None:
    on_cpus()
    found = {}
    fsdp = {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "FULL_STATE_DICT"}}
    for name, how in (("ddp", {}), ("fsdp", fsdp)):
        (plain, _, _), (seen, sharded, logged) = (trained(folder, watched, **how) for watched in (False, True))
        equal = all(torch.equal(value, seen[key]) for key, value in plain.items())
        found[name] = {"equal": equal, "tensors": len(plain), "sharded": sharded, "logged": logged}
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
