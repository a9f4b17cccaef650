"""Models as transformers alone loads them: learned sinks as GraniteSWA's weights, heads taken out for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
)

from sinkscope.attention import CATALOG, AttentionSpec, LogitSlot, ZeroSlot, name_of
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import attention_layers, evaluating, family, head_count, output_projection, unwrapped
from sinkscope.model.attached.config import attachment_of
from sinkscope.model.config import LabConfig, unlike_llama
from sinkscope.model.lab import LabForCausalLM, LabPreTrainedModel

CLOSED = -1e4  # a sink logit without a sink: exp(−10⁴) is 0 in every precision
FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
OPERATION = ".self_attn.operation."
SCALES = {"embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0}
TOLERANCE = 1e-4  # of the logits' largest magnitude


def as_plain(model: nn.Module) -> PreTrainedModel:
    """The same model in classes of transformers alone, with equal logits (up to rounding); weights are copied.

    A model of transformers is returned as it is. A lab model with plain softmax becomes a `LlamaForCausalLM`. A
    Llama-shaped lab or attached model whose layers have a sink logit (b per head), off-by-one (b = 0) or plain softmax
    becomes a `GraniteSWAForCausalLM`: its `self_attn.sinks` are b, its attention_multiplier is head_dim^−0.5, its other
    multipliers are 1, and all layers see everything. transformers, vLLM and llama.cpp's converter read that class.

    Raises `UnsupportedModelError`, by name, for what it cannot say: other operations, hosts and blocks.
    """
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model: expected a model of transformers, got a {type(model).__name__}")
    if isinstance(model, LabForCausalLM):
        if all(spec == CATALOG["softmax"] for spec in model.config.specs):
            try:
                return model.to_llama()
            except InputError as error:
                raise UnsupportedModelError(str(error)) from error
        if why := _unlike_llama(model.config):
            raise UnsupportedModelError(f"this lab model is not Llama-shaped: {why}")
        rope, bias = model.config.rope.parameters, {}
    elif (attachment := attachment_of(model.config)) is not None:
        if family(model) != "llama" or not isinstance(model, LlamaForCausalLM):
            raise UnsupportedModelError(
                f"{attachment.name} on {type(model).__name__} cannot be written: GraniteSWA has a Llama's blocks, so "
                "LlamaForCausalLM is the one host"
            )
        if attachment.sink_tokens:
            raise UnsupportedModelError("learned sink tokens cannot be written: GraniteSWA has none")
        if model.config.hidden_act != "silu":
            raise UnsupportedModelError(f"hidden_act = {model.config.hidden_act!r}: GraniteSWA is written with silu")
        rope = dict(model.config.rope_parameters)
        bias = {"attention_bias": model.config.attention_bias, "mlp_bias": model.config.mlp_bias}
    elif isinstance(model, LabPreTrainedModel):
        raise UnsupportedModelError(f"{type(model).__name__} has no unembedding: give the LabForCausalLM around it")
    else:
        return model
    config = GraniteSWAConfig(
        **{name: getattr(model.config, name) for name in FIELDS},
        **bias,
        head_dim=model.config.head_dim,
        rope_parameters=rope,
        **SCALES,
        layer_types=["full_attention"] * model.config.num_hidden_layers,
        attention_multiplier=model.config.head_dim**-0.5,
    )
    # Not from state_dict(), where an attached model's weights are marked so that its host cannot load them.
    weights = {name: value.detach() for name, value in model.named_parameters() if OPERATION not in name}
    for number, module in enumerate(attention_layers(model)):
        weights[_sink(number)] = _sinks(module, head_count(model, module))
    return _filled(GraniteSWAForCausalLM(config), weights, model)


def _sink(layer: int) -> str:
    """The name of a layer's sink logits in GraniteSWA."""
    return f"model.layers.{layer}.self_attn.sinks"


def _filled(
    plain: GraniteSWAForCausalLM, weights: Mapping[str, Tensor], model: PreTrainedModel
) -> GraniteSWAForCausalLM:
    """`plain` with these weights, which must make it equal to `model`."""
    # named_parameters lists a tied weight once, under the embedding's name, so lm_head.weight is missing then.
    missing, unexpected = plain.load_state_dict(weights, strict=False)
    if model.config.tie_word_embeddings:
        missing = [name for name in missing if name != "lm_head.weight"]
    if missing or unexpected:
        raise UnsupportedModelError(f"weights without a place in GraniteSWA: {', '.join([*missing, *unexpected])}")
    plain = plain.to(device=model.device, dtype=model.dtype).train(model.training)
    _check_equal(model, plain)
    return plain


