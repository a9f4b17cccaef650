"""Queries, keys and values of families with their own attention code, matched to the maps that they return.

The tensors that entered a module's products make a call only if the softmax of its scores is the returned map. The
scale must be one that the module names, and only the module's position bias (ALiBi) may be added to scores; any other
case is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.hooks import Computed, Layer, own_attention
from sinkscope.measurement.calls.call import AttentionCall, rounding
from sinkscope.measurement.calls.chunks import chunks
from sinkscope.measurement.calls.masks import DenseMask

FACTORS = ("softmax_scale", "inv_norm_factor", "scaling", "scale", "attention_scale")  # names of factors on q·k
DIVISORS = ("scale_attn", "norm_factor")  # of them
BIASES = ("alibi", "position_bias")  # names of added arguments: (batch · heads | heads, 1, key), or per query as well
FLOOR = 1e-5  # of the tolerance, of a weight and relative to Σ_k w_k |v_k|


class Unclear(Exception):
    """Why the returned map cannot be recomputed from the products."""


@dataclass(frozen=True, eq=False)
class _Scoring:
    """How a module computes scores from products: scale · q·k + bias."""

    scaling: float
    bias: Float[Tensor, "_ heads _ key"] | None


class OwnCalls:
    """The products of modules with their own attention in one pass, until the pass returns its maps."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = own_attention(model)
        self._computed: dict[Layer, tuple[nn.Module, Computed | str]] = {}
        self._masks: list[Bool[Tensor, "batch _ query key"]] = []

    def begin(self) -> None:
        """Forget the last pass."""
        self._computed.clear()
        self._masks.clear()

    def take(self, module: nn.Module, computed: Computed | str) -> None:
        """Keep one use of a module; layers share their mask."""
        layer = self._modules[module]
        if layer in self._computed:
            computed = "it is used several times in a pass"
        elif isinstance(computed, Computed):
            computed = replace(computed, visible=self._shared(computed.visible))
        self._computed[layer] = module, computed

    def call(self, returned: AttentionCall) -> AttentionCall | str:
        """The call of a returned map with queries, keys and values; or the reason why there is none."""
        module, computed = self._computed.pop(returned.layer, (None, "its queries, keys and values are made elsewhere"))
        if module is None or isinstance(computed, str):
            return str(computed)
        try:
            return _verified(returned, _with_vectors(returned, module, computed), computed)
        except Unclear as unclear:
            return str(unclear)

    def _shared(self, visible: Bool[Tensor, "batch _ query key"]) -> Bool[Tensor, "batch _ query key"]:
        for known in self._masks:
            if known.shape == visible.shape and torch.equal(known, visible):
                return known
        self._masks.append(visible)
        return visible


def _with_vectors(returned: AttentionCall, module: nn.Module, computed: Computed) -> AttentionCall:
    assert returned.collected is not None
    batch, heads, queries, keys = returned.collected.shape
    if computed.query.shape[:3] != (batch, heads, queries) or computed.key.shape[2] != keys:
        raise Unclear("its products are not of the tokens of its map")
    query = computed.query.detach()
    scoring = _scoring(module, computed, returned.real)
    scaling, module_scaling = scoring.scaling, getattr(module, "scaling", None)
    if scaling == 1.0 and isinstance(
        module_scaling, float
    ):  # the queries were scaled before; undo it, so that the scale counts once
        query, scaling = query / module_scaling, module_scaling
    return replace(
        returned,
        query=query,
        key=computed.key.detach(),
        value=computed.value.detach(),
        mask=DenseMask(computed.visible.expand(batch, -1, -1, -1)),
        scaling=scaling,
        bias=None if scoring.bias is None else scoring.bias.expand(-1, -1, queries, -1),
        output=computed.output.detach(),
        collected=None,
    )


