"""Slots that are one and the same function, and slots that are none at all.

A query's slot has a logit  scaling · q·k* + b  and a value v*. With k* = 0, b = 0 and v* = 0 it is the 1 in the
denominator of softmax-off-by-one, a sink logit of 0, and a further key and value of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import attend
from sinkscope.model import LabForCausalLM
from sinkscope.statistics.claims import CaseValue, EachAbove
from sinkscope_replication.theory.check import EXACT, ROUNDING, STORED, check
from sinkscope_replication.theory.subjects import (
    Build,
    blocks,
    caught,
    fill_slots,
    gap,
    lab,
    look,
    ordinary,
    row_of_weights,
)

Attention = dict[str, Any] | str

TOKENS = 24
CLOSED = -1e9
OFF_BY_ONE = "softmax_off_by_one"
ZEROED: tuple[Attention, ...] = ("sink_logit", "k_bias", "k_bias_shared", "kv_bias", "kv_bias_shared")


def twin(model: LabForCausalLM, attention: Attention, build: Build = lab) -> LabForCausalLM:
    """A model with another operation and the same weights everywhere else."""
    other = build(attention=attention)
    shared = {name: weight for name, weight in model.state_dict().items() if ".operation." not in name}
    missing, unexpected = other.load_state_dict(shared, strict=False)
    assert not unexpected
    assert all(".operation." in name for name in missing)
    return other


def zero_slots_agree(build: Build = lab) -> Iterator[CaseValue]:
    """max |logits − logits of off-by-one| with all that a slot learns at zero."""
    usual = build(attention=OFF_BY_ONE)
    for attention in ZEROED:
        other = fill_slots(twin(usual, attention, build), 0.0)
        yield CaseValue(str(attention), gap(logits(other), logits(usual)))


def zero_key_agrees(build: Build = lab) -> Iterator[CaseValue]:
    """max |output of off-by-one − softmax over a key and a value of zeros and the tokens|, in each layer."""
    model = build(attention=OFF_BY_ONE)
    for layer in range(len(blocks(model))):
        call = caught(model, ordinary(TOKENS), layer)
        key, value = (nn.functional.pad(tensor, (0, 0, 1, 0))[None] for tensor in (call.key, call.value))
        allowed = torch.ones(TOKENS, TOKENS + 1, dtype=torch.bool).tril(1)
        output = attend(call.query[None], key, value, "softmax", mask=allowed).output[0]
        yield CaseValue(f"layer {layer}", gap(output, call.output))


def closed_slot_is_softmax(build: Build = lab) -> Iterator[CaseValue]:
    """max |logits with a sink logit of −10⁹ − logits of softmax|."""
    usual = build(attention="softmax")
    other = fill_slots(twin(usual, "sink_logit", build), CLOSED)
    yield CaseValue("sink_logit", gap(logits(other), logits(usual)))


def open_slots_differ(build: Build = lab) -> Iterator[CaseValue]:
    """max |logits with a slot as drawn − logits of softmax|."""
    usual = build(attention="softmax")
    for attention in (*ZEROED, OFF_BY_ONE):
        yield CaseValue(str(attention), gap(logits(twin(usual, attention, build)), logits(usual)))


def value_bias_spares_weights(build: Build = lab) -> Iterator[CaseValue]:
    """max |first layer's weights with a value bias − without|."""
    usual = build(attention="softmax")
    other = twin(usual, "v_bias", build)
    first, second = (look(model, ordinary(TOKENS)).weights[0] for model in (usual, other))
    yield CaseValue("layer 0", gap(first, second))


def value_bias_moves_outputs(build: Build = lab) -> Iterator[CaseValue]:
    """max |output of each layer's operation with a value bias − (output without + v*)|, on the same inputs."""
    model = build(attention="v_bias")
    for layer in range(len(blocks(model))):
        call, operation = caught(model, ordinary(TOKENS), layer), blocks(model)[layer].self_attn.operation
        inputs = (call.query[None], call.key[None], call.value[None])
        bias = next(operation.output_modules.parameters()).detach()
        plain = attend(*inputs, "softmax").output[0]
        yield CaseValue(f"layer {layer}", gap(call.output, plain + bias[:, None]))


def key_slot_scores() -> Iterator[CaseValue]:
    """max |weight on a slot − e^{q·k* / √d} / (e^{q·k* / √d} + Σ e^{q·k / √d})|, k* of the group of each head."""
    for attention in ("k_bias", "k_bias_shared", "kv_bias", "kv_bias_shared", "k_bias_fixed_v"):
        model = lab(attention=attention)
        call, operation = caught(model, ordinary(TOKENS)), blocks(model)[0].self_attn.operation
        with torch.no_grad():
            attended = operation(call.query[None], call.key[None], call.value[None], path="reference")
        learned = next(operation.slot_modules.parameters()).detach()
        assert attended.slot_weights is not None
        yield CaseValue(attention, gap(attended.slot_weights[0, :, :, 0], _slot_share(call.query, call.key, learned)))


