"""`python -m sinkscope_replication.released MODEL`: section 3 of the paper on a released model, without training.

Texts, random tokens and repeated tokens, each with and without a BOS, and texts in the chat template; the sink rate by
threshold and length; angles, norms and spikes by layer. It writes one JSON file, part by part, and can be killed at
any moment: the same command goes on.

Source: Gu et al. 2025, section 3, Table 1, Figures 2 and 3.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

import sinkscope as ss
from sinkscope.data import Inputs, as_chat, build_inputs
from sinkscope.errors import InputError
from sinkscope.files import write_json
from sinkscope.hooks import attention_layers
from sinkscope.measurement import (
    AttentionReceived,
    HiddenNorms,
    Measurement,
    QueryKeyAngles,
    QueryKeyValueNorms,
    ReceivedByLength,
    SpikeDimensions,
    metrics,
)
from sinkscope.model import load, load_tokenizer
from sinkscope.training import versions
from sinkscope_replication.records import RELEASED

TOKENS, SAMPLES = 64, 100  # the paper's
LENGTHS, LONG = (32, 64, 128, 256, 512), 6  # texts of 512 tokens: one in six
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5)
CORPUS = "python:prose"  # documentation of installed packages: most documents are long enough for 512 tokens
KINDS = {"text": "natural", "random tokens": "random", "one repeated token": "repeated"}
BOS = {"": "none", ", BOS": "add"}

Make = Callable[..., Inputs]
Part = Callable[[], dict[str, Any]]


def conditions(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> dict[str, Make]:
    """What makes the inputs of every condition: `make(tokens=…, samples=…)`."""

    def make(kind: str, bos: str, tokens: int, samples: int) -> Inputs:
        return build_inputs(
            kind,
            tokenizer=tokenizer,
            vocab_size=vocabulary,
            tokens=tokens,
            samples=samples,
            seed=0,
            corpus=CORPUS,
            split="all",
            bos=bos,
        )

    made: dict[str, Make] = {
        f"{name}{after}": partial(make, kind, bos) for name, kind in KINDS.items() for after, bos in BOS.items()
    }
    if tokenizer.chat_template:
        made["text, chat template"] = lambda **sizes: as_chat(make("natural", "none", **sizes), tokenizer)
    return made


def rate(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The sink rate of the first position in percent of heads, with its interval over samples, and by layer."""
    found = ss.measure(model, inputs.input_ids, [AttentionReceived("all")])
    interval = found.sink_rate_interval(0)
    return {
        "inputs": inputs.description,
        "first": inputs.first,
        "n": len(inputs.input_ids),
        "rate": interval.value,
        "low": interval.low,
        "high": interval.high,
        "by_layer": listed(found.layer_sink_rate().sel(position=0).values),
    }


