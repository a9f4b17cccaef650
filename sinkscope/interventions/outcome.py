"""The effect of an intervention beside that of its random controls: never one without the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sinkscope.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

METRICS: dict[str, str] = {
    "loss": "loss (nats)",
    "kl": "KL to the baseline (nats)",
    "sink_rate": "sink rate (%)",
}
Standing = Literal["above", "below", "within", "undecided"]
WORDS: dict[Standing, str] = {
    "above": "stands out above",
    "below": "stands out below",
    "within": "lies within",
    "undecided": "cannot be told from",
}
COLORS = {"baseline": "#53606d", "control": "#0068b2", "intervened": "#c9500b"}
SYMBOLS = {"baseline": "diamond", "control": "circle-open", "intervened": "x"}
DEVIATIONS = 4.0  # of the controls, by which an effect must leave their mean
SMALLEST = {"loss": 1e-3, "kl": 1e-4, "sink_rate": 1.0}  # differences from the controls that count as none


@dataclass(frozen=True)
class Outcome:
    """What a model does under an intervention: averages over samples and tokens.

    `loss`: mean next-token negative log-likelihood in nats, None where the model predicts no next token; `kl`:
    KL(baseline ‖ intervened) of its predictions in nats, averaged over tokens; `sink_rate`: Sink^eps in percent (Gu et
    al. 2025, section 3).
    """

    loss: float | None
    kl: float
    sink_rate: float


@dataclass(frozen=True)
class Effect:
    """What an intervention does, next to budget-matched random controls. Made by `effect`.

    `interventions`: descriptions, that of the intervention first, then those of the controls. Raises `InputError`
    without a control.
    """

    model: str
    baseline: Outcome
    intervened: Outcome
    controls: tuple[Outcome, ...]
    interventions: tuple[Mapping[str, Any], ...]
    position: int
    epsilon: float
    samples: int
    tokens: int

    def __post_init__(self) -> None:
        if not self.controls:
            raise InputError("an effect says nothing without a control: controls must be at least 1")

    @property
    def name(self) -> str:
        """The intervention's name."""
        return str(self.interventions[0]["name"])

    def stands_out(self, metric: str) -> bool:
        """Whether the model under intervention differs from all controls beyond chance, in "loss", "kl" or "sink_rate".

        It must lie outside their range, by more than four of their standard deviations from their mean, and by more
        than what counts as no difference (0.001 nats of loss, 0.0001 of KL, one percentage point). A single control has
        no spread, so nothing stands out of it.
        """
        found, controls = self._values(metric)
        if found is None or len(controls) < 2:
            return False
        away = max(controls.min() - found, found - controls.max())
        return bool(away > SMALLEST[metric] and abs(found - controls.mean()) > DEVIATIONS * controls.std(ddof=1))

    def standing(self, metric: str) -> Standing:
        """Where the intervened model is: beyond the controls on a side, within their range, or not told apart."""
        found, controls = self._values(metric)
        if found is not None and self.stands_out(metric):
            return "above" if found > controls.max() else "below"
        return "within" if found is not None and controls.min() <= found <= controls.max() else "undecided"

    @property
    def verdict(self) -> str:
        """The finding in words, with the controls' range beside every number."""
        return " ".join(self._sentence(metric) for metric in METRICS if self._values(metric)[0] is not None)

    def table(self) -> pd.DataFrame:
        """A row per metric: baseline, intervened, the controls' mean and range, and whether it stands out of them."""
        import pandas as pd

        rows = []
        for metric, title in METRICS.items():
            found, controls = self._values(metric)
            if found is not None:
                numbers = (getattr(self.baseline, metric), found, controls.mean(), controls.min(), controls.max())
                rows.append((title, *map(float, numbers), len(controls), self.stands_out(metric)))
        columns = ["metric", "baseline", "intervened", "control_mean", "control_low", "control_high", "controls"]
        return pd.DataFrame(rows, columns=[*columns, "stands_out"])

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-able data, with the verdict."""
        outs = {metric: self.stands_out(metric) for metric in METRICS if self._values(metric)[0] is not None}
        return json.loads(json.dumps({**asdict(self), "stands_out": outs, "verdict": self.verdict}))

    def plot(self) -> go.Figure:
        """A panel per metric: baseline, intervened, and every control as a point; the band is the controls' range."""
        return _figure(self)

    def _repr_html_(self) -> str:
        """The verdict over the table, in notebooks."""
        table = self.table().to_html(index=False, float_format=lambda number: f"{number:.4g}", border=0, na_rep="–")
        return f"<p>{escape(self.verdict)}</p>{table}"

    def _values(self, metric: str) -> tuple[float | None, np.ndarray]:
        return getattr(self.intervened, metric), np.array(
            [getattr(control, metric) for control in self.controls], float
        )

    def _sentence(self, metric: str) -> str:
        found, controls = self._values(metric)
        unit, before = ("%", 1) if metric == "sink_rate" else ("nats", 4), getattr(self.baseline, metric)
        name, digits = {"loss": "Loss", "kl": "KL", "sink_rate": f"Sink rate at {self.position}"}[metric], unit[1]
        number = f"{{:.{digits}f}}".format
        change = number(found) if metric == "kl" else f"{number(before)} → {number(found)}"
        word = WORDS[self.standing(metric)]
        many = f"{len(controls)} random control{'' if len(controls) == 1 else 's'}"
        return f"{name}: {change} {unit[0]}, {word} the {many} ({number(controls.min())} to {number(controls.max())})."


def _figure(effect: Effect) -> go.Figure:
    from plotly.subplots import make_subplots

    shown = {metric: title for metric, title in METRICS.items() if getattr(effect.intervened, metric) is not None}
    figure = make_subplots(cols=len(shown), horizontal_spacing=0.1, subplot_titles=list(shown.values()))
    groups = {"baseline": [effect.baseline], "control": list(effect.controls), "intervened": [effect.intervened]}
    for column, metric in enumerate(shown, start=1):
        values = {name: _values(outcomes, metric) for name, outcomes in groups.items()}
        for name, found in values.items():
            figure.add_scatter(
                x=[name] * len(found),
                y=found,
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLORS[name], "symbol": SYMBOLS[name], "size": 11, "line": {"width": 2}},
                cliponaxis=False,
                row=1,
                col=column,
            )
        low, high = min(values["control"]), max(values["control"])  # after the points: an empty panel takes no band
        figure.add_hrect(y0=low, y1=high, fillcolor=COLORS["control"], opacity=0.12, line_width=0, col=column, row=1)
        figure.update_yaxes(rangemode="tozero" if metric != "loss" else "normal", row=1, col=column)
    return figure.update_layout(title=escape(f"{effect.name} on {effect.model}"), height=420)


def _values(outcomes: list[Outcome], metric: str) -> list[float]:
    return [float(getattr(outcome, metric)) for outcome in outcomes]