def _slot_share(query: Tensor, key: Tensor, learned: Tensor) -> Tensor:
    """Head by head and query by query: heads 0 … g − 1 belong to the first key head, and so on."""
    heads, tokens, width = query.shape
    group, share = heads // len(key), torch.zeros(heads, tokens, dtype=torch.float64)
    for head in range(heads):
        slot_key = learned[head // group % len(learned)]
        for t in range(tokens):
            scores = key[head // group, : t + 1] @ query[head, t] / width**0.5
            slot = slot_key @ query[head, t] / width**0.5
            share[head, t] = 1 / (1 + torch.exp(scores - slot).sum())
    return share


def fixed_value_has_norm(build: Build = lab) -> Iterator[CaseValue]:
    """| ‖v*‖ − m |, v* read off what a slot adds to an output per weight on it."""
    for direction in ("first", "uniform"):
        for norm in (1.0, 5.0, 20.0):
            model = build(attention={"name": "k_bias_fixed_v", "direction": direction, "norm": norm})
            yield CaseValue(f"{direction}, m = {norm:g}", float(slot_value(model).norm(dim=-1).sub(norm).abs().max()))


def fixed_value_of_zero(build: Build = lab) -> Iterator[CaseValue]:
    """max |logits with v* = 0 · v' − logits of a key bias of the same k*|."""
    usual = build(attention="k_bias")
    for direction in ("first", "uniform"):
        other = twin(usual, {"name": "k_bias_fixed_v", "direction": direction, "norm": 0.0}, build)
        other.load_state_dict(usual.state_dict())
        yield CaseValue(direction, gap(logits(other), logits(usual)))


def low_rank_is_padded(build: Build = lab) -> Iterator[CaseValue]:
    """max |logits with d_a channels of k* − logits of a key bias whose other channels are zero|; d_a = d_h: all."""
    for rank in (1, 3, 8):
        low = build(attention={"name": "k_bias_lowrank", "d_a": rank})
        full = fill_slots(twin(low, "k_bias", build), 0.0)
        with torch.no_grad():
            for one, other in zip(blocks(low), blocks(full), strict=True):
                short, long = (next(layer.self_attn.operation.slot_modules.parameters()) for layer in (one, other))
                long[:, :rank] = short
        yield CaseValue(f"d_a = {rank}", gap(logits(low), logits(full)))


def off_by_one_golden() -> Iterator[CaseValue]:
    """max |weights − reference|."""
    golden = {(0.0, 0.0, 0.0): (0.25, 0.25, 0.25), (2.0, 1.0, -1.0): (0.643914, 0.236883, 0.032059)}
    for scores, values in golden.items():
        expected = torch.tensor(values, dtype=torch.float64)
        yield CaseValue(str(scores), gap(row_of_weights(OFF_BY_ONE, scores), expected))


def logits(model: LabForCausalLM) -> Tensor:
    """The model's logits on ordinary tokens."""
    return look(model, ordinary(TOKENS)).logits


def slot_value(model: LabForCausalLM) -> Tensor:
    """v* of the first layer's only slot, a row per head: the output over values of zero, per weight on the slot."""
    call = caught(model, ordinary(TOKENS))
    operation = blocks(model)[0].self_attn.operation
    with torch.no_grad():
        inputs = (call.query[None], call.key[None], torch.zeros_like(call.value)[None])
        attended = operation(*inputs, path="reference")
    assert attended.slot_weights is not None
    return (attended.output / attended.slot_weights)[0, :, -1]


CHECKS = (
    check(
        "slots of zeros are one",
        "k* = 0, v* = 0, b = 0: key bias, key-value bias (own or shared) and sink logit are softmax-off-by-one",
        "Gu et al. 2025, section 7; Miller 2023",
        ROUNDING,
        zero_slots_agree,
    ),
    check(
        "a zero sink",
        "softmax-off-by-one is softmax over one more key and value of zeros, seen by all",
        "Miller 2023; Xiao et al. 2024",
        ROUNDING,
        zero_key_agrees,
    ),
    check(
        "off-by-one in numbers",
        "scores 0, 0, 0: .25 each; 2, 1, −1: .643914, .236883, .032059",
        "Miller 2023; computed independently",
        STORED,
        off_by_one_golden,
    ),
    check(
        "a closed slot",
        "with b = −10⁹ a sink logit is softmax",
        "Gu et al. 2025, Table 4",
        ROUNDING,
        closed_slot_is_softmax,
    ),
    check(
        "an open slot",
        "a slot whose parameters are drawn at random changes the logits",
        "control",
        EachAbove(1e-3),
        open_slots_differ,
    ),
    check(
        "a value bias",
        "a value bias leaves the weights of its layer untouched, bit for bit",
        "Gu et al. 2025, section 7",
        EXACT,
        value_bias_spares_weights,
    ),
    check(
        "what a value bias adds",
        "the output of each layer's attention with a value bias is that without it, plus v* of its head",
        "Gu et al. 2025, section 7",
        ROUNDING,
        value_bias_moves_outputs,
    ),
    check(
        "scores of learned keys",
        "a learned key of a group of heads has the score q·k* / √d with each of them, and its weight follows",
        "Gu et al. 2025, Table 4",
        ROUNDING,
        key_slot_scores,
    ),
    check(
        "fixed values",
        "‖m v'‖ = ‖m v''‖ = m, m = 1, 5, 20",
        "Gu et al. 2025, Table 5",
        ROUNDING,
        fixed_value_has_norm,
    ),
    check(
        "fixed values of norm zero",
        "a fixed value of norm m = 0 is the key bias",
        "Gu et al. 2025, Table 5",
        ROUNDING,
        fixed_value_of_zero,
    ),
    check(
        "low-dimensional keys",
        "a key bias that learns d_a channels is one whose others are zero; d_a = d_h is the key bias",
        "Gu et al. 2025, Table 13",
        ROUNDING,
        low_rank_is_padded,
    ),
)
