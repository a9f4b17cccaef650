"""Models in GGUF files: dequantized once into a plain folder of the cache, which is then loaded as any other.

transformers reads the file; what it leaves out without an error is added here (head width, RoPE scaling, layers without
a window) or refused (tensors that have no place in its model, weights that the file lacks).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as progress

from sinkscope.errors import InputError
from sinkscope.errors.invalid import first_line
from sinkscope.files import cache_dir, cached_folder, check_room, sha256, write_json
from sinkscope.live import plain, stderr

_ORIGINAL = "load the folder or hub id that it was made from instead"
_BYTES = 4  # of a dequantized weight
CONVERSION = 3  # goes up when a file is read in another way, so that nothing dequantized before is taken

ABOUT = "gguf.json"
"""What the weights no longer tell, next to them: `name` and `basename` of the file's metadata, where it has them, and
`types`, the number of weights of each tensor type in the matrices of its blocks, most first."""

# Tensors that are settings rather than weights.
_ROPE_FACTORS = "rope_freqs.weight"
_SETTINGS = {_ROPE_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight"}
# Pre-tokenizers for which llama.cpp adds a BOS where the file does not say (llama-vocab.cpp).
_BOS_PRE = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
# Keys of the architecture that change nothing in what is computed, or that `_completed` reads.
_KNOWN = {
    "attention.causal",
    "attention.key_length",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base_swa",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
}


def dequantized(path: Path, class_of: Callable[[PreTrainedConfig], Any]) -> Path:
    """The folder of the cache that holds a GGUF file's model and tokenizer, written where it is not there yet.

    `class_of` chooses the Auto class of a configuration.
    The folder is named by the file's SHA-256, `CONVERSION` and the version of transformers; its weights are float32.
    Where it is and how to empty it is printed on standard error when it is written. Raises `InputError` for one of
    several parts, for architectures, tensor types and settings that cannot be read, and where the package `gguf` is
    missing.
    """
    folder = _cached(path)
    return cached_folder(folder, functools.partial(_convert, path, folder, class_of), contents=False)


def _cached(path: Path) -> Path:
    """Where the cache has a file's model, or will have it. A renamed file is the same model."""
    known, contents = cache_dir() / "gguf", f"{sha256(path)[:16]}-{CONVERSION}-transformers-{transformers.__version__}"
    return next(known.glob(f"*-{contents}"), known / f"{path.stem}-{contents}")


def gguf_configuration(path: Path) -> PreTrainedConfig:
    """The configuration of a GGUF file's model, without writing its weights. Raises `InputError` as `dequantized`."""
    if (folder := _cached(path)).exists():  # reading the file takes seconds
        return AutoConfig.from_pretrained(folder)
    with _reading(path) as file, _refusing(path):
        metadata = _metadata(file)
        _check_kind(path, metadata)
        _check_types(path, file)
        return _configuration(path, file, metadata)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever transformers raises about the file becomes an `InputError` with the way out."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, NotImplementedError, TypeError) as error:
        raise InputError(f"cannot load model '{path}': {first_line(error).rstrip('.:')}; {_ORIGINAL}") from error


def _convert(path: Path, folder: Path, class_of: Callable[[PreTrainedConfig], Any], draft: Path) -> None:
    with _reading(path) as file:
        metadata = _metadata(file)
        _check_kind(path, metadata)
        _check_types(path, file)
        check_room(cache_dir(), _BYTES * _elements(file))
        with _refusing(path):
            _save_model(path, file, metadata, class_of, draft)
        _save_tokenizer(path, metadata, draft)
        write_json(draft / ABOUT, _about(file, metadata))
    size = sum(entry.stat().st_size for entry in draft.iterdir())
    stderr().print(
        plain(
            f"{path.name}: dequantized once, {size / 1e6:.0f} MB ({_BYTES} bytes a parameter) in {folder}; "
            f"to free the space, delete {folder.parent}"
        ),
        soft_wrap=True,
    )


