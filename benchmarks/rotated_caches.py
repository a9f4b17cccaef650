"""Does rotating a cache make protecting its sinks redundant, by model and bits; and what rotation costs a token.

The texts are windows of 256 tokens (`nano`: 128) of `python:prose` (docstrings and help topics) and `python:code`, from
the validation part; eight more choose the sinks. Three quarters are cached at once, the rest is read behind them. Each
scheme is a trial of its own (`trials.rotation_trial`): plain and rotated, with measured sinks protected, and rotated
with as many first, last and random tokens; all scores are KL(full cache ‖ arm), a token.

`--time`: seconds a token behind 1,024 cached ones, batch 1, fp32: a Llama of 8 layers × 512 with 8 heads of 64; for
other models than `nano`, the model itself.

With `--save`, each trial is written to results/real as soon as it is done, and with `--work FOLDER` an interrupted one
goes on from its last batch.

Run: python -m benchmarks.rotated_caches [--model NAME] [--corpus NAME] [--schemes NAME ...] [--time] [--save]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from benchmarks.memory import keep
from benchmarks.sides import REAL, provenance
from sinkscope.data import build_inputs
from sinkscope.files import write_json
from sinkscope.model import load_tokenizer
from sinkscope.quantization import scheme_named
from sinkscope.sinks import Measured, Positions
from sinkscope.trials import Arm, cached, redundancy, rotation_trial, speeds, unchanged

CORPORA, TOKENS, CHOOSING = ("python:prose", "python:code"), 256, 8
SCHEMES = (
    *("kv4-token", "kv3-token", "kv2-token", "nvfp4", "nvfp4_4over6", "q4_0-unrotated", "kv2-kivi"),
    *("turboquant_4bit_nc-unrotated", "turboquant_k3v4_nc-unrotated", "turboquant_3bit_nc-unrotated"),
)
STORED, STEPS, ROUNDS = 1024, 34, 3
TIMED = (
    *("kv4-token", "kv4-token-rotated", "kv4-kivi", "kv4-kivi-rotated", "q4_0-unrotated", "q4_0"),
    *("nvfp4", "nvfp4-rotated", "turboquant_4bit_nc-unrotated", "turboquant_4bit_nc"),
)
RESULT = REAL / "rotated_caches.json"


def rows(title: str, corpus: str, texts: int, seed: int = 0) -> Tensor:
    tokenizer = load_tokenizer(title)
    return build_inputs(
        "natural",
        tokenizer=tokenizer,
        vocab_size=len(tokenizer),
        tokens=128 if title == "nano" else TOKENS,  # nano's context
        samples=texts + CHOOSING,
        seed=seed,
        corpus=corpus,
    ).input_ids


def measured(model: Any, ids: Tensor, work: Path | None) -> tuple[int, ...]:
    """The sinks' positions in the texts that are not scored; remembered in the folder of the work."""
    known = None if work is None else work / "sinks.json"
    if known is not None and known.is_file():
        return tuple(json.loads(known.read_text()))
    positions = ss.find_tokens(model, ids[:CHOOSING], Measured()).positions
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_json(known, list(positions))
    return tuple(positions)


def trial(model: Any, ids: Tensor, scheme: str, sinks: tuple[int, ...], work: Path | None) -> dict[str, Any]:
    """One scheme's row of the table, and what the trial says beside it."""
    start = time.thread_time()
    found = rotation_trial(
        model,
        ids[CHOOSING:],
        [scheme],
        Positions(*sinks),
        context=ids.shape[1] * 3 // 4,
        batch_size=4,
        out=None if work is None else work / scheme,
    )
    [row] = redundancy(found).to_dict("records")
    record = found.record
    facts = record["arms"][f"{scheme}, protected"]
    return {
        **row,
        "texts": found.texts,
        "tokens": int(ids.shape[1]),
        "protected": list(sinks),
        "protected_per_text": facts["tokens_per_text"],
        "reconstruction": record["reconstruction"],
        "cpu_seconds": round(time.thread_time() - start),
        "cpu_seconds_of_arms": round(float(found.data["seconds"].sum()) * found.texts),
        "verdict": found.verdict,
        "intervals": {name: list(vars(found.cost(name)).values()) for name in found.arms[1:]},
        "key_shapes": record["key_shapes"],
    }


def large() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def times(model: Any) -> dict[str, float]:
    """Seconds a token, arms in turns; the thread's own time where there is one thread."""
    ids = torch.randint(3, 500, (1, STORED + STEPS), generator=torch.Generator().manual_seed(1))
    arms: list[Arm] = [unchanged()]
    for name in TIMED:
        store = scheme_named(name).store
        assert store is not None
        arms.append(cached(name, lambda model, store=store: store(model, None)))
    return {name: speed.step for name, speed in speeds(model, ids, arms, context=STORED, rounds=ROUNDS).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--corpus", choices=CORPORA)
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    title = Path(asked.model).name
    result = (
        json.loads(RESULT.read_text()) if asked.save and RESULT.is_file() else {"models": {}, "seconds_a_token": {}}
    )
    about = {"command": f"python -m benchmarks.rotated_caches --model {title} --save", "provenance": provenance()}
    if asked.time:
        keep()
        found = times(large() if title == "nano" else ss.load(asked.model))
        result["seconds_a_token"]["8 layers × 512" if title == "nano" else title] = {**found, **about}
        for name, seconds in found.items():
            print(f"{name:20} {1000 * seconds:7.2f} ms a token, {seconds / found['full']:.3f} of the full cache")
    else:
        model = ss.load(asked.model)
        for corpus in [asked.corpus] if asked.corpus else CORPORA:
            ids = rows(asked.model, corpus, asked.texts)
            done = result["models"].setdefault(title, {}).setdefault(corpus, {})
            work = None if asked.work is None else asked.work / f"{title}-{corpus.partition(':')[2]}"
            # TurboQuant leaves the first and last two layers whole, which is all of nano; q4_0 rotates no head of 32.
            unlike = ("turboquant", "q4_0") if title == "nano" else ()
            missing = [name for name in asked.schemes if name not in done and not name.startswith(unlike)]
            for scheme in missing:
                done[scheme] = trial(model, ids, scheme, measured(model, ids, work), work) | about
                print(title, corpus, done[scheme]["verdict"], f"{done[scheme]['cpu_seconds']} s", flush=True)
                if asked.save:
                    write_json(RESULT, result)
    if asked.save:
        write_json(RESULT, result)


if __name__ == "__main__":
    main()
