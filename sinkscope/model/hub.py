"""Loading any model: from the hub, a folder, a GGUF file, or the ones shipped in the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForCausalLM,
    AutoModelForCTC,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file, extract_commit_hash

from sinkscope import names
from sinkscope.errors import InputError
from sinkscope.errors.invalid import first_line
from sinkscope.model.attached.loading import host_of
from sinkscope.model.gguf_files import ABOUT, dequantized, gguf_configuration
from sinkscope.names import SHIPPED, is_gguf, is_git_pointer

CALIBRATED = "calibrated.json"  # marks the folder of a model that is saved with a calibration
UNCALIBRATED = "uncalibrated"  # where the model itself lies in it

NOT_READ = ("pooler", "masked_spec_embed")  # of some heads, or of training alone: many weights on the hub lack them

_HEADS = (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForMaskedLM,
    AutoModelForSpeechSeq2Seq,
    AutoModelForImageTextToText,
)
_NAMED_HEADS = (AutoModelForImageClassification, AutoModelForCTC, AutoModelForAudioClassification)


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | None = None,
    revision: str | None = None,
    attn: str | None = None,
    device_map: str | Mapping[str, str | int] | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A model, in eval mode, with its attached operation if any.

    A GGUF file is dequantized once, into a folder of the cache that is then loaded: see `gguf_files.dequantized`. Its
    model has the attribute `gguf`: the file's name and tensor types, as in `gguf_files.ABOUT`.

    Args:
        name: A hub id, folder, GGUF file or shipped name (`nano`).
        dtype: "auto" keeps the stored precision; shipped models, stored in bfloat16 to be small, then come in float32.
        device: Where to put it; None: the CPU.
        revision: Branch, tag or commit on the hub; None: the newest.
        attn: transformers' attention implementation; None: the model's default.
        device_map: Spreads a large model over devices as accelerate does ("auto", or module name to device) and takes
            the place of `device`.
        trust_remote_code: Whether to run code that comes with the model.

    Raises `InputError` where the model cannot be found or read, and where its weights lack some of its parameters.
    """
    if device is not None and device_map is not None:
        raise InputError("device and device_map exclude each other")
    if device is not None:
        check_device(device)
    place = resolve(name)
    if (Path(place) / CALIBRATED).exists():
        raise InputError(f"'{name}' is a model saved with a calibration: load it with sinkscope.load")
    shipped = place == str(SHIPPED.get(str(name)))
    if shipped and dtype == "auto":
        dtype = torch.float32
    try:
        config = AutoConfig.from_pretrained(place, revision=revision, trust_remote_code=trust_remote_code)
        model, found = _auto_class(config).from_pretrained(
            place,
            config=config,
            output_loading_info=True,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            **({} if attn is None else {"attn_implementation": attn}),
            **({} if device_map is None else {"device_map": device_map}),
        )
        if (about := Path(place) / ABOUT).is_file():
            model.gguf = json.loads(about.read_text(encoding="utf-8"))
    except InputError:
        raise
    except Exception as error:  # files may hold anything, and what transformers makes of it raises anything
        raise cannot_load(name, error) from error
    # transformers draws them at random, and only its log says so.
    if missing := sorted(key for key in found["missing_keys"] if not any(part in key for part in NOT_READ)):
        raise InputError(
            f"cannot load model '{name}': its weights lack {missing[0]} ({len(missing)} in all), which would be "
            "random; if that is meant, load it with transformers and pass the model"
        )
    if shipped or is_gguf(name):
        model.name_or_path = model.config.name_or_path = str(name)  # records then hold the name, not a place of ours
    return model.to(device).eval() if device else model.eval()