def rates_by_length(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The sink rate in percent by threshold and by how many tokens there are (Figure 3)."""
    lengths = [tokens for tokens in LENGTHS if tokens <= inputs.input_ids.shape[1]]
    found = ss.measure(model, inputs.input_ids, [ReceivedByLength(lengths)], batch_size=2)
    rates = found.sweep(EPSILONS).transpose("epsilon", "length")
    return {
        "inputs": inputs.description,
        "n": len(inputs.input_ids),
        "epsilons": list(EPSILONS),
        "lengths": rates["length"].values.tolist(),
        "rates": [listed(row) for row in rates.values],
    }


def geometry(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Angles, norms and spikes of the first token against the others, a number per layer or depth (Figure 2).

    `cosine`: mean over heads of cos(q_t, k_k), t > k, with the key of the first token and with the others.
    `key_ratio`, `query_ratio`, `value_ratio`: ‖·‖ of the first token over the mean of the others. `hidden`: ‖h‖ by
    depth, before any norm; `entering`: ‖x‖ of what enters the attention of a layer, after the norm. `spike`: share of
    ‖h‖² in the largest channel of the first token, `entering_spike` of ‖x‖²; `spike_key_cosine`: cos of its key with
    the key of that channel alone. `channel`: which channel that is in most samples.
    """
    observers = [AttentionReceived("all"), HiddenNorms(), QueryKeyValueNorms(), QueryKeyAngles(), SpikeDimensions(1)]
    with norms_entering(model) as entering:
        found = ss.measure(model, inputs.input_ids, observers)
    data = found.data
    cosines = data["cos_query_key"].transpose("sample", "layer", "head", "position").values
    channels = data["spike_dimension"].isel(probe_position=0, spikes=0).transpose("depth", "sample").values
    return {
        "inputs": inputs.description,
        "n": len(inputs.input_ids),
        "rate": listed(found.layer_sink_rate().sel(position=0).values),
        "cosine": {"first": by_layer(cosines[..., :1]), "others": by_layer(cosines[..., 1:-1])},
        **{f"{name}_ratio": ratio(found, f"{name}_norm") for name in ("key", "query", "value")},
        "hidden": first_and_others(data["hidden_norm"].transpose("depth", "sample", "position").values),
        "entering": first_and_others(np.stack([torch.cat(norms).numpy() for norms in entering])),
        "spike": by_depth(found, "spike_share", "depth"),
        "entering_spike": by_depth(found, "normed_spike_share", "layer"),
        "spike_key_cosine": by_depth(found, "spike_key_cosine", "layer"),
        "channel": [int(np.bincount(row.astype(int)).argmax()) for row in channels],
    }


@contextmanager
def norms_entering(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Collect ‖x‖ (sample, position) of what enters every attention layer, a list of batches for each."""
    modules = list(attention_layers(model))
    norms: list[list[Tensor]] = [[] for _ in modules]

    def keep(into: list[Tensor], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        into.append(hidden.detach().float().norm(dim=-1).cpu())

    handles = [
        module.register_forward_pre_hook(partial(keep, into), with_kwargs=True)
        for module, into in zip(modules, norms, strict=True)
    ]
    try:
        yield norms
    finally:
        for handle in handles:
            handle.remove()


def ratio(found: Measurement, name: str) -> list[float | None]:
    """‖·‖ of the first token over the mean of the others, per sample and head, then averaged, by layer."""
    lengths = found.data[name].transpose("sample", "layer", "head", "position").values
    return listed(np.nanmean(metrics.first_over_rest(lengths), (0, 2)))


def by_layer(values: np.ndarray) -> list[float | None]:
    """Means of (sample, layer, head, position) by layer."""
    return listed(np.nanmean(values, (0, 2, 3)))


def by_depth(found: Measurement, name: str, along: str) -> list[float | None]:
    """The first spike's number, averaged over all but one dimension."""
    values = found.data[name].isel(probe_position=0, spikes=0)
    return listed(values.mean([dim for dim in values.dims if dim != along]).values)


def first_and_others(lengths: np.ndarray) -> dict[str, list[float | None]]:
    """Means of (place, sample, position) for the first token and for the others."""
    return {"first": listed(lengths[..., 0].mean(1)), "others": listed(lengths[..., 1:].mean((1, 2)))}


def listed(values: np.ndarray) -> list[float | None]:
    """Numbers with four digits, for JSON."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in np.asarray(values, float)]


def parts(model: Any, tokenizer: PreTrainedTokenizerBase, samples: int = SAMPLES) -> dict[str, Part]:
    """What is measured, by name."""
    config = model.config.get_text_config()
    made = conditions(tokenizer, config.vocab_size)
    longest = min(max(LENGTHS), getattr(config, "max_position_embeddings", None) or max(LENGTHS))

    def part(read: Callable[[nn.Module, Inputs], dict[str, Any]], make: Make, tokens: int, samples: int) -> Part:
        return lambda: read(model, make(tokens=tokens, samples=samples))

    plain = {name: made[name] for name in ("text", "text, BOS")}
    few = -(-samples // LONG)
    return {
        **{f"rate/{name}": part(rate, make, TOKENS, samples) for name, make in made.items()},
        **{f"length/{name}": part(rates_by_length, make, longest, few) for name, make in plain.items()},
        **{f"geometry/{name}": part(geometry, make, TOKENS, samples) for name, make in plain.items()},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what the file does not hold yet, or holds of another number of samples."""
    parser = argparse.ArgumentParser(prog="python -m sinkscope_replication.released")
    parser.add_argument("model", help="a hub id, a folder or a GGUF file")
    parser.add_argument("--out", type=Path, help="the file; by default in the records, under the model's name")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"texts of {TOKENS} tokens; {SAMPLES} by default")
    options = parser.parse_args(argv)
    name = Path(options.model).name
    out = options.out or RELEASED / f"{name}.json"
    if options.samples < 2:
        parser.error(f"--samples {options.samples}: at least 2, for an interval")
    try:
        known = _known(out)
        model, tokenizer = load(options.model), load_tokenizer(options.model)
    except InputError as error:
        parser.error(str(error))
    known |= {"model": name, "corpus": CORPUS, "epsilon": 0.3, "versions": versions()}
    for part, measured in parts(model, tokenizer, options.samples).items():
        if known["parts"].get(part, {}).get("samples") == options.samples:
            continue
        try:
            known["parts"][part] = {"samples": options.samples, **measured()}
            write_json(out, known)
        except InputError as error:
            parser.error(f"{name}, {part}: {error}")
        print(part, known["parts"][part].get("rate"), flush=True)


def _known(out: Path) -> dict[str, Any]:
    """What a file holds, which may not be there. Raises `InputError` for one that this module did not write."""
    try:
        known = json.loads(out.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"parts": {}}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {out}: {error}") from error
    parts = known.get("parts") if isinstance(known, dict) else None
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        raise InputError(f"{out} is not a file of this command: expected an object with 'parts'")
    return known


if __name__ == "__main__":
    main()
