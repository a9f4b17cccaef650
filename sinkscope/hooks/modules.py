"""Find the parts of a model: attention layers, blocks, stacks, position tables, the unembedding.

They are found by the model's structure and by transformers' usual module names, never by family. What is not found is
refused by name.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sinkscope.errors import UnsupportedModelError

# The argument with which a forward pass is given its cache is called `cache` from transformers 5.24 on.
CACHE_NAMES = ("past_key_values", "cache")
CROSS = ("cross", "encdecattention", "enc_dec_attention", "encoder_attn")
MODALITIES = {"vision": ("vis", "image"), "audio": ("audio", "speech_encoder")}
QUERIES = ("qformer", "q_former")  # learned queries that read an image for a language model
TIME_FIRST = {"xlnet", "fsmt"}  # their blocks pass on (position, batch, width), which shapes cannot reveal
COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")
LEARNED_TOKENS = {"cls_token": "CLS", "class_embedding": "CLS", "distillation_token": "distillation"}
REGISTERS = "register_tokens"  # (1, n, width)
DETECTIONS = "detection_tokens"  # (1, n, width), after the patches (YOLOS)
TABLES = ("wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_embed", "pos_emb")
SCHEME_TABLE = "position.table"  # for a model whose `position` is a module; unless an nn.Embedding, it holds distances


@dataclass(frozen=True)
class Layer:
    """An attention layer as a measurement labels it.

    `name`: path of its module, with `#n` for the n-th further use of a shared module; `index`: the model's own
    `layer_idx`, −1 where it has none; `stack`: decoder, encoder, cross, vision, audio, queries or queries_cross.
    """

    name: str
    index: int
    stack: str

    @property
    def crosses(self) -> bool:
        """Whether its keys are tokens of another stack."""
        return self.stack.endswith("cross")

    @property
    def tower(self) -> tuple[str, str]:
        """Its stack, and the path of its sub-model: everything before the first number."""
        parts = self.name.split(".")
        first = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
        return self.stack, ".".join(parts[:first])


@dataclass(frozen=True)
class Depth:
    """A place in the residual stream: before the first block of a stack (index 0) or after its index-th."""

    index: int
    stack: str


@dataclass(frozen=True)
class ExpertLayer:
    """A mixture-of-experts layer: path of its module; its "heads" are experts."""

    name: str


Place = Layer | Depth | ExpertLayer


@dataclass(frozen=True, eq=False)
class Block:
    """An element of the module list that contains an attention layer: where the residual stream is read."""

    module: nn.Module
    stack: str


@dataclass(frozen=True, eq=False)
class PositionTable:
    """A table of absolute positions: `weight` (rows, width) or (1, rows, width), row `offset + p` for position p."""

    path: str
    weight: Tensor
    offset: int

    @property
    def rows(self) -> Float[Tensor, "position width"]:
        """The rows of positions 0, 1, …, a view of the weight."""
        return self.weight.data.view(self.weight.shape[-2:])[self.offset :]


UNDIGESTED = ("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "_model_name_or_path")


def model_digest(model: nn.Module) -> str:
    """The sha256 of a model's configuration and of the sum of each parameter, in hexadecimal.

    Two models that agree in it have the same numbers, short of weights that were exchanged within a parameter; names,
    folders and the version of transformers that wrote the configuration do not count. Parameters on the meta device are
    left out.
    """
    config = getattr(model, "config", None)
    known: Any = getattr(config, "to_diff_dict", lambda: {"class": type(model).__name__})()
    known = json.dumps(_digested(known), sort_keys=True, default=str)
    with torch.no_grad():
        sums = [float(each.detach().double().sum()) for each in model.parameters() if not each.is_meta]
    return hashlib.sha256(json.dumps([known, sums]).encode()).hexdigest()


def _digested(config: Any) -> Any:
    """A configuration, with those inside it, without what changes no number."""
    if not isinstance(config, dict):
        return config
    return {name: _digested(value) for name, value in config.items() if name not in UNDIGESTED}


SAMPLED = 256


def weights_digest(model: nn.Module) -> str:
    """The sha256 of some 256 numbers of each parameter, from all over it: cheap at any size.

    It tells checkpoints of one model apart, and most edits of single heads. Parameters on the meta device, empty ones
    and tensors of other types (sharded, packed) are left out.
    """
    digest = hashlib.sha256()
    for weight in model.parameters():
        if weight.is_meta or not weight.numel() or type(weight) not in (Tensor, nn.Parameter):
            continue
        flat = weight.detach()
        flat = flat.view(-1) if flat.is_contiguous() else flat.flatten()
        step = flat.numel() // SAMPLED | 1  # odd, so that it does not stay in a few columns
        digest.update(flat[::step].cpu().double().numpy().tobytes())
    return digest.hexdigest()


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile(model)`, and the one inside a PEFT model, with its adapters active. Raises
    `UnsupportedModelError` for an adapter that prepends its own tokens to a prompt.
    """
    if isinstance(model, OptimizedModule):
        model = model._orig_mod
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UnsupportedModelError(
            "this PEFT adapter learns tokens in front of the prompt, which are no part of the model inside: measure "
            "model.get_base_model() without them, or train sink tokens with attach(sink_tokens=…)"
        )
    inner: nn.Module = model.get_base_model()  # type: ignore[operator]
    return inner


