"""`python -m sinkscope_replication.figures [FOLDER]`: draw the figures of the README from the records.

One dot is one trained model; a short line is the mean of a variation; the dashed line is the rate from which a model
has a sink here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.experiments import Observed
from sinkscope.theme import BLUE, GREEN, GRID, INK, MUTED, OCHRE, ORANGE, PURPLE, SLATE
from sinkscope_replication.questions import QUESTIONS
from sinkscope_replication.records import RELEASED, findings_of

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
A_SINK = 3.0  # percent of heads
RATE = "heads with a sink (%)"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, OCHRE, SLATE)
STYLE: Any = {
    "svg.hashsalt": "sinkscope",  # the same file for the same records
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def models(question: str, label: str) -> list[Observed]:
    """The models that decide a question about a variation, as in the table, in order of their seeds."""
    findings = findings_of(question)
    runs = findings.runs.get(label, {}) if findings else {}
    seeds = QUESTIONS[question].seeds_of(label)
    return [run for seed, run in sorted(runs.items()) if seed in seeds and not run.diverged]


def dots(axis: Axes, columns: Mapping[str, Sequence[float]], color: str = BLUE, shift: float = 0.0) -> None:
    """One column per variation, one dot per model, in a fixed spread, with the mean."""
    for place, values in enumerate(columns.values()):
        spread = np.linspace(-0.14, 0.14, len(values)) if len(values) > 1 else np.zeros(len(values))
        axis.scatter(place + shift + spread, values, s=12, color=color, alpha=0.75, linewidths=0, zorder=3)
        if len(values):
            mean = float(np.mean(values))
            axis.plot([place + shift - 0.2, place + shift + 0.2], [mean, mean], color=INK, lw=1.2, zorder=4)
    axis.set_xticks(range(len(columns)), list(columns))
    axis.set_xlim(-0.5, len(columns) - 0.5)


def thresholds(*axes: Axes) -> None:
    """The rate from which a model has a sink, in panels that are drawn already."""
    for axis in axes:
        axis.axhline(A_SINK, color=MUTED, lw=0.8, ls="--", zorder=2)
    axes[0].set_ylim(bottom=0)


def rates(question: str, labels: Mapping[str, str], metric: str = "sink_0") -> dict[str, list[float]]:
    """A metric of every model, under the words that the figure uses for each label, with the mean loss in a line."""
    columns: dict[str, list[float]] = {}
    for label, words in labels.items():
        runs = models(question, label)
        loss = np.mean([run["loss"] for run in runs])
        columns[f"{words}\nloss {loss:.2f}"] = [run[metric] for run in runs]
    return columns


def emergence() -> Figure:
    """Rate and loss over training, one line per model."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.5))
    for axis, curve, words in ((left, "sink/position_0", RATE), (right, "validation_loss", "validation loss (nats)")):
        lines = [(run.steps, run.curves[curve]) for run in models("emergence", "softmax")]
        for steps, values in lines:
            axis.plot(steps, values, color=BLUE, lw=0.7, alpha=0.4)
        axis.plot(lines[0][0], np.median([values for _, values in lines], 0), color=INK, lw=1.6)
        axis.set(xlabel="step", ylabel=words, xlim=(0, 1500))
    thresholds(left)
    return figure


def positions_of_a_token() -> Figure:
    """Rates at positions 0 to 3, by where the fixed token is, in the models that decide."""
    figure, axis = plt.subplots(figsize=(6.2, 2.6))
    places = {
        "BOS at 0": ("fresh-fixed-positions", "BOS at 0"),
        "token at 1": ("fresh-fixed-positions", "token at 1"),
        "token at 2": ("abstract", "token at 2"),
        "token at 3": ("fresh-fixed-positions", "token at 3"),
        "no fixed token": ("abstract", "no fixed token"),
    }
    for number, color in enumerate(COLORS[:4]):
        columns = {words: [run[f"sink_{number}"] for run in models(*where)] for words, where in places.items()}
        dots(axis, columns, color, 0.22 * (number - 1.5))
        axis.scatter([], [], s=12, color=color, label=f"at position {number}")
    thresholds(axis)
    axis.set_ylabel(RATE)
    axis.legend()
    return figure


def optimization() -> Figure:
    """Rates by learning rate, weight decay and amount of text."""
    figure, axes = plt.subplots(1, 3, figsize=(8.2, 2.6), sharey=True, width_ratios=(3, 4, 4))
    panels = (
        ("learning rate", "learning-rate", {"lr / 8": ".0005", "lr / 4": ".001", "lr": ".004"}),
        ("weight decay", "weight-decay", {label: label for label in ("0", "0.1", "0.5", "2")}),
        ("share of the text", "data-amount", {label: label for label in ("1/700", "1/100", "1/20", "all")}),
    )
    for axis, (words, question, labels) in zip(axes, panels, strict=True):
        dots(axis, rates(question, labels))
        axis.set_xlabel(words)
    thresholds(*axes)
    axes[0].set_ylabel(RATE)
    return figure


