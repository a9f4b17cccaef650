"""What was measured: labeled sufficient statistics, from which every rate, table and figure follows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.files.netcdf import read_netcdf, write_netcdf
from sinkscope.measurement import definitions, depths, features, joining, metrics, rates, tables, token_table
from sinkscope.measurement import head_metrics as heads
from sinkscope.measurement import texts as tokens
from sinkscope.measurement.metrics import EPSILONS, Interval
from sinkscope.measurement.selection import VISIBLE, column_of, coordinates, denominator_of, need, record_of
from sinkscope.measurement.sinks import received_by_tokens, rows_of_samples
from sinkscope.measurement.summary import Summary, summary
from sinkscope.registry import imported
from sinkscope.sinks import EPSILON, Evidence, Measured, Tokens
from sinkscope.sinks.choice import By

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class Measurement:
    """Statistics of a model on samples.

    `data`: dims sample, layer, head, position, depth (0 = what enters the first block). By default `attention_received`
    (sample, layer, head, position), `hidden_norm` (sample, depth, position), `query_norm`, `key_norm`, `value_norm`
    (sample, layer, head, position); every observer says which variables and dims it adds. Always present, read from the
    masks: `visible_queries` (sample, layer, position: how many queries see each key; a key that a sparse-attention
    index did not select counts as hidden, a weight that underflows to 0 does not) and `uniform_received` (likewise:
    what uniform attention would give it). Both are means over heads if masks differ between heads; `attention_received`
    divides by each head's own count. `tokens`, `queries` and `most_queries` (sample, layer: keys, queries, the most of
    these that see a key), and the coordinate `causal` (layer: no query sees a later key). Other coordinates:
    `layer_index`, `layer_name`, `stack`, `depth_index`, `depth_stack`, and `token_id` (sample, position; −1 where there
    is none). NaN marks what was not measured: positions after a row's last token, heads that a layer does not have,
    keys that no query sees, and values that were not finite. Positions count real tokens from 0.
    """

    data: xr.Dataset

    @property
    def record(self) -> dict[str, Any]:
        """Where the numbers come from: model, versions, observers, input, which weights the metric used."""
        return json.loads(self.data.attrs["record"])

    def sink_rate(
        self,
        epsilon: float = 0.3,
        position: int | None = None,
        stack: str | None = None,
        denominator: str = VISIBLE,
    ) -> Any:
        """Sink_k^eps in percent (Gu et al. 2025, section 3): a DataArray over positions, or a float for one position.

        `stack`: restrict it to one stack of a model with several. `denominator`: attention received is a mean over the
        queries that see k ("visible"), or Σ_t A[t, k] / (T − k) whatever the masks hide ("paper"; / T where
        earlier queries see k too): the same in plain causal layers. Warns (`UserWarning`) where uniform attention
        itself makes a sink of the first token. Raises `InputError` for an epsilon outside (0, 1), unknown positions and
        denominators.
        """
        rates.warn_if_short(self.data)
        rate = metrics.sink_rate(rates.received(self.data, stack, denominator), epsilon)
        if position is not None:
            return float(rate[column_of(self.data, position)])
        return xr.DataArray(rate, dims="position", coords=coordinates(self.data, "position"), name="sink_rate")

    def sink_rate_interval(
        self,
        position: int = 0,
        epsilon: float = 0.3,
        stack: str | None = None,
        *,
        level: float = 0.95,
        denominator: str = VISIBLE,
    ) -> Interval:
        """The sink rate at a position with its interval over samples (Student's t of a share, on the logit scale).

        For a single sample both ends are NaN.

        Args:
            position, epsilon, stack, denominator: As in `sink_rate`; position 0 is the first real token.
            level: Coverage of the interval, between 0 and 1.
        """
        return rates.sink_rate_interval(self.data, position, epsilon, stack, level, denominator)

    def layer_sink_rate(self, epsilon: float = 0.3, *, denominator: str = VISIBLE) -> xr.DataArray:
        """Sink rate per layer and position, in percent."""
        by_sample = metrics.layer_rates(rates.received(self.data, denominator=denominator), epsilon)
        coords = coordinates(self.data, "layer", "position")
        return xr.DataArray(metrics.nanmean(by_sample, 0), dims=("layer", "position"), coords=coords)

    def slot_rate(self, epsilon: float = 0.3, *, paper_compatible: bool = False) -> float:
        """Percent of samples, layers and heads whose mean weight on slots exceeds epsilon: Sink_* of the paper.

        Layers without slots do not count. `paper_compatible` counts the paper's extra query, (T · slot + 1) / (T + 1).
        Source: Gu et al. 2025, Table 4.
        """
        slot = need(self.data, "slot_received", "SlotReceived").values
        if paper_compatible:
            slot = metrics.paper_slot(slot, self.data["tokens"].values)
        return float(metrics.sink_rate(slot[..., None], epsilon)[0])

    def hidden_norm_ratio(self) -> xr.DataArray:
        """‖h_0‖ / mean over t ≠ 0 of ‖h_t‖ per depth, averaged over samples (Gu et al. 2025, section 3)."""
        return rates.hidden_norm_ratio(self.data)

    def value_norm_ratio(self) -> xr.DataArray:
        """‖v_0‖ / mean over t ≠ 0 of ‖v_t‖ per layer, taken per sample and head and then averaged.

        Source: Gu et al. 2025, section 3.
        """
        return rates.value_norm_ratio(self.data)

    def sinks(self, epsilon: float = EPSILON, by: By = "position") -> Tokens:
        """The tokens that are sinks by the rule of `sinks.rule`, as `Tokens`.

        They are read in the decoder if the model has one, else in its first stack with tokens. by="position": positions
        within documents, from means over samples, valid for any text; by="row": the tokens of each row. Raises
        `InputError` if attention received was not measured from position 0 on, and `NothingChosenError` if there is no
        sink.
        """
        tokens = received_by_tokens(self.data)
        return Measured(epsilon, by).of(tokens, Evidence(rows_of_samples(self.data, tokens)))

    def definitions(self, epsilon: float = 0.3) -> pd.DataFrame:
        """Every published definition of a sink, compared: one row per definition.

        Columns: definition, source, rule, sinks (tokens per sample that it calls one), position_0 (percent of samples
        in which position 0 is one), elsewhere and elsewhere_share (the most frequent other position), agreement
        (Jaccard index with the first definition over samples and positions), note (what was not observed, or in how
        many samples NaN or infinite activations leave the answer open). An open answer is not a "no": shares and
        agreement skip it, `sinks` skips the sample; NaN if all are open. In causal stacks only positions that more than
        half of the queries see are compared.
        """
        return definitions.definition_table(self.data, epsilon)

    def agreement(self, epsilon: float = 0.3) -> pd.DataFrame:
        """Jaccard index of every pair of definitions over (sample, position); 1 where both find nothing.

        NaN if both answer at no common place.
        """
        return definitions.agreement(self.data, epsilon)

    def sink_tokens(self, epsilon: float = 0.3, *, least: float = 0.0) -> pd.DataFrame:
        """One row per token that is a sink somewhere: text, id, how often, in how many heads, where.

        `least`: percentage of (layer, head) pairs that must exceed epsilon. Texts need `measure(..., tokenizer=...)`.
        Source: Sun et al. 2024; Yu et al. 2024.
        """
        return tokens.sink_tokens(self.data, epsilon, least)

    def token_kinds(self, epsilon: float = 0.3) -> pd.DataFrame:
        """One row per kind of token (each special token, punctuation, words): what such a token receives."""
        return tokens.token_kinds(self.data, epsilon)

    def first_tokens(self, epsilon: float = 0.3) -> pd.DataFrame:
        """One row per sample: its first token, in what percentage of heads it is a sink, its norm ratio (Gu et al.
        2025).

        `becomes_sink` is False where the percentage is at most half the median over samples, and NA where it is not
        known. Weakest first.
        """
        return tokens.first_tokens(self.data, epsilon)

    def patches(self, *, cutoff: float | None = None, times: float = 3.0) -> pd.DataFrame:
        """CLS, registers, artefact patches and other patches of a vision model: number, norm, attention.

        A patch is an artefact above `cutoff`, or above `times` the image's median patch norm where there is none.
        Source: Darcet et al. 2023.
        """
        return tokens.patches(self.data, cutoff, times)

    def heads(self, epsilon: float = 0.3, position: int = 0) -> pd.DataFrame:
        """One row per head: its sink at a position, the mechanism, and what the head writes; means over samples.

        The columns are the entries of `HEAD_METRICS` that were observed: attention received and its threshold, norms
        and angles of keys and values, entropy, what the head writes, and its kind (no-op, broadcast, active). Entries
        observed only at another position (`SinkUpdate`, `SpikeDimensions`, `KeyVectors` take positions) are left out.
        Raises `InputError` for a position that was not measured.
        """
        return heads.head_table(self.data, heads.head_values(self.data, epsilon, position))

    def depths(self) -> pd.DataFrame:
        """One row per depth of the residual stream: norm ratio, largest entry, outliers, matrix entropy, spread."""
        return depths.depth_table(self.data)

    def massive_activations(self, magnitude: float = 100.0, ratio: float = 1000.0) -> pd.DataFrame:
        """One row per massive entry (position, dimension) of the residual stream: onset, decay, peak, value.

        Both criteria of Sun et al. 2024: |a| > magnitude and at least ratio × the median of its depth. The observer
        keeps all above 1000 medians, up to one a token (`MassiveActivations`): `complete` is False if in some row every
        kept entry is massive, so that entries may be missing and `samples` too low.
        """
        return depths.massive_activations(self.data, magnitude, ratio)

    def sweep(self, epsilons: Sequence[float] = EPSILONS, *, denominator: str = VISIBLE) -> xr.DataArray:
        """Sink rate in percent over epsilon and text length, as in Gu et al. 2025, Fig. 3.

        `denominator`: as `sink_rate`.
        """
        return rates.sweep(self.data, epsilons, denominator)

    def super_experts(self) -> pd.DataFrame:
        """Experts of a mixture-of-experts model whose outputs are extreme (`metrics.super_experts`)."""
        return depths.super_experts(self.data)

    def summary(self, epsilon: float = EPSILON) -> Summary:
        """What `sinkscope measure` prints, in at most thirty lines: the answer, layers as bands, the strongest heads.

        Its fields are the values, `str` the lines.
        """
        return summary(self.data, epsilon)

    def table(self, epsilon: float = 0.3) -> pd.DataFrame:
        """One row per layer: sink rate at position 0 with its interval, strongest position, norm ratios, mass on slots.

        The strongest position of a causal layer is one that more than half of the queries see.
        """
        return tables.layer_table(self.data, epsilon)

    def tables(self, epsilon: float = 0.3) -> dict[str, pd.DataFrame]:
        """Every table for which the measurement has the data, by name: `table`, `definitions`, `heads` …"""
        return tables.every_table(self, epsilon)

    def write_tables(self, folder: str | Path, epsilon: float = 0.3, *, form: str = "csv") -> list[Path]:
        """Write every table of `tables` into a folder, as "csv" or "parquet" (extra `data`), and return their paths.

        Raises `InputError` for another form, without a Parquet writer, and if nothing can be written.
        """
        return tables.write_tables(self.tables(epsilon), Path(folder), form)

    def __add__(self, other: Measurement) -> Measurement:
        """The samples of both, as if measured in one go. Raises `InputError` for another model or other observers."""
        if not isinstance(other, Measurement):
            return NotImplemented
        return Measurement(joining.joined(self.data, other.data))

    def features(self, k: int = 8, *, per_token: bool = False) -> xr.Dataset:
        """The k keys of each head that generated queries give most: `attention` α, the `key`s' positions, `value_norm`.

        (sample, layer, head, strongest), after the last generated token; `per_token`: after each of them, with an axis
        `position`. Observe `StrongestKeys` around `generate()`. Raises `InputError` without it, and for a larger k.
        """
        return features.features(self.data, k, per_token=per_token)

    def by_token(self, layer: int | None = None) -> pd.DataFrame:
        """One row per token: sample, position, token_id, text, α of each head ("alpha LAYER.HEAD"), norms of its
        states.

        For an encoder-decoder, these are the decoder's. `layer`: one layer alone, with the norms of its queries,
        keys and values. Texts need `tokenizer=` in `measure`. Raises `InputError` for a layer that was not measured,
        and without attention received.
        """
        return token_table.token_table(self.data, layer)

    def plot(
        self,
        kind: str | float = "sink",
        epsilon: float = 0.3,
        *,
        position: int | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> go.Figure:
        """A figure of what was measured.

        Args:
            kind: "sink", the sink rate per position and attention received per layer and head; "positions" and "heads",
                one of the two; "hidden", norms of the residual stream over depth; "depths", the same at every position;
                "values", norms of values per layer; "map", one head's map on the first sample (observer
                `AttentionMaps`).
            epsilon: The share of attention above which a token is a sink.
            position: For heads, hidden and values; None is the first.
            layer, head: Which map, for "map" only; of an encoder-decoder, a layer of the decoder.

        Raises `InputError` for an unknown kind, a position that was not measured, and a kind that was not observed.
        """
        from sinkscope.measurement.figures import plot  # Plotly takes longer to load than all the rest

        if not isinstance(kind, str):  # m.plot(0.2), as it was called when epsilon came first
            epsilon, kind = kind, "sink"
        if kind == "map":
            from sinkscope.measurement.map_figure import head_map

            if layer is None or head is None:
                raise InputError("plot 'map' shows one head: give layer= and head=")
            return head_map(self.data, layer, head)
        if layer is not None or head is not None:
            raise InputError(f"layer= and head= go with plot 'map', not with '{kind}'")
        return plot(self.data, epsilon, kind, position)

    def report(self, path: str | Path, epsilon: float = 0.3, *, title: str | None = None) -> Path:
        """`sinkscope.write_report(measurement, path)` under its name of before, for one release."""
        warnings.warn("m.report(path) is sinkscope.write_report(m, path) now", DeprecationWarning, stacklevel=2)
        written: Path = imported("sinkscope.report.writing:write_report")(self, path, epsilon=epsilon, title=title)
        return written

    def to_dataframe(self) -> pd.DataFrame:
        """All values in long form: variable, sample, layer, head, position, depth, value; without NaN."""
        return tables.long_table(self.data)

    def to_json(self, epsilon: float = 0.3) -> dict[str, Any]:
        """The summary that `sinkscope measure --json` prints, as JSON-able data; missing numbers are None.

        If layers have slots (learned sinks, key biases), `slot` holds what these receive: `SlotMass`. `answer` is
        `summary`: sentences, rates with their intervals, bands of layers, kinds of heads, the strongest, slots.
        """
        return {**tables.summary(self, epsilon), "answer": self.summary(epsilon).to_json()}

    def save(self, path: str | Path) -> None:
        """Write one netCDF file, whole or not at all."""
        write_netcdf(self.data, path)

    @classmethod
    def load(cls, path: str | Path) -> Measurement:
        """Read a file that `save` wrote; in older files `record["denominator"]` is "paper".

        Raises `InputError` for a file that is missing, damaged or something else.
        """
        try:
            data = read_netcdf(path)
            record = record_of(data) | {"denominator": denominator_of(data)}
            data = data.assign_attrs(record=json.dumps(record))
        except FileNotFoundError as error:
            raise InputError(f"no measurement at {path}") from error
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise InputError(f"{path} is not a measurement, or is damaged") from error
        return cls(data)

    def _repr_html_(self) -> str:
        return tables.html(self.data)