def paths_of(model: nn.Module) -> dict[nn.Module, str]:
    """The path of each module; the first path if it has several."""
    return {module: path for path, module in model.named_modules()}


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model reads one sequence and writes another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def text_config(model: nn.Module) -> Any:
    """The configuration of the text model; None if there is none, or several."""
    if not isinstance(model, PreTrainedModel):
        return None
    try:
        return model.config.get_text_config()
    except ValueError:  # several (MusicGen)
        return None


def family(model: nn.Module) -> str:
    """The model's family as transformers names it, else the name of its class."""
    return str(getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__)


def attention_layers(model: nn.Module) -> dict[nn.Module, Layer]:
    """The modules whose forward looks up its function in transformers' attention interface, in the model's order.

    Raises `UnsupportedModelError` if there is none.
    """
    paths = {module: path for path, module in model.named_modules() if dispatches(module)}
    if not paths:
        raise no_attention(model)
    return {module: label(model, module, path) for module, path in paths.items()}


def no_attention(model: nn.Module) -> UnsupportedModelError:
    """The error for a model without dispatching modules."""
    return UnsupportedModelError(
        f"family '{family(model)}' has no attention layer that dispatches through transformers' AttentionInterface, "
        "nor in every block one module that makes queries, keys and values, so nothing can be read or changed inside "
        "its attention; what works: families that have (Llama, Mistral, Qwen, Gemma, GPT-2, GPT-NeoX, OPT, BERT, T5, "
        "BLOOM, MPT, Falcon, GPT-J …), and observers of weights alone for those that return their attention maps "
        "(attn_implementation='eager', output_attentions=True)"
    )


def label(model: nn.Module, module: nn.Module, path: str) -> Layer:
    """The layer's name, index and stack."""
    index = getattr(module, "layer_idx", None)
    return Layer(path, index if isinstance(index, int) else -1, _stack(model, module, path))


def dispatches(module: nn.Module) -> bool:
    """True if the module's forward, or the one it extends with `super()`, looks up an attention function for tokens."""
    if attends_to_blocks(module):
        return False
    for cls in type(module).__mro__:
        forward = vars(cls).get("forward")
        if forward is None:
            continue
        names = _names_in(forward)
        if "ALL_ATTENTION_FUNCTIONS" in names or {"get_interface", "_attn_implementation"} <= names:
            return True
        # A forward that does not call `super()` replaces those of its bases.
        if "super" not in names:
            return False
    return False


def attends_to_blocks(module: nn.Module) -> bool:
    """Whether this is an attention residual: a learned query, at each token, over the outputs of the blocks so far.

    Its keys are no tokens, though it looks up an attention function (inkling2, from transformers 5.24 on). It is told
    by what it lacks: whatever pools tokens by a learned query projects them to keys.
    """
    if not isinstance(getattr(module, "query", None), nn.Parameter):
        return False
    return all(weights.ndim < 2 for name, weights in module.named_parameters() if name != "query")


