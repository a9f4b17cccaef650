"""The figure of a study: what each arm costs."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from sinkscope.quantization.studies.arms import FULL, NOTHING
from sinkscope.theme import BLUE, INK, SINK, SLATE, figure, intervals

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sinkscope.quantization.studies.result import Study

STYLES = {
    "nothing": ("everything quantized", INK, "diamond"),
    "spared": ("a choice of tokens", SINK, "x"),
    "first": ("the first tokens", BLUE, "square"),
    "control": ("random tokens", SLATE, "circle-open"),
}
TITLES = {
    "loss": "nats a token worse than the full model",
    "kl": "KL(full ‖ arm), nats a token",
}


def figure_of(study: Study) -> go.Figure:
    """A point per arm with its interval; the line is everything quantized, the closer to 0 the better."""
    by, names = study.by, [name for name in study.arms if name != FULL]
    result = figure(height=170 + 26 * len(names))
    for role, (title, color, symbol) in STYLES.items():
        own = [name for name in names if str(study.data["role"].sel(arm=name).values) == role]
        found = [study.cost(name, by=by) for name in own]
        if not own:
            continue
        result.add_scatter(
            x=[one.value for one in found],
            y=[escape(name) for name in own],
            error_x=intervals([one.value for one in found], [one.low for one in found], [one.high for one in found]),
            mode="markers",
            name=title,
            marker={"color": color, "symbol": symbol, "size": 10, "line": {"width": 2}},
            hovertemplate="%{y}: %{x:.4g}<extra></extra>",
        )
    result.add_vline(x=study.cost(NOTHING, by=by).value, line={"color": INK, "width": 1, "dash": "dash"})
    return result.update_layout(
        xaxis={"title": {"text": TITLES[by]}, "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": [escape(name) for name in reversed(names)]},
    )