def with_window_sinks(model: nn.Module, sinks: Sequence[Float[Tensor, " heads"]]) -> GraniteSWAForCausalLM:
    """A model whose layers are all windows, as `GraniteSWAForCausalLM` with a learned sink b per layer and head.

    Each row becomes softmax([q·k over the window, b_h]); weights are copied. For queries that have left token 0 behind,
    b stands for it; a query that still sees token 0 sees both.

    Raises `UnsupportedModelError`, by name, for a model that is not Llama-shaped, and for one with a layer that sees
    every token: there token 0 stays visible, and would count twice, as itself and as b.
    """
    model = unwrapped(model)
    config: Any = getattr(model, "config", None)
    # Read off a cache: there transformers has applied each family's rule of which layers have a window.
    windows = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=config).layers]
    if None in windows:
        raise UnsupportedModelError(
            f"family '{family(model)}': {windows.count(None)} of {len(windows)} layers see every token, so a sink "
            "logit would count the sink twice, as the token and as the logit; it can be written where all "
            "layers are windows that leave token 0 behind, and is a FoldSink everywhere"
        )
    if not isinstance(model, MistralForCausalLM) or config.hidden_act != "silu":
        raise UnsupportedModelError(
            f"family '{family(model)}': GraniteSWA has a Llama's blocks with silu, so a windowed MistralForCausalLM is "
            "the one host"
        )
    plain = GraniteSWAForCausalLM(
        GraniteSWAConfig(
            **{name: getattr(config, name) for name in FIELDS},
            **SCALES,
            rope_parameters=dict(config.rope_parameters),
            head_dim=config.head_dim,
            layer_types=["sliding_attention"] * len(windows),
            sliding_window=config.sliding_window,
            attention_multiplier=config.head_dim**-0.5,
        )
    )
    weights = {name: value.detach() for name, value in model.named_parameters()}
    names = [_sink(number) for number in range(len(windows))]
    closed = {name: torch.full_like(plain.get_parameter(name), CLOSED) for name in names}
    # With closed sinks it must equal the original, which is checked; the logits then change it on purpose.
    plain = _filled(plain, weights | closed, model)
    with torch.no_grad():
        for name, values in zip(names, sinks, strict=True):
            plain.get_parameter(name).copy_(values)
    return plain


def zero_heads(model: nn.Module, heads: Iterable[tuple[int, int]]) -> None:
    """Remove heads permanently, in place: the columns of W_O that read a head's output become 0.

    Heads are (layer, head), counted over attention layers. Logits are those under `interventions.ZeroHeads`. Raises
    `InputError` for a head that does not exist, `UnsupportedModelError` where the output projection is no linear map.
    """
    model = unwrapped(model)
    layers = list(attention_layers(model))
    columns: list[Tensor] = []  # all of them before the first is changed: a model that is refused stays as it was
    for layer, head in heads:
        if not 0 <= layer < len(layers):
            raise InputError(f"head {layer}.{head} does not exist: there are {len(layers)} attention layers")
        if not 0 <= head < (count := head_count(model, layers[layer])):
            raise InputError(f"head {layer}.{head} does not exist: layer {layer} has heads 0 to {count - 1}")
        projection = output_projection(model, layers[layer])
        weight = getattr(projection, "weight", None)
        if not isinstance(projection, nn.Linear) or weight is None or weight.shape[1] % count:
            raise UnsupportedModelError(f"family '{family(model)}': its output projection is no map of single heads")
        if not isinstance(weight, nn.Parameter):
            raise UnsupportedModelError(
                f"family '{family(model)}': its output projection is computed anew from other parameters at each call, "
                "so no part of it can be set to 0"
            )
        width = weight.shape[1] // count
        columns.append(weight.detach()[:, head * width : (head + 1) * width])  # (out, width)
    for column in columns:
        column.zero_()  # a bias of W_O belongs to no head and stays


def _unlike_llama(config: LabConfig) -> str:
    """The first reason why a lab model is no Llama but for its attention; empty where it is one."""
    if not config.is_causal:
        return "it is bidirectional"
    if config.position != "rotary" or config.rope_fraction != 1:
        return f"position '{config.position}' over {config.rope_fraction:g} of a head"
    if config.sink_tokens:
        return f"it has {config.sink_tokens} sink tokens"
    return f"its {field} is {getattr(config, field)!r}" if (field := unlike_llama(config)) else ""


def _sinks(module: nn.Module, heads: int) -> Tensor:
    """A layer's sink logits. Raises `UnsupportedModelError` for what is no number per head."""
    operation = module.operation
    spec: AttentionSpec = operation.spec  # type: ignore[union-attr, assignment]
    like = next(module.parameters())
    match spec.slots:
        case ():
            values, without = torch.full((heads,), CLOSED), spec
        case (ZeroSlot(),):
            values, without = torch.zeros(heads), replace(spec, slots=())
        case (LogitSlot(reads_input=False),):
            values, without = operation.slot_modules[0].logit.detach(), replace(spec, slots=())  # type: ignore[union-attr, index]
        case _:
            # The slots stay in `without`, so the comparison below refuses it.
            values, without = torch.zeros(heads), spec
    if without != CATALOG["softmax"]:
        raise UnsupportedModelError(
            f"'{name_of(spec)}' cannot be written as GraniteSWA: it has softmax with one logit per head; what can be "
            "written: sink_logit, softmax_off_by_one, softmax"
        )
    # A copy: where dtype and device agree, `to` returns the operation's own parameter.
    return values.to(like).clone()


@torch.no_grad()
def _check_equal(model: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` where the two predict otherwise on random tokens."""
    size = min(16, model.config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (2, size), generator=generator).to(model.device)
    with evaluating(model), evaluating(plain):
        expected, actual = model(input_ids=ids).logits.float(), plain(input_ids=ids).logits.float()
    error, scale = float((expected - actual).abs().max()), float(expected.abs().max())
    allowed = max(TOLERANCE, 8 * torch.finfo(model.dtype).eps)
    # Negated, so that NaN is refused too.
    if not error <= allowed * scale:
        raise UnsupportedModelError(
            f"written as GraniteSWA, its logits differ by {error:.2g} at a scale of {scale:.2g} (rope_parameters "
            f"{model.config.to_dict().get('rope_parameters')}): that is not the same model"
        )
