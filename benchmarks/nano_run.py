"""A nano run, as it comes and compiled, against a plain `Trainer` run of a Llama of that shape; what observing costs.

All sides run in processes of their own, in turns, with a thread for each processor, two at most: how memory is kept is
a matter of the process. Ours is `sinkscope.train` of the recipe, on its corpus, with the sink and the validation loss
every 100 steps (the recipe says 50), and is judged without them, by the rate of the steps between; the plain one is
`Trainer` as it comes, on random windows of the same sizes, and evaluates nothing. Tokens a second are those between
steps 20 and 110, so that neither start-up, compiling nor preparing the corpus counts. The losses of the two runs of
ours are compared step by step.

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

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from benchmarks.memory import keep
from benchmarks.sides import Figure, at_least, at_most, beside, report

ROUNDS, THREADS = 3, min(2, len(os.sched_getaffinity(0)))
FIRST, LAST, EVERY = 20, 110, 100
TOKENS_PER_STEP = 32 * 128


def ours(compiled: bool = False) -> dict[str, Any]:
    """Tokens a second of the recipe's own run; seconds of `EVERY` steps of training alone, and of one observation."""
    from sinkscope.training import SinkCallback, changed, keep_freed_memory, train

    keep_freed_memory()
    spent: list[float] = []
    SinkCallback._metrics = _timed(SinkCallback._metrics, spent)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        run = train(changed("nano", {"steps": LAST, "eval_every": EVERY, "compile": compiled}), folder, progress=False)
        log = run.log.set_index("step")
    elapsed = float(log["seconds"][LAST] - log["seconds"][FIRST])
    return {
        "tokens_per_second": (LAST - FIRST) * TOKENS_PER_STEP / elapsed,
        "training": EVERY * TOKENS_PER_STEP / float(log["tokens_per_second"].loc[FIRST:].median()),
        "observing": statistics.median(spent[1:]),
        "losses": log["loss"].dropna().tolist(),
    }


def compiled() -> dict[str, Any]:
    return ours(compiled=True)


def plain() -> dict[str, Any]:
    """Tokens a second of a Llama under a `Trainer` with its defaults."""
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    from benchmarks.training_throughput import RandomWindows
    from sinkscope.model import LabConfig, LabForCausalLM

    clock = _Clock()
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
        )
        windows = RandomWindows(LAST)
        trainer = Trainer(LabForCausalLM(LabConfig()).to_llama(), arguments, train_dataset=windows, callbacks=[clock])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return {"tokens_per_second": (LAST - FIRST) * TOKENS_PER_STEP / (clock.at[LAST] - clock.at[FIRST])}


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.at[state.global_step] = time.perf_counter()


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - start)

    return timed


SIDES: dict[str, Callable[[], dict[str, Any]]] = {"ours": ours, "compiled": compiled, "plain": plain}


def _apart(side: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.nano_run", side]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false"}
    root = Path(__file__).parent.parent
    done = subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    keep()
    seen: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(ROUNDS):
        for side in SIDES:
            seen[side].append(_apart(side))
    rate = {side: statistics.median(found["tokens_per_second"] for found in seen[side]) for side in SIDES}
    training, observing = (
        statistics.median(found[name] for found in seen["ours"]) for name in ("training", "observing")
    )
    alone = EVERY * TOKENS_PER_STEP / training
    compiled_alone = EVERY * TOKENS_PER_STEP / statistics.median(found["training"] for found in seen["compiled"])
    pairs = zip(seen["ours"][0]["losses"], seen["compiled"][0]["losses"], strict=True)
    apart = max(abs(one - other) for one, other in pairs)
    report(
        "nano_run",
        [
            at_least(
                "compiled nano run / plain Trainer run of a Llama", compiled_alone, rate["plain"], 1.3, "tokens/s"
            ),
            Figure(
                "losses of both runs of ours: largest difference / the limit",
                apart,
                1e-3,
                "nats",
                "<= 1",
                apart <= 1e-3,
            ),
            beside("training of a nano run / plain Trainer run of a Llama", alone, rate["plain"], "tokens/s"),
            beside("the same, with an evaluation and an observation in ours", rate["ours"], rate["plain"], "tokens/s"),
            at_most("100 steps with one observation / without", training + observing, training, 1.03),
        ],
    )


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        print(json.dumps(SIDES[sys.argv[1]]()))
    else:
        main()
