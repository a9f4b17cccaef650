"""Blocks that show what `sinkscope measure` said of a model: `results/real/measure_*.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from textwrap import fill
from typing import Any

import numpy as np

from tools.pages import foreign, table
from tools.pages.stored import read

LAYERS = (0, 2, 3, 6, 9, 10, 11, 12, 18, 24, 29)  # before, on and after each jump, and between
SINK_LAYER = 18  # nine heads with the sink, from weak to strong
MOST = 50.0  # percent of samples in which a head has the sink


def _measured(model: str) -> dict[str, Any]:
    return dict(read(f"real/measure_{model}"))


def answer() -> str:
    """The answer that comes first, of SmolLM2."""
    found = _measured("smollm2")
    said = (sentence.replace(found["model"], "model.gguf") for sentence in found["answer"])
    lines = "\n".join(fill(sentence, 120, break_on_hyphens=False, break_long_words=False) for sentence in said)
    return f"```text\n{lines}\n```"


def layers() -> str:
    """Where SmolLM2 has its sink, by layer."""
    rows = []
    for row in _measured("smollm2")["layers"]:
        if row["layer"] in LAYERS:
            ratios = f"{row['hidden_norm_ratio']:.2f}", f"{row['value_norm_ratio']:.2f}"
            rows.append((str(row["layer"]), _rate(row, ""), f"{row['strongest_position']}", *ratios))
    return table("layer | sink rate, % (95 %) | strongest at | hidden norm × | value norm ×", rows)


def definitions() -> str:
    """What each definition finds in SmolLM2."""
    rows = [
        (row["definition"], f"{row['sinks']:.2f}", f"{row['position_0']:.0f} %", f"{row['agreement']:.2f}")
        for row in _measured("smollm2")["definitions"]
    ]
    return table("definition of a sink | sinks per sample | at position 0 | agreement", rows)


def inputs() -> str:
    """SmolLM2's sink on three kinds of input."""
    rows = []
    for row in _measured("smollm2")["inputs"]:
        ratios = f"{row['hidden_norm_ratio']:.0f}", f"{row['value_norm_ratio']:.2f}"
        rows.append((f"`{row['input']}`", foreign(row["first"]), _rate(row), *ratios))
    head = "`--input` | at position 0 | sink rate (95 %) | largest hidden norm × | smallest value norm ×"
    return table(head, rows)


def sweep() -> str:
    """SmolLM2's sink rate by threshold and length."""
    found = _measured("smollm2")["sweep"]
    first, *lengths = found["length"]
    rows = (
        (f"{epsilon}", *(f"{rate:.1f}" for rate in rates))
        for epsilon, rates in zip(found["epsilon"], found["rates"], strict=True)
    )
    return table(" | ".join(["ε", f"{first} tokens", *map(str, lengths)]), rows)


def heads() -> str:
    """The heads of one layer of SmolLM2."""
    numbers = ("alpha", "lift", "value_ratio", "key_ratio", "cos_sink", "cos_others", "output_norm")
    rows = []
    for row in _measured("smollm2")["heads"]:
        if row["layer"] == SINK_LAYER:
            cells = [f"{row[name]:.3g}".replace("-", "−") for name in numbers]
            rows.append((f"{row['layer']}.{row['head']}", *cells, row["kind"]))
    return table(f"head | {' | '.join(f'`{name}`' for name in numbers)} | `kind`", rows)


def depths() -> str:
    """SmolLM2's residual stream before and after the blocks that change it."""
    rows = []
    for row in _measured("smollm2")["depths"]:
        if row["depth"] in {*LAYERS, 30}:
            numbers = f"{row['largest']:,.0f}", f"{row['median']:.2f}", f"{row['kurtosis']:,.0f}"
            rows.append((str(row["depth"]), f"{row['hidden_norm_ratio']:.2f}", *numbers))
    return table("depth | `hidden_norm_ratio` | `largest` | `median` | `kurtosis`", rows)


def mechanism() -> str:
    """The questions about a head with a sink, and what SmolLM2's heads answer."""
    found = _measured("smollm2")
    with_sink = [row for row in found["heads"] if row["sink"] > MOST]
    others = [row for row in found["heads"] if row["sink"] <= MOST]

    def middle(name: str) -> str:
        low, value, high = (_two(x) for x in np.quantile([row[name] for row in with_sink], (0.25, 0.5, 0.75)))
        return f"{value} ({low} to {high})"

    kinds = [row["kind"] for row in with_sink]
    counts = ", ".join(f"{kinds.count(kind)} `{kind}`" for kind in ("no-op", "active", "broadcast"))
    ratios = {row["depth"]: row["hidden_norm_ratio"] for row in found["depths"]}
    peak = found["massive"][0]
    share = "every sample" if peak["samples"] == 1 else f"{100 * peak['samples']:.0f} % of samples"
    jump = (
        f"norm × {ratios[3]:.0f} at depth 3, × {ratios[12]:.0f} at depth 12; channel {peak['dimension']} is "
        f"{peak['over_median']:,.0f} medians, in {share}"
    )
    constancy = "sink_output_constancy"
    without, alike = (np.median([row[name] for row in others]) for name in ("value_ratio", constancy))
    key = found["key_angle"]
    elsewhere = f"{key['degrees']:.0f}° from the other keys (median over all heads), chance {key['chance']:.0f}°"
    angles = f"{middle('cos_sink')} against {middle('cos_others')}; keys {middle('key_ratio')} times as long"
    rows = (
        ("Is there a massive activation?", "`hidden_norm_ratio`, `largest` over `median`, `massive.csv`", jump),
        ("Angle or length?", "`cos_sink` against `cos_others`; `key_ratio`", angles),
        ("Is the value drained?", "`value_ratio`", f"{middle('value_ratio')}; the other heads {_two(without)}"),
        ("What does attending to it write?", "`kind`", counts),
        (
            "Alike for all queries?",
            "`sink_output_constancy`",
            f"{middle('sink_output_constancy')}; others {_two(alike)}",
        ),
        ("Does the key lie elsewhere?", "`key_manifold`, below", elsewhere),
    )
    head = f"question | columns | SmolLM2's {len(with_sink)} heads with a sink in most samples (median, quartiles)"
    return table(head, rows)