SUM_TO_ONE = {
    "softmax": ("normalisation", "softmax"),
    "sigmoid,\nnormalized": ("normalisation", "sigmoid_normalized"),
    "linear,\nnormalized": ("normalised-kernel", "kernel_elu_normalized"),
}
NEED_NOT = {
    "softmax\noff by one": ("off-by-one", "softmax_off_by_one"),
    "softpick": ("softpick", "softpick"),
    "sigmoid": ("normalisation", "sigmoid"),
    "sigmoid,\nat its loss": ("fresh-equal-loss", "sigmoid, at its loss"),
    "ELU": ("unnormalised", "elu"),
    "identity": ("unnormalised", "kernel_identity"),
    "MLP": ("unnormalised", "kernel_mlp"),
}


def normalization() -> Figure:
    """Rates by attention operation, and against the loss, by whether the weights of a row sum to one."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 2.9), width_ratios=(5, 2), sharey=True)
    places = {**SUM_TO_ONE, **NEED_NOT}
    runs = {words: models(*where) for words, where in places.items()}
    for chosen, color, words in ((SUM_TO_ONE, BLUE, "rows sum to one"), (NEED_NOT, ORANGE, "rows need not")):
        columns = {name: [run["sink_0"] for run in found] if name in chosen else [] for name, found in runs.items()}
        dots(left, columns, color)
        both = [(run["loss"], run["sink_0"]) for name in chosen for run in runs[name]]
        right.scatter(*zip(*both, strict=True), s=12, color=color, alpha=0.75, linewidths=0, label=words)
    left.tick_params(axis="x", labelsize=7.5)
    right.set_xlabel("validation loss (nats)")
    right.legend()
    left.set_ylabel(RATE)
    thresholds(left, right)
    return figure


def beside_the_text() -> Figure:
    """Where the sink is when a model has a learned key, value or token, with and without a fixed BOS."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.7), sharey=True, width_ratios=(5, 4))
    with_bos = {
        "none": ("biases", "softmax"),
        "key": ("biases", "k_bias"),
        "key and\nvalue": ("biases", "kv_bias"),
        "value": ("biases", "v_bias"),
        "token": ("sink-token", "sink token"),
    }
    without = {name: ("biases-without-bos", label) for name, (_, label) in with_bos.items() if name != "token"}
    for axis, places, words in ((left, with_bos, "with a fixed BOS"), (right, without, "without a BOS")):
        for number, (metric, color, which) in enumerate((("sink_0", BLUE, "position 0"), ("slot", ORANGE, "learned"))):
            columns = {name: known(models(*where), metric) for name, where in places.items()}
            dots(axis, columns, color, 0.3 * number - 0.15)
            axis.scatter([], [], s=12, color=color, label=f"on what is {which}" if number else f"on {which}")
        axis.set(title=words, xlabel="what is learned")
    thresholds(left, right)
    left.legend()
    left.set_ylabel(RATE)
    return figure


def known(runs: Sequence[Observed], metric: str) -> list[float]:
    """The values of a metric that is known."""
    return [run[metric] for run in runs if not np.isnan(run[metric])]


def architecture() -> Figure:
    """Rates by position embedding, feed-forward, and heads or norm."""
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 2.8), sharey=True, width_ratios=(6, 6, 5))
    positions = ("rotary", "none", "sinusoidal", "learned", "alibi", "relative_paper")
    panels = (
        ("positions", "positions", {name: name.removesuffix("_paper") for name in positions}),
        (
            "feed-forward",
            "feed-forward",
            {name: name for name in ("swiglu", "relu", "gelu", "swish", "reglu", "geglu")},
        ),
        ("heads per layer", "heads", {"8 heads": "8", "4 heads": "4", "2 heads": "2", "1 head": "1"}),
    )
    for axis, (words, question, labels) in zip(axes, panels, strict=True):
        columns = rates(question, labels)
        if question == "heads":
            columns |= rates("post-norm", {"post-norm": "4, post-\nnorm"})
        dots(axis, columns)
        axis.set_xlabel(words)
        axis.tick_params(axis="x", labelsize=6.5)
    thresholds(*axes)
    axes[0].set_ylabel(RATE)
    return figure