def configuration(name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration of a name. Raises `InputError` as `load` does."""
    try:
        if (place := Path(names.resolve(name))).is_file():
            return gguf_configuration(place)
        return AutoConfig.from_pretrained(own_files(name), revision=revision, trust_remote_code=trust_remote_code)
    except InputError:
        raise
    except Exception as error:  # as in `load`
        raise cannot_load(name, error) from error


def blueprint(name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of a name without its weights: parameters on the meta device, which take no memory.

    Raises `InputError` as `load` does.
    """
    config = configuration(name, revision=revision, trust_remote_code=trust_remote_code)
    try:
        with torch.device("meta"):
            return _auto_class(config).from_config(host_of(config), trust_remote_code=trust_remote_code)
    except InputError:
        raise
    except Exception as error:  # as in `load`
        raise cannot_load(name, error) from error


def load_tokenizer(name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer that belongs to a model. Raises `InputError` where there is none."""
    place = own_files(name)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            place, revision=revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # as in `load`; of a file in a newer format the tokenizers library raises just this
        if pointer := _unfetched(Path(place), "json") or _unfetched(Path(place), "model"):
            raise _not_fetched("no tokenizer for", name, pointer) from error
        reason = first_line(error)  # a line that only announces a list says nothing by itself
        lacks = "its files are missing (put tokenizer.json next to the weights)"
        reason = lacks if reason.endswith(":") else reason
        raise InputError(f"no tokenizer for model '{name}': {reason}") from error
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    if len(tokenizer) < len(special) + 2:  # transformers makes one up, without a vocabulary, where files are missing
        raise InputError(f"no tokenizer for model '{name}': it comes without a vocabulary")
    if is_gguf(name):
        tokenizer.name_or_path = str(name)
    return tokenizer


def check_device(device: str) -> None:
    """Raises `InputError` for a device that torch cannot use."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{device}' cannot be used: {first_line(error)}") from error


def commit_of(name: str, revision: str | None = None) -> str:
    """The commit of a model on the hub. Raises `InputError` where the model, or its commit, cannot be found."""
    try:
        config = cached_file(name, "config.json", revision=revision)
    except (OSError, ValueError) as error:
        raise cannot_load(name, error) from error
    commit = extract_commit_hash(config, None)
    if commit is None:
        raise InputError(f"the commit of model '{name}' is unknown")
    return str(commit)


def own_files(name: str | Path) -> str:
    """Where a model's own configuration, tokenizer and processor are; inside the folder, for one with a calibration."""
    place = resolve(name)
    return str(Path(place) / UNCALIBRATED) if (Path(place) / CALIBRATED).exists() else place


def resolve(name: str | Path) -> str:
    """Where the model is: as `names.resolve` says, for a GGUF file the folder of the cache with its weights."""
    place = names.resolve(name)
    return str(dequantized(Path(place), _auto_class)) if Path(place).is_file() else place


def _auto_class(config: PreTrainedConfig) -> Any:
    """The head the weights were saved with; without that word, the first head for text that the family has.

    A family whose code comes with the model is in no table of transformers: its configuration says which heads it has.
    """
    config = host_of(config)
    architecture = (config.architectures or [None])[0]
    for auto in (*_HEADS, *(_NAMED_HEADS if architecture else ())):
        mapped = auto._model_mapping.get(type(config), None)
        classes = mapped if isinstance(mapped, tuple) else (mapped,)
        if any(cls is not None and architecture in (None, cls.__name__) for cls in classes):
            return auto
    own = getattr(config, "auto_map", None) or {}  # a class for each of some heads, as "module.Class"
    listed = [auto for auto in (*_HEADS, *_NAMED_HEADS, AutoModel) if auto.__name__ in own]
    saved = (auto for auto in listed if str(own[auto.__name__]).rpartition(".")[2] == architecture)
    return next(saved, listed[0] if listed else AutoModel)


def cannot_load(name: str | Path, error: Exception) -> InputError:
    """The error for a model that transformers could not find or read; a near name, shipped or here, is suggested."""
    text = str(name)
    if "/" not in text and not Path(text).exists() and isinstance(error, OSError):
        return names.no_such_model(text)
    missing = (
        "; there is no folder of that name either" if isinstance(error, OSError) and not Path(text).exists() else ""
    )
    weights = _unfetched(Path(text), "safetensors") or _unfetched(Path(text), "bin")
    if pointer := weights or _unfetched(Path(text), "json"):
        return _not_fetched("cannot load", name, pointer)
    reason = first_line(error)
    reason = " ".join(str(error).split()) if reason.endswith(":") else reason  # a line that only announces the next
    return InputError(f"cannot load model '{name}': {reason.rstrip('.')}{missing}")


def _unfetched(folder: Path, end: str) -> Path | None:
    """The first file with this ending that Git LFS has not fetched."""
    files = (path for path in sorted(folder.glob(f"*.{end}")) if path.is_file())
    return next(filter(is_git_pointer, files), None)


def _not_fetched(problem: str, name: str | Path, pointer: Path) -> InputError:
    return InputError(
        f"{problem} model '{name}': {pointer.name} is a Git LFS pointer, not the file: fetch it with  git lfs pull"
    )
