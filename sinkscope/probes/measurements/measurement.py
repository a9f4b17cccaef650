"""What was measured: labelled sufficient statistics, from which every rate, table and figure follows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from sinkscope.errors import InputError, unknown
from sinkscope.files import writing
from sinkscope.probes import metrics
from sinkscope.probes.metrics import Interval

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class Measurement:
    """Statistics of a model on samples.

    `data`: dims sample, layer, head, position, depth (0 = what enters the first block). By default `attention_received`
    (sample, layer, head, position), `hidden_norm` (sample, depth, position), `query_norm`, `key_norm`, `value_norm`
    (sample, layer, head, position) and always `tokens` (sample, layer); every observer says which variables and dims it
    adds. Coordinates `layer_index`, `layer_name`, `stack`, `depth_index`, `depth_stack`, and `token_id` (sample,
    position; −1 where there is none). NaN is what was not measured: positions behind a row's last token, heads that a
    layer does not have, whatever was not finite. Positions count real tokens from 0.
    """

    data: xr.Dataset

    @property
    def record(self) -> dict[str, Any]:
        """Where the numbers come from: model, versions, observers, input, which weights the metric used."""
        return json.loads(self.data.attrs["record"])

    def sink_rate(self, epsilon: float = 0.3, position: int | None = None, stack: str | None = None) -> Any:
        """Sink_k^eps in percent [C1]: a DataArray over positions, or a float for one position.

        `stack` restricts it to one stack of a model that has several. Warns (`UserWarning`) below 10 tokens, where
        uniform attention itself exceeds 0.3. Raises `InputError` for an epsilon outside (0, 1) and unknown positions.
        """
        self._warn_if_short()
        rate = metrics.sink_rate(self._received(stack), epsilon)
        return self._at(rate, position)

    def sink_rate_interval(
        self,
        position: int = 0,
        epsilon: float = 0.3,
        stack: str | None = None,
        *,
        level: float = 0.95,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """The sink rate at a position with its bootstrap interval over samples."""
        rates = metrics.sample_rates(self._received(stack), epsilon)[:, self._column(position)]
        low, high = metrics.bootstrap(rates, level, resamples, seed)
        return Interval(float(metrics.nanmean(rates, 0)), float(low), float(high))

    def layer_sink_rate(self, epsilon: float = 0.3) -> xr.DataArray:
        """Sink rate per layer and position, in percent."""
        rates = metrics.nanmean(metrics.layer_rates(self._received(None), epsilon), 0)
        return xr.DataArray(rates, dims=("layer", "position"), coords=self._coordinates("layer", "position"))

    def slot_rate(self, epsilon: float = 0.3, *, paper_compatible: bool = False) -> float:
        """Percent of samples, layers and heads whose mean weight on slots exceeds epsilon: Sink_* of the paper [A7].

        Layers without slots do not count. `paper_compatible` counts the paper's extra query, (T · slot + 1) / (T + 1).
        """
        slot = self._variable("slot_received", "SlotReceived").values
        if paper_compatible:
            slot = metrics.paper_slot(slot, self.data["tokens"].values)
        return float(metrics.sink_rate(slot[..., None], epsilon)[0])

    def hidden_norm_ratio(self) -> xr.DataArray:
        """‖h_0‖ / mean over t ≠ 0 of ‖h_t‖ per depth, averaged over samples [C3]."""
        ratio = metrics.first_over_rest(self._complete("hidden_norm", "HiddenNorms"))
        return xr.DataArray(metrics.nanmean(ratio, 0), dims="depth", coords=self._coordinates("depth"))

    def value_norm_ratio(self) -> xr.DataArray:
        """‖v_0‖ / mean over t ≠ 0 of ‖v_t‖ per layer, taken per sample and head and then averaged [C5]."""
        ratio = metrics.first_over_rest(self._complete("value_norm", "QueryKeyValueNorms"))
        mean = metrics.nanmean(metrics.nanmean(ratio, 2), 0)
        return xr.DataArray(mean, dims="layer", coords=self._coordinates("layer"))

    def definitions(self, epsilon: float = 0.3) -> pd.DataFrame:
        """Every published definition of a sink, side by side: a row per definition.

        Columns: definition, source, rule, sinks (tokens per sample that it calls one), position_0 (percent of samples
        in which position 0 is one), elsewhere and elsewhere_share (the most frequent other position), agreement
        (Jaccard index with the first definition over samples and positions), note (what was not observed). In causal
        stacks only positions that half of the queries can see are compared.
        """
        from sinkscope.probes.measurements.definitions import definitions

        return definitions(self, epsilon)

    def agreement(self, epsilon: float = 0.3) -> pd.DataFrame:
        """Jaccard index of every pair of definitions over (sample, position); 1 where both find nothing."""
        from sinkscope.probes.measurements.definitions import agreement

        return agreement(self, epsilon)

    def sink_tokens(self, epsilon: float = 0.3, *, least: float = 0.0) -> pd.DataFrame:
        """A row per token that is a sink somewhere: text, id, how often, in how many heads, where [X7].

        `least`: percentage of (layer, head) pairs that must exceed epsilon. Texts need `measure(..., tokenizer=...)`.
        """
        from sinkscope.probes.measurements.token_tables import sink_tokens

        return sink_tokens(self, epsilon, least)

    def token_kinds(self, epsilon: float = 0.3) -> pd.DataFrame:
        """A row per kind of token [X6]: each special token, punctuation, words; what such a token receives."""
        from sinkscope.probes.measurements.token_tables import token_kinds

        return token_kinds(self, epsilon)

    def first_tokens(self, epsilon: float = 0.3) -> pd.DataFrame:
        """A row per sample: its first token, in what percentage of heads it is a sink, its norm ratio [C6].

        `becomes_sink` is False where the percentage is at most half the median over samples. Weakest first.
        """
        from sinkscope.probes.measurements.token_tables import first_tokens

        return first_tokens(self, epsilon)

    def patches(self, *, cutoff: float | None = None, times: float = 3.0) -> pd.DataFrame:
        """CLS, registers, artefact patches and other patches of a vision model: number, norm, attention [X5].

        A patch is an artefact above `cutoff`, or above `times` the image's median patch norm where there is none.
        """
        from sinkscope.probes.measurements.patch_tables import patches

        return patches(self, cutoff, times)

    def heads(self, epsilon: float = 0.3, position: int = 0) -> pd.DataFrame:
        """A row per head: its sink at a position, the mechanism behind it, and what it writes; means over samples.

        Columns, where observed: alpha, sink (percent of samples above epsilon), boost (over uniform attention), peak,
        value_ratio and key_ratio (norm there over the others' mean), cos_sink and cos_others [C2], key_angle (of the
        sink's key to the subspace of the others, over a random direction's: above 1 on another manifold),
        drain_correlation [X11], output_norm, dormant [C11], kind (no-op, broadcast, active), slot, entropy with its
        bound [X1], max_logit [X3], output_rank_one, output_mean_share, sink_output_constancy.
        """
        from sinkscope.probes.measurements.heads import head_table

        return head_table(self, epsilon, position)

    def depths(self) -> pd.DataFrame:
        """A row per depth of the residual stream: norm ratio, largest entry, outliers, matrix entropy, spread."""
        from sinkscope.probes.measurements.depths import depth_table

        return depth_table(self)

    def massive_activations(self, magnitude: float = 100.0, ratio: float = 1000.0) -> pd.DataFrame:
        """A row per massive entry (position, dimension) of the residual stream: onset, decay, peak, value [X8].

        Both criteria of Sun et al. 2024: |a| > magnitude and at least ratio × the median of its depth.
        """
        from sinkscope.probes.measurements.depths import massive_activations

        return massive_activations(self, magnitude, ratio)

    def sweep(self, epsilons: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5)) -> xr.DataArray:
        """Sink rate in percent over epsilon and the numbers of tokens that texts have, as in Gu et al., Fig. 3 [C1]."""
        received = self._variable("attention_received_by_length", "ReceivedByLength")
        rates = metrics.sweep(received.values, epsilons)
        coordinates = {"epsilon": list(epsilons), "length": received["length"].values}
        return xr.DataArray(rates, dims=("epsilon", "length"), coords=coordinates).dropna("length", how="all")

    def super_experts(self) -> pd.DataFrame:
        """Experts of a mixture-of-experts model whose outputs are extreme (`metrics.super_experts`)."""
        peaks = self._variable("expert_peak", "ExpertPeaks")
        return metrics.super_experts(peaks.values, [str(name) for name in peaks["moe_layer"].values])

    def table(self, epsilon: float = 0.3) -> pd.DataFrame:
        """A row per layer: sink rate at position 0 with its interval, strongest position, norm ratios.

        The strongest position of a causal layer is sought where at least half of the queries can see it.
        """
        from sinkscope.probes.measurements.tables import layer_table

        return layer_table(self, epsilon)

    def plot(self, epsilon: float = 0.3) -> go.Figure:
        """Sink rate per position, and attention received by position 0 per layer and head."""
        from sinkscope.probes.measurements.drawing import sink_figure

        return sink_figure(self, epsilon)

    def to_dataframe(self) -> pd.DataFrame:
        """All values in long form: variable, sample, layer, head, position, depth, value; what is NaN is left out."""
        from sinkscope.probes.measurements.tables import long_table

        return long_table(self)

    def to_json(self, epsilon: float = 0.3) -> dict[str, Any]:
        """The summary that `sinkscope measure --json` prints, as JSON-able data; numbers that do not exist are None."""
        from sinkscope.probes.measurements.tables import summary

        return summary(self, epsilon)

    def save(self, path: str | Path) -> None:
        """Write one netCDF file, whole or not at all."""
        with writing(path) as draft:
            self.data.to_netcdf(draft, engine="h5netcdf")

    @classmethod
    def load(cls, path: str | Path) -> Measurement:
        """Read a file that `save` wrote. Raises `InputError` for a file that is missing, damaged or something else."""
        try:
            data = xr.load_dataset(path, engine="h5netcdf")
            json.loads(data.attrs["record"])
        except FileNotFoundError as error:
            raise InputError(f"no measurement at {path}") from error
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InputError(f"{path} is not a measurement, or is damaged") from error
        return cls(data)

    def _repr_html_(self) -> str:
        from sinkscope.probes.measurements.tables import html

        return html(self)

    def _received(self, stack: str | None) -> np.ndarray:
        received = self._variable("attention_received", "AttentionReceived")
        if stack is None:
            return received.values
        stacks = [str(name) for name in self.data["stack"].values]
        if stack not in stacks:
            raise unknown("stack", stack, dict.fromkeys(stacks))
        return received.values[:, [name == stack for name in stacks]]

    def _variable(self, name: str, observer: str) -> xr.DataArray:
        if name not in self.data:
            why = "no layer has slots" if name == "slot_received" else "it was not observed"
            raise InputError(f"this measurement has no {name}: {why} (observer {observer})")
        return self.data[name]

    def _complete(self, name: str, observer: str) -> np.ndarray:
        """A variable over positions that start at 0, as ratios of the first token need."""
        variable = self._variable(name, observer)
        self._column(0)
        return variable.values

    def _column(self, position: int) -> int:
        positions = self.data["position"].values.tolist() if "position" in self.data.coords else []
        if position not in positions:
            known = (
                f"{positions[0]} to {positions[-1]}" if len(positions) > 8 else ", ".join(map(str, positions)) or "none"
            )
            raise InputError(f"position {position} was not measured; measured: {known}")
        return positions.index(position)

    def _at(self, rate: np.ndarray, position: int | None) -> Any:
        if position is not None:
            return float(rate[self._column(position)])
        return xr.DataArray(rate, dims="position", coords=self._coordinates("position"), name="sink_rate")

    def _coordinates(self, *dims: str) -> dict[str, Any]:
        return {str(name): value for name, value in self.data.coords.items() if value.dims and {*value.dims} <= {*dims}}

    def _warn_if_short(self) -> None:
        tokens = self.data["tokens"].values
        shortest = int(tokens[tokens > 0].min(initial=metrics.SHORT))
        if shortest < metrics.SHORT:
            warnings.warn(
                f"sink rates over {shortest} tokens say little: below {metrics.SHORT} tokens uniform attention itself "
                "gives the first one more than 0.3",
                UserWarning,
                stacklevel=3,
            )