def sink_token() -> Figure:
    """What sets the sink's token apart, in the head where it is strongest, against all other tokens."""
    figure, axes = plt.subplots(1, 4, figsize=(8.6, 2.5))
    with_bos, without = models("sink-head", "softmax"), models("sink-head", "no fixed token")
    panels = (
        ("top_head/cosine_gap", "cosine of queries with its key,\nminus with other keys", 0.0),
        ("top_head/key_ratio", "length of its key\n/ of other keys", 1.0),
        ("top_head/value_ratio", "length of its value\n/ of other values", 1.0),
        ("norm_ratio", "length of its state\n/ of other states", 1.0),
    )
    for axis, (metric, words, same) in zip(axes, panels, strict=True):
        dots(axis, {"with a BOS": known(with_bos, metric), "without": known(without, metric)})
        axis.axhline(same, color=MUTED, lw=0.8, ls="--")
        axis.set_title(words)
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    return figure


def released(name: str = "SmolLM2-135M-Instruct.Q4_1.gguf") -> Figure:
    """Section 3 of the paper on a released model: rates by input, threshold, length and layer; norms and angles."""
    parts: dict[str, Any] = json.loads((RELEASED / f"{name}.json").read_text(encoding="utf-8"))["parts"]
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.2))
    (by_input, by_length, by_layer), (angles, lengths, norms) = axes
    inputs = {part.removeprefix("rate/"): found for part, found in parts.items() if part.startswith("rate/")}
    for place, found in enumerate(inputs.values()):
        errors = [[found["rate"] - found["low"]], [found["high"] - found["rate"]]]
        by_input.errorbar(found["rate"], place, xerr=errors, fmt="o", ms=4, color=BLUE, lw=1.2)
    by_input.set_yticks(range(len(inputs)), list(inputs))
    by_input.invert_yaxis()
    by_input.grid(axis="x")
    by_input.set(xlim=(0, 100), xlabel=RATE)
    long = parts["length/text"]
    for epsilon, values, color in zip(long["epsilons"], long["rates"], COLORS, strict=False):
        by_length.plot(long["lengths"], values, color=color, marker="o", ms=3, lw=1.2, label=f"ε = {epsilon:g}")
    by_length.set_xscale("log", base=2)
    by_length.set_xticks(long["lengths"], [str(tokens) for tokens in long["lengths"]])
    by_length.set(xlabel="tokens", ylabel=RATE, ylim=(0, 100))
    by_length.legend(ncols=2)
    for part, color in (("geometry/text", BLUE), ("geometry/text, BOS", ORANGE)):
        found, words = parts[part], part.removeprefix("geometry/")
        by_layer.plot(found["rate"], color=color, lw=1.4, label=words)
        norms.plot(found["hidden"]["first"], color=color, lw=1.4, label=f"first token, {words}")
    found = parts["geometry/text"]
    angles.plot(found["cosine"]["first"], color=ORANGE, lw=1.4, label="with the first key")
    angles.plot(found["cosine"]["others"], color=SLATE, lw=1.4, label="with other keys")
    for name_of, color in (("key", BLUE), ("query", GREEN), ("value", PURPLE)):
        lengths.plot(found[f"{name_of}_ratio"], color=color, lw=1.4, label=name_of)
    lengths.axhline(1, color=MUTED, lw=0.8, ls="--")
    norms.plot(found["hidden"]["others"], color=SLATE, lw=1.4, label="other tokens")
    norms.plot(found["entering"]["first"], color=GREEN, lw=1.4, ls=":", label="first token, after the norm")
    norms.set_yscale("log")
    by_layer.set(xlabel="layer", ylabel=RATE, ylim=(0, 100))
    angles.set(xlabel="layer", ylabel="cosine of queries")
    lengths.set(xlabel="layer", ylabel="length, first token / others", ylim=(0, None))
    norms.set(xlabel="depth", ylabel="length of the state")
    angles.set_ylim(top=1.0)
    lengths.set_ylim(top=1.9)
    norms.set_ylim(top=1e8)
    by_layer.legend()
    for axis in (angles, lengths, norms):
        axis.legend(loc="upper left", fontsize=7, ncols=3 if axis is lengths else 1)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "emergence": emergence,
    "fixed_token": positions_of_a_token,
    "optimization": optimization,
    "normalization": normalization,
    "beside_the_text": beside_the_text,
    "architecture": architecture,
    "sink_token": sink_token,
    "released": released,
}


def draw(folder: Path) -> list[Path]:
    """Write every figure as SVG into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in FIGURES.items():
        with mpl.rc_context(STYLE):
            figure = make()
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            plt.close(figure)
        written.append(path)
    return written


if __name__ == "__main__":
    for drawn in draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(drawn)
