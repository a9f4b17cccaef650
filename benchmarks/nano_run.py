"""A nano run against a plain `Trainer` run of a Llama of that shape, both as they come and both compiled; observing.

All sides run in processes of their own, in turns, with one thread: how memory is kept is a matter of the process. Ours
is `sinkscope.train` of the recipe, on its corpus, with the sink and the validation loss at its end (the recipe says
every 50 steps); the plain one is `Trainer` as it comes, on random windows of the same sizes, and evaluates nothing.
Tokens a second of processor time, as other programs may run beside it, are those between steps 20 and 110, so that
neither start-up, compiling nor preparing the corpus counts. The losses of the two runs of ours are compared step by
step.

Run: python -m benchmarks.nano_run [--save]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainingArguments

from benchmarks.memory import keep
from benchmarks.sides import Figure, at_least, at_most, report

ROUNDS = 3
FIRST, LAST, EVERY = 20, 110, 100
TOKENS_PER_STEP = 32 * 128


def ours(compiled: bool = False) -> dict[str, Any]:
    """Tokens a second of the recipe's own run, seconds of one observation, and the losses."""
    from sinkscope.training import SinkCallback, changed, keep_freed_memory, train
    from sinkscope.training.trainer import RecipeTrainer

    keep_freed_memory()
    spent: list[float] = []
    SinkCallback._metrics = _timed(SinkCallback._metrics, spent)  # type: ignore[method-assign]
    rate = _clocked(RecipeTrainer)
    with tempfile.TemporaryDirectory() as folder:
        run = train(changed("nano", {"steps": LAST, "eval_every": LAST, "compile": compiled}), folder, progress=False)
        losses = run.log["loss"].dropna().tolist()
    return {"rate": rate(), "observing": spent[-1], "losses": losses}


def compiled() -> dict[str, Any]:
    return ours(compiled=True)


def plain(compiled: bool = False) -> dict[str, Any]:
    """Tokens a second of a Llama under a `Trainer` with its defaults, or compiled by it."""
    from transformers.trainer_callback import PrinterCallback

    from benchmarks.training_throughput import RandomWindows
    from sinkscope.model import LabConfig, LabForCausalLM

    rate = _clocked(Trainer)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=LAST,
            per_device_train_batch_size=32,
            learning_rate=4e-3,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            logging_steps=10,
            torch_compile=compiled,
        )
        trainer = Trainer(LabForCausalLM(LabConfig()).to_llama(), arguments, train_dataset=RandomWindows(LAST))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return {"rate": rate()}


def plain_compiled() -> dict[str, Any]:
    return plain(compiled=True)


def _clocked(trainer: type[Trainer]) -> Callable[[], float]:
    """Tokens a second of processor time, once its steps `FIRST` to `LAST` have begun."""
    at: dict[int, float] = {}
    step = trainer.training_step

    def clocked(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        at[self.state.global_step] = time.process_time()
        return step(self, *args, **kwargs)

    trainer.training_step = clocked  # type: ignore[method-assign]
    return lambda: (LAST - 1 - FIRST) * TOKENS_PER_STEP / (at[LAST - 1] - at[FIRST])


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.process_time() - start)

    return timed


SIDES: dict[str, Callable[[], dict[str, Any]]] = {
    "ours": ours,
    "compiled": compiled,
    "plain": plain,
    "plain_compiled": plain_compiled,
}


def _apart(side: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.nano_run", side]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    root = Path(__file__).parent.parent
    done = subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    keep()
    seen: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(ROUNDS):
        for side in SIDES:
            seen[side].append(_apart(side))
    rate = {side: statistics.median(found["rate"] for found in seen[side]) for side in SIDES}
    pairs = zip(seen["ours"][0]["losses"], seen["compiled"][0]["losses"], strict=True)
    apart = max(abs(one - other) for one, other in pairs)
    training = EVERY * TOKENS_PER_STEP / rate["ours"]
    observing = statistics.median(found["observing"] for found in seen["ours"])
    losses = "losses of the compiled run and the other: largest difference / the limit"
    report(
        "nano_run",
        [
            at_least(
                "compiled nano run / compiled Trainer run of a Llama",
                rate["compiled"],
                rate["plain_compiled"],
                0.95,
                "tokens/s",
            ),
            Figure(losses, apart, 1e-3, "nats", "<= 1", apart <= 1e-3),
            at_least("nano run / plain Trainer run of a Llama", rate["ours"], rate["plain"], 0.95, "tokens/s"),
            at_most("100 steps with one observation / without", training + observing, training, 1.03),
        ],
    )


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        print(json.dumps(SIDES[sys.argv[1]]()))
    else:
        main()
