"""What a sink writes into every other token: the split of the attention output (Sun et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import HeadNormModule
from sinkscope.attention.scores import aggregated
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, Piece, divide, in_every
from sinkscope.measurement.observers.outputs import share
from sinkscope.measurement.observers.rows import sorted_positions


@in_every
@dataclass(frozen=True)
class SinkUpdate(Observer):
    """o_t = c_t + rest_t with c_t = Σ_{i ∈ C} A_ti v_i, C the real tokens at `positions`. Per (sample, layer, head):

    `sink_output_norm`: mean over real queries of ‖c_t‖₂; `rest_output_norm`: of ‖rest_t‖₂, the rest being everything
    else in the attention function's output: other tokens, slots, value biases. `sink_output_constancy`: ‖mean_t c_t‖² /
    mean_t ‖c_t‖²; 1 where C adds the same to every token, an implicit bias.

    A are the weights that the layer used, never renormalized. Output gates, and the norm after a difference of maps,
    act on c_t if they belong to the operation, but not if the model applies them after its attention function. Cost:
    O(T) per head given the log-sum-exp of a softmax; other operations compute their weights again, O(T²). Source: Sun
    et al. 2024, eq. 2.
    """

    positions: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", sorted_positions(self.positions))

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.output is None:
            return
        columns, present = call.locate(self.positions)
        index = columns[:, None, :, None].expand(-1, call.value.shape[1], -1, call.value.shape[-1])
        # `columns` of absent tokens are clamped to some other token, whose value must not count.
        values = call.value.gather(2, index).float() * present[:, None, :, None]
        values = values.repeat_interleave(call.group, 1)
        for samples, rows, weights in _weights(call, columns):
            # Token by token, the memory order of layer outputs; the other order takes twice the time.
            sink = _leaving(call, _added_up(weights, values[samples]), samples, rows).transpose(1, 2)
            rest = call.output[samples, :, rows].transpose(1, 2).float() - sink
            if call.real is not None:
                ignored = ~call.real[samples, rows, None, None]
                sink, rest = sink.masked_fill(ignored, 0.0), rest.masked_fill(ignored, 0.0)
            lengths = sink.norm(dim=-1)
            yield Piece("sink_norm", lengths.sum(1), None, samples)
            yield Piece("sink_energy", lengths.square().sum(1), None, samples)
            yield Piece("sink_total", sink.sum(1), None, samples)
            yield Piece("rest_norm", rest.norm(dim=-1).sum(1), None, samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        sums, count = layer.sums, layer.query_count[:, None]
        if "sink_norm" not in sums:
            return {}
        mean = sums["sink_total"].square().sum(-1) / count
        return {
            "sink_output_norm": Array(divide(sums["sink_norm"], count), None),
            "rest_output_norm": Array(divide(sums["rest_norm"], count), None),
            "sink_output_constancy": Array(share(mean, sums["sink_energy"]), None),
        }


def _weights(call: AttentionCall, columns: Tensor) -> Iterator[tuple[slice, slice, Float[Tensor, "batch heads q n"]]]:
    """Weights of all queries on a few columns (batch, n)."""
    if call.is_softmax:
        for samples, rows in call.parts(columns.shape[1]):
            yield samples, rows, call.weights(samples, rows, columns[samples])
        return
    for rows in call.row_parts():
        weights = call.operation_weights(rows)
        index = columns[:, None, None, :].expand(*weights.token.shape[:3], -1)
        yield slice(0, len(call.query)), rows, weights.token.gather(-1, index)


def _added_up(
    weights: Float[Tensor, "batch heads query n"], values: Float[Tensor, "batch heads n dim"]
) -> Float[Tensor, "batch heads query dim"]:
    """Σ_i A_ti v_i, laid out token by token; for a single token no matrix product is needed."""
    if values.shape[2] > 1:
        return weights @ values
    return (weights.transpose(1, 2) * values.transpose(1, 2)).transpose(1, 2)


def _leaving(
    call: AttentionCall, part: Float[Tensor, "batch heads query dim"], samples: slice, rows: slice
) -> Float[Tensor, "batch heads query dim"]:
    """What leaves the layer's operation for a part of the aggregated values: its output pieces are affine, or norms,
    which multiply a part by the scale of the whole."""
    operation, context = call.operation, call.context
    if operation is None or context is None:
        return part
    norms = any(isinstance(module, HeadNormModule) for module in operation.output_modules)
    # A norm scales a part by the length of the whole, so the whole goes through the same pieces.
    whole = _aggregated(call, samples, rows) if norms or operation.difference is not None else None
    if operation.difference is not None and whole is not None:
        part, whole = part * operation.difference.scale(whole), operation.difference(whole)
    hidden = None if context.hidden is None else context.hidden[samples, rows].to(part.dtype)
    own_values = call.value[samples, :, call.own_keys][:, :, rows].to(part.dtype)
    for module in operation.output_modules:
        if isinstance(module, HeadNormModule) and whole is not None:
            part = part * module.scale(whole)
        else:
            # With f(x) = A x + b, f(part) − f(0) = A part: the constant b belongs to the rest.
            nothing = torch.zeros_like(part)
            part = operation.leaving(part, hidden, own_values, (module,))
            part = part - operation.leaving(nothing, hidden, own_values, (module,))
        whole = None if whole is None else operation.leaving(whole, hidden, own_values, (module,))
    return part


def _aggregated(call: AttentionCall, samples: slice, rows: slice) -> Float[Tensor, "batch heads query dim"]:
    """Σ_j A_tj v_j over all tokens and slots."""
    weights, operation, context = call.operation_weights(rows), call.operation, call.context
    assert operation is not None
    assert context is not None
    return aggregated(
        weights.token[samples], weights.slot[samples], call.value[samples].float(), operation.slot_terms(context)
    )