def sink_tokens() -> str:
    """SmolLM2's `tokens.csv`."""
    rows = []
    for row in _measured("smollm2")["tokens"]:
        where = f"{row['first']}", f"{row['last']}"
        counts = f"{row['sinks']}", f"{row['occurrences']}", f"{row['share']:.0f}"
        token = foreign(row["token"])
        rows.append((token, str(row["id"]), *counts, f"{row['heads']:.2g}", f"{row['alpha']:.2f}", *where))
    columns = ("token", "id", "sinks", "occurrences", "share", "heads", "alpha", "first", "last")
    return table(" | ".join(f"`{name}`" for name in columns), rows)


def kinds() -> str:
    """SmolLM2's `kinds.csv`."""
    return _kinds(_measured("smollm2")["kinds"])


def encoder_kinds() -> str:
    """The same of the shipped encoder, on short texts."""
    return _kinds(_measured("nano_encoder")["few_kinds"])


def _kinds(found: Iterable[dict[str, Any]]) -> str:
    rows = (
        (foreign(row["kind"]), str(row["occurrences"]), f"{row['alpha']:.4f}", *(f"{row[name]:.2g}" for name in RATES))
        for row in found
    )
    return table("`kind` | `occurrences` | `alpha` | `sink_rate` | `largest`", rows)


RATES = ("sink_rate", "largest")


def tried_first() -> str:
    """Which tokens make a weaker or a stronger sink where they come first, in SmolLM2."""
    found = _measured("smollm2")["first_tokens"]
    shown = [*found[:3], *found[-2:]]
    rows = ((foreign(row["token"]), f"{row['heads']:.0f} %", f"{row['hidden_norm_ratio']:.0f}") for row in shown)
    low, middle, high = np.quantile([row["heads"] for row in found], (0.25, 0.5, 0.75))
    failed = sum(not row["becomes_sink"] for row in found)
    said = (
        f"Of {len(found)} first tokens {failed or 'none'} fail{'s' if failed == 1 else ''} in SmolLM2: quartiles are "
        f"{low:.0f}, {middle:.0f} and {high:.0f} % of heads. The three weakest and the two strongest:"
    )
    return f"{fill(said, 120)}\n\n{table('first token | heads in which it is a sink | hidden norm ×', rows)}"


def encoder_layers() -> str:
    """The shipped encoder's two special tokens, by layer."""
    rows = []
    for row in _measured("nano_encoder")["layers"]:
        received = f"{row['cls']:.3f} / {row['sep']:.3f}"
        rows.append((str(row["layer"]), _rate(row, digits=2), received, f"{row['value_norm_ratio']:.2f}"))
    received = "received by `[CLS]` / by the last `[SEP]`, mean over heads"
    return table(f"layer | sink rate at `[CLS]` (95 %) | {received} | value norm of `[CLS]` ×", rows)


def encoder_received() -> str:
    """What each kind of its tokens receives."""
    found = _measured("nano_encoder")
    rows = []
    for row in found["kinds"]:
        received = f"{row['alpha']:.4f}", f"{row['alpha'] * found['tokens']:.1f}", f"{row['sink_rate']:.2f} %"
        rows.append((foreign(row["kind"]), str(row["occurrences"]), *received))
    head = "kind | tokens | attention received, mean over layers and heads | × uniform | sink rate at ε = 0.3"
    return table(head, rows)


HYBRID_INPUTS = (
    "natural text after a BOS",
    "random tokens after a BOS",
    "the same text without a BOS",
    "random tokens",
    "one repeated token",
)


def hybrid_inputs() -> str:
    """The shipped hybrid's attention layer, by input."""
    rows = []
    for what, row in zip(HYBRID_INPUTS, _measured("nano_hybrid")["inputs"], strict=True):
        received = ", ".join(f"{alpha:.2f}" for alpha in row["alpha"])
        rows.append((what, _rate(row), received, f"{row['value_norm_ratio']:.2f}"))
    head = "input | sink rate at position 0 (95 %) | received by position 0, heads 0 to 3 | value norm × the others'"
    return table(head, rows)


def hybrid_depths() -> str:
    """The norm of its first token's state, by depth, on text after a BOS."""
    ratios = _measured("nano_hybrid")["inputs"][0]["hidden_norm_ratio"]
    head = "embeddings | after Mamba 0 | after Mamba 1 | after attention 2 | after Mamba 3"
    return table(head, [[f"{ratio:.2f}" for ratio in ratios]])


def _rate(row: dict[str, Any], unit: str = " %", digits: int = 1) -> str:
    return f"{row['sink_rate']:.{digits}f}{unit} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"


def _two(x: float) -> str:
    return f"{x:.2f}".replace("-", "−")


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "by_which_mechanism": (heads, depths, mechanism),
    "does_my_model_have_a_sink": (answer, layers, definitions, inputs, sweep),
    "encoder_and_hybrid": (encoder_layers, encoder_received, hybrid_inputs, hybrid_depths),
    "many_models": (inputs,),
    "which_tokens": (sink_tokens, kinds, encoder_kinds, tried_first),
}
BLOCKS = {f"docs/{page}.md": {block.__name__: block for block in blocks} for page, blocks in PAGES.items()}
