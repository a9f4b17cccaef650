"""Measurements made by hand: one that holds every variable, and a small dataset, each with a sink at position 0."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr

from sinkscope.measurement import Measurement

EVIL = "<script>document.title = 'owned'</script>"
PER_HEAD = ("sample", "layer", "head", "position")
SINK_HEAD = 1
SAMPLES, LAYERS, HEADS, POSITIONS = 6, 3, 2, 12  # of the small dataset


def measured(
    samples: int = 6, layers: int = 4, heads: int = 3, positions: int = 24, vocabulary: int = 12
) -> Measurement:
    """Layers from 2 on have a sink in head 1: it receives 0.6, its value is short, its key points elsewhere."""
    rng = np.random.default_rng(0)
    shape = (samples, layers, heads, positions)
    per_head = shape[:3]
    depths, kept, probes = layers + 1, min(samples, 4), [0, positions - 1]
    seen = np.arange(1, positions + 1)[::-1]
    received = rng.uniform(0.5, 1.5, shape) / positions
    received[:, 2:, SINK_HEAD, 0] = 0.6 + rng.uniform(-0.02, 0.02, received[:, 2:, SINK_HEAD, 0].shape)
    value = rng.uniform(0.9, 1.1, shape)
    value[:, 2:, SINK_HEAD, 0] = 0.1
    cosine = rng.normal(0, 0.1, shape)
    cosine[:, 2:, SINK_HEAD, 0] = 0.8
    cosine[..., -1] = np.nan
    hidden = rng.uniform(1.0, 2.0, (samples, depths, positions))
    hidden[:, 2:, 0] = 50.0
    keys = rng.normal(size=(kept, layers, heads, positions, 8))
    keys[:, 2:, SINK_HEAD, 0, 0] += 12
    states = rng.normal(size=(kept, depths, positions, 16))
    states[:, 2:, 0, 3] += 40
    bands = rng.dirichlet(np.ones(20), (samples, depths, len(probes)))
    top = np.sort(rng.uniform(1, 4, (samples, depths, 8)), -1)[..., ::-1].copy()
    top[:, 2:, 0] = 400.0
    per_depth = ("sample", "depth")
    tops = (*per_depth, "top")

    def noise(*size: int) -> np.ndarray:
        return rng.uniform(0.1, 0.9, size)

    variables = {
        "attention_received": (PER_HEAD, received),
        "most_attended": (PER_HEAD, noise(*shape)),
        "query_norm": (PER_HEAD, noise(*shape)),
        "key_norm": (PER_HEAD, noise(*shape)),
        "value_norm": (PER_HEAD, value),
        "output_norm": (PER_HEAD, noise(*shape)),
        "cos_query_key": (PER_HEAD, cosine),
        "uniform_received": (("sample", "layer", "position"), np.broadcast_to(1 / seen, (samples, layers, positions))),
        "visible_queries": (("sample", "layer", "position"), np.broadcast_to(seen, (samples, layers, positions))),
        "attention_received_by_length": (
            ("sample", "layer", "head", "length"),
            np.stack([received[..., 0] * scale for scale in (1.3, 1.0, 0.7)], -1),
        ),
        **{
            name: (("sample", "layer", "head"), noise(*per_head))
            for name in (
                "slot_received",
                "self_attention",
                "attention_entropy",
                "entropy_bound",
                "max_logit",
                "output_mean_share",
                "output_rank_one",
                "sink_output_norm",
                "rest_output_norm",
                "sink_output_constancy",
            )
        },
        "key_vectors": (("kept", "layer", "head", "kept_position", "key_dim"), keys),
        "hidden_vectors": (("kept", "depth", "kept_position", "width"), states),
        "hidden_norm": (("sample", "depth", "position"), hidden),
        "hidden_max": (("sample", "depth", "position"), hidden / 2),
        "cos_hidden_first": (("sample", "depth", "position"), noise(samples, depths, positions)),
        "hidden_top": (tops, top),
        "hidden_top_position": (tops, np.zeros_like(top)),
        "hidden_top_dimension": (tops, np.full_like(top, 3.0)),
        **{
            name: (per_depth, noise(samples, depths))
            for name in (
                "hidden_median",
                "kurtosis",
                "kurtosis_neurons",
                "matrix_entropy",
                "hidden_spread",
                "last_pair_distance",
            )
        },
        "band_energy": (("sample", "depth", "probe_position", "band"), bands),
        "band_energy_mean": (("sample", "depth", "band"), bands.mean(2)),
        "spike_share": (("sample", "depth", "probe_position", "spikes"), noise(samples, depths, len(probes), 4)),
        "spike_key_cosine": (
            ("sample", "layer", "head", "probe_position", "spikes"),
            noise(*per_head, len(probes), 4),
        ),
    }
    variables["hidden_median"] = (per_depth, np.full((samples, depths), 0.2))
    ids = rng.integers(2, vocabulary, (samples, positions))
    ids[:, 0] = 0
    data = xr.Dataset(
        {name: (dims, np.asarray(values, np.float32)) for name, (dims, values) in variables.items()},
        coords={
            "position": range(positions),
            "kept_position": range(positions),
            "probe_position": probes,
            "band": range(20),
            "length": [8, 16, 24],
            "depth": range(depths),
            "layer_index": ("layer", list(range(layers))),
            "layer_name": ("layer", [f"layers.{layer}" for layer in range(layers)]),
            "stack": ("layer", ["decoder"] * layers),
            "depth_index": ("depth", list(range(depths))),
            "depth_stack": ("depth", ["decoder"] * depths),
            "token_id": (("sample", "position"), ids),
        },
    )
    data["tokens"] = (("sample", "layer"), np.full((samples, layers), positions))
    record = {
        "model": f"planted {EVIL}",
        "samples": samples,
        "tokens": positions,
        "metric_weights": ["raw"],
        "input": {"description": f"{samples} windows", "first": "<s> (id 0)"},
        "versions": {"torch": "2.13.0"},
        "token_text": {
            str(token): ["<s>", "Ġthe", "Ċ", EVIL, "Ġwindow", ",", "Ġof", "ing", "Ġa", "Ġhouse", ".", "Ġsees"][
                token % 12
            ]
            for token in range(vocabulary)
        },
        "special_tokens": [0],
    }
    return Measurement(data.assign_attrs(record=json.dumps(record)))


def edited_record(measurement: Measurement, **changes: object) -> Measurement:
    """The same numbers with other facts in the record."""
    record = json.dumps(measurement.record | changes)
    return Measurement(measurement.data.assign_attrs(record=record))


def small_dataset() -> xr.Dataset:
    """Layer 2, head 1 looks at position 0; from depth 2 on position 0 is long; its value is short."""
    rng = np.random.default_rng(0)
    received = rng.uniform(0.05, 0.15, (SAMPLES, LAYERS, HEADS, POSITIONS))
    received[:, 2, 1, 0] = 0.75
    hidden = rng.uniform(1.0, 2.0, (SAMPLES, LAYERS + 1, POSITIONS))
    hidden[:, 2:, 0] = 50.0
    value = rng.uniform(0.9, 1.1, (SAMPLES, LAYERS, HEADS, POSITIONS))
    value[:, 2, :, 0] = 0.1
    return xr.Dataset(
        {
            "attention_received": (PER_HEAD, received.astype(np.float32)),
            "hidden_norm": (("sample", "depth", "position"), hidden.astype(np.float32)),
            "value_norm": (PER_HEAD, value.astype(np.float32)),
            "tokens": (("sample", "layer"), np.full((SAMPLES, LAYERS), POSITIONS)),
        },
        coords={
            "position": range(POSITIONS),
            "depth": range(LAYERS + 1),
            "layer_index": ("layer", list(range(LAYERS))),
            "stack": ("layer", ["decoder"] * LAYERS),
            "depth_index": ("depth", list(range(LAYERS + 1))),
            "depth_stack": ("depth", ["decoder"] * (LAYERS + 1)),
        },
    )