# Reading


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """The file's `gguf.GGUFReader`, which transformers gets too each time that it opens the file inside the block.

    transformers opens a file three times and asks for the table of names at each module, which is most of its time. On
    a terminal the part that takes long has a bar.
    """
    try:
        import gguf
    except ImportError as error:
        raise InputError(
            f"reading '{path}' needs the package gguf: pip install \"sinkscope[gguf]\"; or {_ORIGINAL}"
        ) from error
    from transformers import modeling_gguf_pytorch_utils as loading

    try:
        file = _reader()(path)
    except (ValueError, KeyError, IndexError, OSError) as error:  # a type that is not known, a file cut short
        # NumPy's words for bytes that are not there, in place of an IndexError.
        short = isinstance(error, IndexError) or any(word in str(error) for word in ("reshape", "its size must be"))
        said = "it is damaged or ends too early, so download it again" if short else first_line(error)
        raise InputError(f"cannot read GGUF file '{path}': {said}; {_ORIGINAL}") from error
    bars = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    with (
        patch.object(gguf, "GGUFReader", lambda *_: file),
        patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        patch.object(loading, "tqdm", functools.partial(loading.tqdm, disable=None)),
    ):
        try:
            yield file
        finally:
            if bars:
                progress.enable_progress_bar()


@functools.cache
def _reader() -> Any:
    """`gguf.GGUFReader` with a fast path for lists of strings, which a vocabulary and its merges are."""
    import gguf

    class Reader(gguf.GGUFReader):  # type: ignore[misc, unused-ignore]
        def __setattr__(self, name: str, value: Any) -> None:
            # A slice of a memory map costs ten times one of an array.
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            kind, text = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
            data, swapped = self.data, self.byte_order == "S"
            if raw_type == kind and (count := int(self._get(orig_offs + 4, np.uint64)[0])) > len(data) - orig_offs:
                # gguf would read past the end until it had counted so far, which may be 2⁶⁴
                raise ValueError(f"it announces a list of {count:,} items in a file of {len(data):,} bytes")
            if raw_type != kind or swapped or data[orig_offs : orig_offs + 4].view(np.uint32)[0] != text:
                return super()._get_field_parts(orig_offs, raw_type)
            items = data[orig_offs + 4 : orig_offs + 12].view(np.uint64)
            parts = [data[orig_offs : orig_offs + 4].view(np.uint32), items]
            at = orig_offs + 12
            for _ in range(int(items[0])):
                length = data[at : at + 8].view(np.uint64)
                end = at + 8 + int(length[0])
                parts += [length, data[at + 8 : end]]
                at = end
            # parts: type of the items, their count, then length and bytes of each string: strings are at 3, 5, 7, …
            return at - orig_offs, parts, list(range(3, len(parts), 2)), [kind, text]

    return Reader


def _metadata(file: Any) -> dict[str, Any]:
    """The file's keys and values; lists of strings, which are long, are left out."""
    import gguf

    strings = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]
    return {name: field.contents() for name, field in file.fields.items() if field.types != strings}


def _check_kind(path: Path, metadata: Mapping[str, Any]) -> None:
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    if (parts := metadata.get("split.count", 1)) > 1:
        raise InputError(
            f"'{path}' is one of {parts} parts: join them with  llama-gguf-split --merge {path.name} whole.gguf"
        )
    if (kind := metadata.get("general.type", "model")) != "model":
        raise InputError(f"'{path}' holds no language model but {_article(kind)}: name the model's own file")
    if "general.architecture" not in metadata:
        raise InputError(f"'{path}' names no architecture; {_ORIGINAL}")
    architecture = metadata["general.architecture"]
    known = {*GGUF_SUPPORTED_ARCHITECTURES, *_newer_architectures()} - {"general"}
    renamed = {name.replace("_", "") for name in known} | {name.replace("_", "-") for name in known}
    if architecture not in known | renamed:
        raise InputError(
            f"'{path}' is of the architecture '{architecture}', which transformers {transformers.__version__} reads "
            f"from no GGUF file; {_ORIGINAL}"
        )


def _newer_architectures() -> set[str]:
    """Architectures that transformers reads by its second way, which keeps the settings complete."""
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

    return set(GGUF_CONFIG_ARCHS)