def _scoring(module: nn.Module, computed: Computed, real: Bool[Tensor, "batch query"] | None) -> _Scoring:
    """The scale and bias that turn products into scores, found on some rows.

    Raises `Unclear` if no scale that the module names does.
    """
    rows = list(computed.rows)
    query, key = computed.query[:, :, rows].float(), computed.key.float()
    group = query.shape[1] // key.shape[1]
    products = query @ key.repeat_interleave(group, 1).mT
    scores, seen = computed.scores.float(), computed.visible[:, :, rows].expand(computed.scores.shape)
    if real is not None:
        seen = seen & real[:, None, rows, None]
    largest = scores.where(seen, 0.0).abs().amax()
    lengths = query.norm(dim=-1).amax() * key.norm(dim=-1).amax()
    # The host's rounding grows with the scores; fp32 rounding of q·k grows with ‖q‖‖k‖, also where the terms cancel.
    host = rounding(computed.scores, computed.query)
    for scaling in _scales(module, query.shape[-1]):
        tolerance = FLOOR + host * (2 + 4 * largest) + 8 * torch.finfo(torch.float32).eps * lengths * abs(scaling)
        rest = (scores - scaling * products).where(seen, 0.0)
        if bool((rest.abs() <= tolerance).all()):
            return _Scoring(scaling, None)
        for bias in _biases(computed, key.shape[2], scaling):
            bias_rows = bias if bias.shape[2] == 1 else bias[:, :, rows]
            if bool(((rest - bias_rows).where(seen, 0.0).abs() <= tolerance).all()):
                return _Scoring(scaling, bias)
    raise Unclear(
        "its scores are not a scale it names times q·k, and what is added is not the position bias it is given "
        f"(looked for {', '.join((*FACTORS, *DIVISORS, *BIASES))})"
    )


def _scales(module: nn.Module, width: int) -> Iterator[float]:
    """Factors on q·k that a module names, 1/√width and 1; each once."""
    factors = [getattr(module, name, None) for name in FACTORS]
    divisors = [getattr(module, name, None) for name in DIVISORS]
    scales = [float(factor) for factor in factors if isinstance(factor, float | int)]
    scales += [1 / float(divisor) for divisor in divisors if isinstance(divisor, float | int) and divisor]
    yield from dict.fromkeys((*scales, width**-0.5, 1.0))


def _biases(computed: Computed, keys: int, scaling: float) -> Iterator[Float[Tensor, "_ heads _ key"]]:
    """The module's position bias in the forms in which it may be added: as is, scaled, or scaled twice over.

    The last is Falcon's, whose mask contains the bias as well.
    """
    batch, heads, queries = computed.query.shape[:3]
    for name in BIASES:
        argument = computed.arguments.get(name)
        if argument is None or argument.ndim < 3 or argument.shape[-1] < keys or argument.shape[-2] not in (1, queries):
            continue
        if argument.shape[:-2].numel() in (heads, batch * heads):
            bias = argument.detach().float().reshape(-1, heads, *argument.shape[-2:])[..., -keys:]
            yield from (factor * bias for factor in (1.0, scaling, 2 * scaling))


def _verified(returned: AttentionCall, call: AttentionCall, computed: Computed) -> AttentionCall:
    """`call`, if the softmax of its scores is the returned map and its output the weighted sum of its values.

    Raises `Unclear`. Rows of padding, and what is not finite, are left out.
    """
    assert returned.collected is not None
    assert call.output is not None
    host, returned_in = rounding(computed.scores, computed.query), torch.finfo(computed.output.dtype).eps
    value = call.value.float().repeat_interleave(call.heads // call.value.shape[1], 1)
    largest = computed.scores.float().abs().where(computed.visible[:, :, list(computed.rows)], 0.0).amax()
    lengths = call.wide_query.norm(dim=-1).amax() * call.wide_key.norm(dim=-1).amax()
    # An error e of a score is a relative error e of its weight, and up to e again through the row's log-sum-exp.
    exponent = host * (2 + 2 * largest) + 8 * torch.finfo(torch.float32).eps * lengths * abs(call.scaling)
    allowed = 2 * exponent + 2 * returned_in
    for chunk in chunks(call):
        theirs = returned.collected[chunk.samples, :, chunk.rows, chunk.columns]
        wrong = (chunk.weights - theirs).abs() > FLOOR + allowed * (chunk.weights + theirs)
        if bool((wrong & torch.isfinite(theirs)).any()):
            raise Unclear("the softmax of its scores is not the map that the model returned")
        values = value[chunk.samples][:, :, chunk.columns]
        output = call.output[chunk.samples, :, chunk.rows].float()
        bound = FLOOR + 2 * allowed * (theirs @ values.abs()) + returned_in
        off = (theirs @ values - output).abs() > bound
        counted = torch.isfinite(output)
        if call.real is not None:
            counted = counted & call.real[chunk.samples, None, chunk.rows, None]
        if bool((off & counted).any()):
            raise Unclear("the output of its heads is not the sum of its values under the map that it returned")
    return call
