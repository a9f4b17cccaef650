"""Training throughput of the lab model against LlamaForCausalLM: nano's shape, the same Trainer, fp32, CPU.

Run: python -m benchmarks.training_throughput [--save]
"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from benchmarks.memory import keep
from benchmarks.sides import at_least, beside, in_turns, report
from sinkscope.model import LabConfig, LabForCausalLM

STEPS, ROUNDS, BATCH, CONTEXT = 12, 5, 32, 128


class RandomWindows(Dataset[dict[str, Tensor]]):
    """As many windows as the run reads."""

    def __init__(self, steps: int = STEPS) -> None:
        self.ids = torch.randint(0, 2048, (steps * BATCH, CONTEXT), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def run(model: PreTrainedModel) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            learning_rate=4e-3,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            logging_steps=STEPS,
        )
        trainer = Trainer(model, arguments, train_dataset=RandomWindows())
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def main() -> None:
    keep()
    lab = LabForCausalLM(LabConfig())
    llama = lab.to_llama()
    sigmoid = LabForCausalLM(LabConfig(attention="sigmoid"))
    seconds = in_turns({"lab": lambda: run(lab), "llama": lambda: run(llama), "sigmoid": lambda: run(sigmoid)}, ROUNDS)
    tokens = STEPS * BATCH * CONTEXT
    rates = {name: tokens / value for name, value in seconds.items()}
    report(
        "training_throughput",
        [
            at_least("lab softmax / Llama", rates["lab"], rates["llama"], 1.0, "tokens/s"),
            beside("lab sigmoid / Llama", rates["sigmoid"], rates["llama"], "tokens/s"),
        ],
    )


if __name__ == "__main__":
    main()
