"""How the shipped encoder and the shipped hybrid were trained, and what their attention does."""

from __future__ import annotations

from typing import Any

from tools.pages.stored import curve, read, shipped

PAGE = "docs/encoder_and_hybrid.md"
MODELS = "nano-encoder", "nano-hybrid"
LARGE = 6  # times the norm of the other tokens


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_recipes(), *_encoder(), *_hybrid(), *_not_concluded()]


def _recipes() -> list[str]:
    encoder, hybrid = (shipped(model) for model in MODELS)
    shape, data, objective = encoder["recipe"]["model"], encoder["data"], encoder["data"]["objective"]
    masked, swapped = 100 * objective["masked"], 100 * objective["random"]
    size, rest = (
        [f"{each['parameters'][part]:,}" for each in (encoder, hybrid)] for part in ("total", "without_embeddings")
    )
    steps = (
        f"{each['steps']} × {each['batch_size']} × {each['context']}" for each in (encoder["recipe"], hybrid["recipe"])
    )
    losses = [each["results"]["validation_loss"] for each in (encoder, hybrid)]
    return [
        f"{shape['num_hidden_layers']} layers, width {shape['hidden_size']}, {shape['num_attention_heads']} heads, "
        f"feed-forward width {shape['intermediate_size']}.",
        f"a byte-level BPE of {data['vocabulary']} tokens and seed {encoder['seed']}, in one process",
        f"layer {hybrid['data']['first_attention']} attends, layers",
        f"`[CLS] A [SEP] B [SEP]`, {encoder['recipe']['context']} tokens | a BOS fixed at position 0, "
        f"{hybrid['recipe']['context']} tokens |",
        f"| {100 * objective['chosen']:.0f} % of the tokens ({masked:.0f} % `[MASK]`, {swapped:.0f} % random, "
        f"{100 - masked - swapped:.0f} % kept)",
        f"| {size[0]} ({rest[0]} without embeddings, which are tied) | {size[1]} ({rest[1]} without embeddings, which "
        "are tied) |",
        f"| {' | '.join(steps)} |",
        f"| {losses[0]:.2f} (masked tokens) | {losses[1]:.2f} (next token; not comparable) |",
        f"(state {hybrid['data']['state']}, inner width "
        f"{hybrid['data']['expand'] * hybrid['recipe']['model']['hidden_size']})",
    ]


def _encoder() -> list[str]:
    found = read("real/measure_nano_encoder")
    samples, tokens, norms = _option(found, "--samples"), found["tokens"], found["hidden_norm_ratio"]
    layers = [str(row["layer"]) for row in found["layers"] if row["sink_rate"]]
    most = max(found["layers"], key=lambda row: row["cls"] + row["sep"])
    return [
        f"and only in layers {' and '.join(layers)}. Per layer, from {samples} windows of {tokens} tokens:",
        f"Uniform attention is 1/{tokens} = {1 / tokens:.3f}. The hidden norm of `[CLS]` stays between "
        f"{min(norms):.2f} and {max(norms):.2f} times that of the other tokens",
        f"(From {samples} windows;",
        f"in every text and almost only in layer {most['layer']}.",
    ]


def _hybrid() -> list[str]:
    inputs = read("real/measure_nano_hybrid")["inputs"]
    rows = {step: row for step, row in curve("nano-hybrid").items() if "sink/position_0" in row}
    early = next(step for step in rows if _ratio_after(rows, step) > LARGE)
    rates = {step: row["sink/position_0"] for step, row in rows.items()}
    without = max(step for step in rates if not any(rates[each] for each in rates if each <= step))
    weak = max(step for step in rates if max(rates[each] for each in rates if each <= step) <= 1)
    last = max(rates)
    between = (weak + last) // 2 // 100 * 100
    return [
        f"From {_option(inputs[0], '--samples')} windows of",
        f"the norm ratio was above {LARGE} from step {early} on, while the sink rate was 0 until step {without}, "
        f"at most {max(rates[each] for each in rates if each <= weak):.1f} % until {weak}, {rates[between]:.1f} % at "
        f"{between} and {rates[last]:.1f} % at {last} (on the validation windows",
    ]


def _ratio_after(rows: dict[int, dict[str, Any]], first: int) -> float:
    """The smallest norm ratio from this step on."""
    return min(float(row["sink/hidden_norm_ratio"]) for step, row in rows.items() if step >= first)


def _not_concluded() -> list[str]:
    encoder, nano = shipped("nano-encoder"), shipped("nano")
    losses = {step: row["validation_loss"] for step, row in curve("nano-encoder").items() if "validation_loss" in row}
    first, last = min(losses), max(losses)
    return [
        f"its loss is {losses[last]:.2f} nats per token, and was {losses[last // 2]:.2f} half-way through training and "
        f"{losses[first]:.2f} after {first} steps",
        f"Only {100 * encoder['data']['objective']['chosen']:.0f} % of the tokens are scored",
        f"windows of {shipped('nano-hybrid')['recipe']['context']} tokens and a Mamba smaller than usual. `nano`, with "
        f"{nano['results']['sink/position_0']:.0f} % at position 0 after {nano['step']} steps",
    ]


def _option(stored: dict[str, Any], name: str) -> str:
    """What the stored command gives an option."""
    words = stored["command"].split()
    return str(words[words.index(name) + 1])