def _check_types(path: Path, file: Any) -> None:
    from gguf import dequantize

    # One row of one tensor of each type shows whether the type can be dequantized.
    for kind in {tensor.tensor_type: tensor for tensor in file.tensors}.values():
        try:
            dequantize(kind.data.reshape(-1, kind.data.shape[-1])[:1], kind.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise InputError(
                f"'{path}': tensors of the type {kind.tensor_type.name} (as {kind.name}) cannot be dequantized here: "
                f"write another file with  llama-quantize --allow-requantize {path.name} out.gguf Q8_0, or {_ORIGINAL}"
            ) from error


def _about(file: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    types: Counter[str] = Counter()
    for tensor in file.tensors:
        if "blk." in tensor.name and len(tensor.shape) > 1:  # embeddings and heads are often stored in more bits
            types[tensor.tensor_type.name] += int(tensor.n_elements)
    names = {key: metadata[f"general.{key}"] for key in ("name", "basename") if f"general.{key}" in metadata}
    return {**names, "types": dict(types.most_common())}


def _elements(file: Any) -> int:
    return sum(int(tensor.n_elements) for tensor in file.tensors if tensor.name not in _SETTINGS)


# Writing


def _configuration(path: Path, file: Any, metadata: Mapping[str, Any]) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    if (architecture := metadata["general.architecture"]) not in _newer_architectures():
        _completed(
            path,
            config,
            file,
            {
                key.removeprefix(f"{architecture}."): value
                for key, value in metadata.items()
                if key.startswith(f"{architecture}.")
            },
        )
    return config


def _save_model(
    path: Path, file: Any, metadata: Mapping[str, Any], class_of: Callable[[PreTrainedConfig], Any], draft: Path
) -> None:
    config = _configuration(path, file, metadata)
    model, notes = class_of(config).from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        config=config,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    if missing := sorted(notes["missing_keys"]):
        raise InputError(f"'{path}' lacks weights of {type(model).__name__} (as {missing[0]}); {_ORIGINAL}")
    weights = model.state_dict()
    # By address: tied weights have two names here and are one tensor in the file.
    stored = sum({tensor.data_ptr(): tensor.numel() for tensor in weights.values()}.values())
    if metadata["general.architecture"] not in _newer_architectures() and stored != _elements(file):
        raise InputError(
            f"'{path}' holds {_elements(file)} weights, of which transformers' {type(model).__name__} takes {stored}: "
            f"it would compute something else; {_ORIGINAL}"
        )
    _fresh(model, weights, metadata).save_pretrained(draft)


def _fresh(model: PreTrainedModel, weights: dict[str, torch.Tensor], metadata: Mapping[str, Any]) -> PreTrainedModel:
    """A model of the same class around the same weights: transformers refuses to save the one that it read."""
    config = type(model.config)(
        **{name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    )
    config.architectures = [type(model).__name__]
    with torch.device("meta"):
        fresh = type(model)(config)
    fresh.load_state_dict(weights, assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    # Chat models end a turn with EOT or EOM rather than EOS, and generation must stop there too.
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    if len(ends := list(dict.fromkeys(end for end in ends if end is not None))) > 1:
        fresh.generation_config.eos_token_id = ends
    return fresh


def _save_tokenizer(path: Path, metadata: Mapping[str, Any], draft: Path) -> None:
    """The file's tokenizer, its template and its flags; a file without one leaves none."""
    if "tokenizer.ggml.model" not in metadata:
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except Exception as error:  # as in `hub.load_tokenizer`
        warnings.warn(f"'{path}': its tokenizer cannot be read: {first_line(error)}", stacklevel=2)
        return
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (token := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token))
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", _adds_bos(metadata))
    adds_eos = metadata.get("tokenizer.ggml.add_eos_token", metadata["tokenizer.ggml.model"] == "t5")
    tokenizer.add_bos_token = bool(adds_bos) and tokenizer.bos_token_id is not None
    tokenizer.add_eos_token = bool(adds_eos) and tokenizer.eos_token_id is not None
    tokenizer.save_pretrained(draft)


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """What llama.cpp does where the file does not say."""
    model = metadata["tokenizer.ggml.model"]
    return model == "llama" or (model == "gpt2" and metadata.get("tokenizer.ggml.pre") in _BOS_PRE)


# What transformers leaves out of the configuration


def _completed(path: Path, config: PreTrainedConfig, file: Any, settings: Mapping[str, Any]) -> None:
    """Add to `config` what transformers does not take from the file's settings, by llama.cpp's key names."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING

    # GGUF lists the innermost dimension first: (width, vocabulary).
    if embedding := [tensor for tensor in file.tensors if tensor.name == "token_embd.weight"]:
        config.vocab_size = int(embedding[0].shape[1])  # transformers counts the tokenizer's tokens
    if hasattr(config, "head_dim") and (width := settings.get("attention.key_length")):
        config.head_dim = width
    if config.model_type in ("gemma2", "gemma3_text"):
        # llama.cpp scales by the head's width, in the 27B models by the mean one; no key says so.
        is_27b = (config.model_type, config.num_hidden_layers) in (("gemma2", 46), ("gemma3_text", 62))
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if is_27b else config.head_dim
    if (pattern := settings.get("attention.sliding_window_pattern")) is not None:
        # A number n means that every nth layer sees everything.
        local = (
            pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(config.num_hidden_layers)]
        )
        config.layer_types = ["sliding_attention" if each else "full_attention" for each in local]
    if base := settings.get("rope.freq_base_swa"):
        config.rope_parameters["sliding_attention"]["rope_theta"] = base
    _scale_positions(path, config, file, settings)
    mapping = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    read = {name for kind, names in mapping.items() for name in names if kind.replace("_", "") in _spellings(config)}
    if unread := sorted(set(settings) - read - _KNOWN):
        warnings.warn(
            f"'{path}' sets {', '.join(unread)}, which transformers does not read: compare with the model that it was "
            "made from",
            stacklevel=2,
        )


def _spellings(config: PreTrainedConfig) -> set[str]:
    name = config.model_type.replace("_", "")
    return {name, name.removesuffix("text")}


def _scale_positions(path: Path, config: PreTrainedConfig, file: Any, settings: Mapping[str, Any]) -> None:
    """RoPE's scaling: by a factor, by YaRN, or Llama 3's, which the file holds as one divisor per frequency."""
    # llama.cpp scales linearly where a file has a factor and no type.
    kind = settings.get("rope.scaling.type", "linear" if "rope.scaling.factor" in settings else "none")
    # In all layers, cosines and sines are multiplied by it, in addition to YaRN's own factor. transformers has a place
    # for it only where YaRN scales all layers.
    share = float(settings.get("rope.scaling.attn_factor", 1))
    divisors = next((tensor.data for tensor in file.tensors if tensor.name == _ROPE_FACTORS), None)
    if share != 1 and (kind != "yarn" or divisors is not None or "full_attention" in config.rope_parameters):
        raise InputError(
            f"'{path}' sets rope.scaling.attn_factor = {share:g}, which is read only where all positions are scaled by "
            f"'yarn'; {_ORIGINAL}"
        )
    if kind == "none" and divisors is None:
        return
    rope = config.rope_parameters
    # Families with windows have parameters for each kind of layer, and scale those of full attention only.
    rope = rope.get("full_attention", rope)
    if divisors is not None:
        rope |= _llama3(path, np.asarray(divisors, np.float64).ravel(), rope["rope_theta"])
    elif kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": (factor := float(settings["rope.scaling.factor"]))}
        if share != 1:
            rope["attention_factor"] = share * (1 + 0.1 * math.log(max(1, factor)))
        if original := settings.get("rope.scaling.original_context_length"):
            rope["original_max_position_embeddings"] = original
    else:
        raise InputError(f"'{path}' scales its positions by '{kind}', which is not read from GGUF files; {_ORIGINAL}")


def _llama3(path: Path, divisors: np.ndarray, theta: float) -> dict[str, Any]:
    """Llama 3's scaling by the slowest frequency's factor; refused where it does not give the file's divisors."""
    # The file has divisors only. That of the slowest frequency is the whole factor; the other three numbers are those
    # of the released Llama 3 models, and for a model with others the comparison fails.
    factor, slow, fast, original = float(divisors.max()), 1.0, 4.0, 8192
    wavelengths = 2 * math.pi * theta ** (np.arange(len(divisors)) / len(divisors))
    # f ← (1 − smooth) · f / factor + smooth · f: long waves are divided by the factor, short ones stay.
    smooth = np.clip((original / wavelengths - slow) / (fast - slow), 0, 1)
    if not np.allclose(divisors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise InputError(f"'{path}' scales its positions in a way that is not Llama 3's; {_ORIGINAL}")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": slow,
        "high_freq_factor": fast,
        "original_max_position_embeddings": original,
    }


def _article(kind: str) -> str:
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"