@lru_cache(maxsize=4096)
def _names_in(forward: Any) -> frozenset[str]:
    """Names that a function uses."""
    return frozenset(getattr(getattr(inspect.unwrap(forward), "__code__", None), "co_names", ()))


def has_attention(model: nn.Module) -> bool:
    """Whether any module of the model dispatches."""
    return any(dispatches(module) for module in model.modules())


def blocks(model: nn.Module) -> list[Block]:
    """The blocks between which the residual stream is read, by stack, in the model's order.

    All elements of the outermost module lists that contain an attention layer; if no layer dispatches, of the lists as
    long as a stack is deep (`block_lists`).
    """
    if isinstance(model, PreTrainedModel) and not has_attention(model):
        return [Block(block, stack) for stack, members in block_lists(model).items() for block in members.values()]
    lists: dict[str, str] = {}
    modules = dict(model.named_modules())
    for layer in attention_layers(model).values():
        parts = layer.name.split(".")
        prefixes = (".".join(parts[: end + 1]) for end in range(len(parts)))
        # Lists inside a block hold its parts, so the outermost one holds the blocks.
        outermost = next((prefix for prefix in prefixes if isinstance(modules[prefix], nn.ModuleList)), None)
        if outermost is not None and not layer.crosses:
            lists.setdefault(outermost, layer.stack)
    return [Block(module, stack) for path, stack in lists.items() for module in modules[path].children()]


def own_stack(model: PreTrainedModel) -> str:
    """The name of a model's only stack: vision, or decoder or encoder by the heads that transformers has for it."""
    if model.main_input_name == "pixel_values":
        return "vision"
    kind = model.config.model_type
    writes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "decoder" if writes or bool(getattr(model.config, "is_decoder", False)) else "encoder"


def block_lists(model: PreTrainedModel) -> dict[str, dict[str, nn.Module]]:
    """The blocks of each stack by their path: the one outermost module list that is as long as the stack is deep.

    A stack has none if several lists are (XLM separates attention and feed-forward), or if its blocks pass on the
    residual stream with positions first.
    """
    if model.config.model_type in TIME_FIRST:
        return {}
    depths = [getattr(model.config, name, None) for name in COUNTS]  # LXMERT has a number for each of its parts
    by_stack: dict[str, list[str]] = {}
    modules = dict(model.named_modules())
    lists = [path for path, module in modules.items() if isinstance(module, nn.ModuleList) and len(module) in depths]
    for path in lists:
        if not any(path.startswith(f"{other}.") for other in lists):
            by_stack.setdefault(_stack_of(model, path), []).append(path)
    return {
        stack: {f"{paths[0]}.{name}": block for name, block in modules[paths[0]].named_children()}
        for stack, paths in by_stack.items()
        if len(paths) == 1
    }


def sink_tokens(model: nn.Module) -> int:
    """How many learned tokens the model puts before every sequence; they are positions 0 … n−1 of a measurement."""
    return int(getattr(getattr(model, "config", None), "sink_tokens", 0))


def vision_prefix(model: nn.Module) -> list[str]:
    """Names of the learned tokens before the patches, in order; empty for a model without any."""
    named = {path.rpartition(".")[2]: parameter for path, parameter in model.named_parameters()}
    names = [label for suffix, label in LEARNED_TOKENS.items() if suffix in named]
    count = named[REGISTERS].shape[1] if REGISTERS in named else 0
    return [*names, *(f"register {index}" for index in range(count))]


def vision_suffix(model: nn.Module) -> dict[str, int]:
    """Number of learned tokens after the patches, by kind; empty for a model without any."""
    counts = [weight.shape[1] for path, weight in model.named_parameters() if path.rpartition(".")[2] == DETECTIONS]
    return {"detection": counts[0]} if counts else {}


def position_embedding(model: nn.Module) -> PositionTable:
    """The table of absolute positions. Raises `UnsupportedModelError`, naming what the model has instead."""
    tables = dict(_tables(model))
    if len(tables) == 1:
        return next(iter(tables.values()))
    if tables:
        raise UnsupportedModelError(f"family '{family(model)}' has several position tables: {', '.join(tables)}")
    rotary = any("rotary" in type(module).__name__.lower() for module in model.modules())
    instead = "rotates queries and keys instead (rotary positions)" if rotary else "encodes positions in another way"
    raise UnsupportedModelError(
        f"family '{family(model)}' has no table of absolute positions (looked for {', '.join(TABLES)}): it {instead}"
    )


