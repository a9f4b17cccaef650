"""Where in a model things happen: the places that probes read and interventions change, found by structure.

Names are those that transformers gives such modules; none belongs to one family. What is not found is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import UnsupportedModelError
from sinkscope.probes.structure.layers import family

OUTPUT = ("o_proj", "out_proj", "c_proj", "dense", "o", "wo", "Wo", "proj", "out_lin")
KEY = ("k_proj", "key", "k", "k_lin")
KEY_NORM = ("k_norm", "k_layernorm", "key_norm", "key_layernorm")
IN_ROW = ("c_attn", "qkv_proj", "Wqkv", "qkv", "in_proj")  # all queries, then all keys, then all values
PER_HEAD = ("query_key_value",)  # for each head its query, key and value
HEAD_DIM = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
HEADS = ("num_heads", "n_heads", "num_attention_heads")
TABLES = ("wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_embed", "pos_emb")
SCHEME_TABLE = "position.table"  # of a model whose `position` is a module; one that is no nn.Embedding holds distances

Keys = Callable[[Float[Tensor, "batch position width"]], Float[Tensor, "batch kv_heads position head_dim"]]


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


def output_projection(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The linear map behind the heads: the last dimension of its input is heads · head_dim, head after head.

    In models like BERT it stands beside the attention layer, in `output.dense`. What enters it is not always what the
    attention function returned: gates (Qwen3-Next), norms (BitNet) and combinations of heads (DiffLlama) come before.
    Raises `UnsupportedModelError`.
    """
    found = next(_children(attention, OUTPUT), None)
    if found is None:
        parent = next((module for module in model.modules() if attention in module.children()), None)
        found = next(_children(getattr(parent, "output", None), OUTPUT), None)
    if found is None:
        raise _missing(attention, f"no output projection in or beside its attention layer (looked for {_list(OUTPUT)})")
    return found


def head_width(attention: nn.Module) -> int:
    """Width of a head's queries and keys. Raises `UnsupportedModelError`."""
    widths = (getattr(attention, name, None) for name in HEAD_DIM)
    found = next((width for width in widths if isinstance(width, int)), None)
    if found is None:
        raise _missing(attention, f"its attention layer does not say how wide a head is (looked for {_list(HEAD_DIM)})")
    return found


def head_count(model: nn.Module, attention: nn.Module) -> int:
    """Number of query heads. Raises `UnsupportedModelError`."""
    config = getattr(attention, "config", None) or getattr(model, "config", None)
    counts = (getattr(place, name, None) for place in (attention, config) for name in HEADS)
    found = next((count for count in counts if isinstance(count, int)), None)
    if found is None:
        raise _missing(attention, "neither its attention layer nor its configuration says how many heads there are")
    return found


def key_projection(model: nn.Module, attention: nn.Module) -> Keys:
    """Keys of hidden states (batch, position, width) as the layer makes them, with its norm, before any rotation.

    The hidden states are what enters the attention layer, behind the block's norm. Raises `UnsupportedModelError`
    where keys are made in another way (latent attention, convolutions over tokens).
    """
    width = head_width(attention)
    norm = next(_children(attention, KEY_NORM), nn.Identity())
    separate = next(_children(attention, KEY), None)
    steps = [name for name, _ in attention.named_children() if name.startswith(("k_", "key_"))]
    if unknown := [name for name in steps if name not in (*KEY, *KEY_NORM)]:
        raise _missing(attention, f"its keys also go through {_list(tuple(unknown))}, which is not understood")
    if separate is not None:
        return lambda hidden: _in_heads(separate(hidden), width, norm)
    heads = head_count(model, attention)
    per_head = next(_children(attention, PER_HEAD), None)
    if per_head is not None and _width_out(per_head) == 3 * heads * width:
        return lambda hidden: _in_heads(_keys_per_head(per_head(hidden), heads, width), width, norm)
    fused = next(_children(attention, IN_ROW), None)
    size = 0 if fused is None else (_width_out(fused) - heads * width) // 2
    if fused is None or size <= 0 or size % width:
        names = _list((*KEY, *IN_ROW, *PER_HEAD))
        raise _missing(attention, f"no key projection in its attention layer (looked for {names})")
    own = slice(heads * width, heads * width + size)
    return lambda hidden: _in_heads(fused(hidden)[..., own], width, norm)


def position_embedding(model: nn.Module) -> PositionTable:
    """The table of absolute positions. Raises `UnsupportedModelError` naming what the model has instead."""
    found = dict(_tables(model))
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UnsupportedModelError(f"family '{family(model)}' has several position tables: {_list(tuple(found))}")
    rotary = any("rotary" in type(module).__name__.lower() for module in model.modules())
    instead = "rotates queries and keys instead (rotary positions)" if rotary else "encodes positions in another way"
    raise UnsupportedModelError(f"family '{family(model)}' has no table of absolute positions: it {instead}")


def unembedding(model: nn.Module) -> Float[Tensor, "vocabulary width"]:
    """W_U, the weight of the language-modelling head. Raises `UnsupportedModelError` where there is none."""
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor):
        raise UnsupportedModelError(f"family '{family(model)}', {type(model).__name__}: no unembedding matrix")
    return weight


def _tables(model: nn.Module) -> Iterator[tuple[str, PositionTable]]:
    for path, module in model.named_modules():
        named = path.rpartition(".")[2] in TABLES or path.endswith(SCHEME_TABLE)
        if isinstance(module, nn.Embedding) and named:
            yield path, PositionTable(path, module.weight, _offset(model, module))
    for path, parameter in model.named_parameters():
        if path.rpartition(".")[2] in TABLES:  # of image models, with a row for each special token and patch
            yield path, PositionTable(path, parameter, 0)


def _offset(model: nn.Module, table: nn.Embedding) -> int:
    """Rows before position 0: those up to the padding's, or those beyond the configured number of positions."""
    if table.padding_idx is not None:
        return table.padding_idx + 1
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return max(0, table.num_embeddings - positions) if isinstance(positions, int) else 0


def _children(module: nn.Module | None, names: tuple[str, ...]) -> Iterator[nn.Module]:
    children = {} if module is None else dict(module.named_children())
    yield from (children[name] for name in names if name in children)


def _keys_per_head(rows: Tensor, heads: int, width: int) -> Float[Tensor, "batch position _"]:
    """The keys among rows that hold query, key and value of one head after the other."""
    return rows.unflatten(-1, (heads, 3, width))[..., 1, :].flatten(-2)


def _in_heads(flat: Tensor, width: int, norm: nn.Module) -> Float[Tensor, "batch heads position width"]:
    """Keys in heads, normed as wide as the norm's gain is: all heads together, or each with its own or a shared one."""
    gain = getattr(norm, "weight", None)
    if isinstance(gain, Tensor) and gain.shape == flat.shape[-1:] != (width,):
        return norm(flat).unflatten(-1, (-1, width)).transpose(1, 2)
    keys = flat.unflatten(-1, (-1, width))
    if isinstance(gain, Tensor) and gain.ndim == 2:  # a row of gains per head, which stands before the width
        return norm(keys).transpose(1, 2)
    return norm(keys.transpose(1, 2))


def _width_out(linear: nn.Module) -> int:
    """Columns that a linear map gives; transformers' Conv1D stores its weight the other way round."""
    bias = getattr(linear, "bias", None)
    if isinstance(bias, Tensor):
        return len(bias)
    return int(torch.as_tensor(linear.weight.shape)[0])


def _missing(attention: nn.Module, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"family '{family(attention)}', {type(attention).__name__}: {reason}")


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