def unembedding(model: nn.Module) -> Float[Tensor, "vocabulary width"]:
    """W_U, the weight of the language-modeling head. Raises `UnsupportedModelError` where there is none."""
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor):
        raise UnsupportedModelError(
            f"family '{family(model)}', {type(model).__name__}: no unembedding matrix (looked for the weight of "
            "get_output_embeddings()); load the model with its language-modeling head"
        )
    return weight


def _stack(model: nn.Module, module: nn.Module, path: str) -> str:
    parts = path.lower().split(".")
    crosses = any(mark in part for part in parts for mark in CROSS)
    if any(part.startswith(QUERIES) for part in parts):
        return "queries_cross" if crosses else "queries"
    if crosses:
        return "cross"
    for modality, marks in MODALITIES.items():
        if any(part.startswith(marks) for part in parts):
            return modality
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return _side(parts)
    if getattr(model, "main_input_name", None) == "pixel_values" and not hasattr(config, "text_config"):
        return "vision"
    return "decoder" if getattr(module, "is_causal", _takes_cache(module)) else "encoder"


def _side(parts: list[str]) -> str:
    """Encoder or decoder, by the first part of the path that names one: a decoder may be built from an "encoder"
    (BERT).
    """
    sides = (side for part in parts for side in ("encoder", "decoder") if part.endswith(side))
    return next(sides, "decoder")


def _takes_cache(module: nn.Module) -> bool:
    """Whether the layer can continue with keys of earlier passes, as only causal layers can."""
    return not _parameters_of(getattr(module.forward, "__func__", module.forward)).isdisjoint(CACHE_NAMES)


@lru_cache(maxsize=4096)
def _parameters_of(forward: Any) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _stack_of(model: PreTrainedModel, path: str) -> str:
    if not model.config.is_encoder_decoder:
        return own_stack(model)
    return _side(path.split("."))


def _tables(model: nn.Module) -> Iterator[tuple[str, PositionTable]]:
    yield from ((path, table) for path, _, table in _embeddings(model))
    for path, parameter in model.named_parameters():
        if path.rpartition(".")[2] in TABLES:  # of image models, with a row for each special token and patch
            yield path, PositionTable(path, parameter, 0)


def _embeddings(model: nn.Module) -> Iterator[tuple[str, nn.Embedding, PositionTable]]:
    for path, module in model.named_modules():
        named = path.rpartition(".")[2] in TABLES or path.endswith(SCHEME_TABLE)
        if isinstance(module, nn.Embedding) and named:
            yield path, module, PositionTable(path, module.weight, _offset(model, module))


def position_limit(model: nn.Module) -> int | None:
    """Tokens of a row for which a model has positions; None where its configuration does not say.

    Families after RoBERTa begin to count after the padding's row of their table, so `max_position_embeddings` = 514
    means 512 tokens.
    """
    config = text_config(model)
    limit = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))  # the latter: MPT
    if not isinstance(limit, int) or limit < 1:
        return None
    counted = [len(table.rows) for _, module, table in _embeddings(model) if module.padding_idx is not None]
    return min([limit, *counted])


def counts_columns(model: nn.Module) -> bool:
    """Whether a table's positions are those of columns, padding before a row included, unless the caller gives others.

    So in GPT-2, BERT and CTRL. RoBERTa, whose table has a row for padding, counts real tokens itself.
    """
    if "position_ids" not in _parameters_of(getattr(model.forward, "__func__", model.forward)):
        return False
    fixed = any(path.rpartition(".")[2] == "pos_encoding" for path, _ in model.named_buffers())
    return fixed or any(table.padding_idx is None for _, table, _ in _embeddings(model))


def _offset(model: nn.Module, table: nn.Embedding) -> int:
    """Rows before position 0: those up to the padding's, or those beyond the configured number of positions."""
    if table.padding_idx is not None:
        return table.padding_idx + 1
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return max(0, table.num_embeddings - positions) if isinstance(positions, int) else 0
