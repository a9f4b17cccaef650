"""From a folder of images or recordings to what a model is given."""

from __future__ import annotations

import hashlib
import inspect
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor, PreTrainedModel

from sinkscope.data.model_inputs import InputReading, start_token
from sinkscope.data.tokenizer import in_chat
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.errors.invalid import first_line
from sinkscope.files import sha256
from sinkscope.hooks import device_of
from sinkscope.model.hub import own_files

WIDTHS = {2: ("<i2", 2**15), 3: ("<i4", 2**31), 4: ("<i4", 2**31)}  # bytes of a sample: its type, and full scale


def files_in(folder: Path, endings: Sequence[str], what: str) -> list[Path]:
    """The files of a folder with one of these endings, sorted by name; hidden ones are left out.

    Raises `InputError` for what is no folder, and for one without such a file.
    """
    if not folder.is_dir():
        raise InputError(f"no such folder of {what}s: '{folder}'")
    files = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in endings and not path.name.startswith(".")
    )
    if not files:
        raise InputError(f"no {what} in the folder '{folder}': expected files ending in {', '.join(endings)}")
    return files


def read_image(path: Path) -> Any:
    """An image in RGB, upright. Raises `InputError` where Pillow is missing, for a file that cannot be read, and for
    one with more than 8 bits a channel.
    """
    _check_pillow()
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            # Cameras store pictures as the sensor lies, with a note on which side is up; transformers heeds it too.
            upright = ImageOps.exif_transpose(image)
            deep = upright.mode.startswith(("I", "F"))
            converted = upright.convert("RGB")
    except (OSError, ValueError, SyntaxError, TypeError, struct.error, Image.DecompressionBombError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged, or no image"
        raise InputError(f"cannot read the image {path}: {reason}") from error
    if deep:  # Pillow cuts such values at 255: what is above becomes white
        raise InputError(f"the image {path} has more than 8 bits a channel: convert it to 8 bits first")
    return converted


def _check_pillow() -> None:
    if find_spec("PIL") is None:
        raise InputError("reading images needs the package pillow: pip install 'sinkscope[images]'")


def read_recording(path: Path, rate: int) -> Float[np.ndarray, "time"]:
    """A WAV file's samples in [-1, 1], the mean over its channels.

    Raises `InputError` for a file that cannot be read, one without samples, and one of another sampling rate than
    `rate` Hz: resampling is left to tools made for it.
    """
    try:
        with wave.open(str(path), "rb") as stream:
            sampling_rate, channels, width = stream.getframerate(), stream.getnchannels(), stream.getsampwidth()
            raw = stream.readframes(stream.getnframes())
    except (wave.Error, EOFError, OSError, RuntimeError) as error:  # the last where a chunk is longer than the file
        reason = str(error) or "it ends too early"
        raise InputError(f"cannot read the recording {path} as a PCM WAV file: {reason}") from error
    if width not in (1, *WIDTHS):
        raise InputError(f"cannot read the recording {path}: it has {8 * width} bits a sample, at most 32 are read")
    if sampling_rate != rate:
        raise InputError(
            f"{path} has {sampling_rate} samples a second, the model reads {rate}: convert it, such as with "
            f"`ffmpeg -i {path.name} -ar {rate} resampled.wav`"
        )
    samples = _scaled(raw, width)
    if len(samples) < channels:
        raise InputError(f"the recording {path} is empty")
    # (frame, channel): channels are interleaved, and an incomplete last frame is dropped.
    return samples[: len(samples) // channels * channels].reshape(-1, channels).mean(1)


def _scaled(raw: bytes, width: int) -> Float[np.ndarray, "time"]:
    """Little-endian PCM of 1 (unsigned), 2, 3 or 4 bytes a sample, as fractions of full scale."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    kind, full = WIDTHS[width]
    if width == 3:  # a byte of zeros below each sample makes it four
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw[: len(raw) // 3 * 3], np.uint8).reshape(-1, 3)
        raw = wide.tobytes()
    usable = len(raw) // np.dtype(kind).itemsize * np.dtype(kind).itemsize
    return np.frombuffer(raw[:usable], kind).astype(np.float32) / full


PROMPT = "Describe what is there."
"""The prompt for each image or recording, for models that read text too."""


@dataclass(frozen=True)
class Medium:
    """A kind of file that models read: how it is called, with its article, its endings, and the arguments that take it.

    In a processor of files and text, `preparer` is the part that prepares the files, and `placeholder` the token that
    represents one; `content` is its type in a message.
    """

    what: str
    article: str
    endings: tuple[str, ...]
    arguments: tuple[str, ...]
    preparer: str
    placeholder: str
    content: str


MEDIA = {
    "images": Medium(
        "image",
        "an",
        (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
        ("pixel_values",),
        "image_processor",
        "image_token",
        "image",
    ),
    "audio": Medium(
        "recording",
        "a",
        (".wav",),
        ("input_features", "input_values"),
        "feature_extractor",
        "audio_token",
        "audio",
    ),
}


def media_digest(kind: str, folder: Path, samples: int) -> str:
    """sha256 over the names and contents of the files that would be read. Raises `InputError` as `files_in` does."""
    medium = MEDIA[kind]
    digest = hashlib.sha256()
    for path in files_in(folder, medium.endings, medium.what)[:samples]:
        digest.update(f"{path.name}\n{sha256(path)}\n".encode())
    return digest.hexdigest()


def media_reading(
    kind: str,
    folder: Path,
    model: PreTrainedModel,
    name: str,
    *,
    samples: int,
    tokens: int,
    revision: str | None = None,
    prompt: str | None = None,
) -> InputReading:
    """Images or recordings of a folder as inputs of a model.

    The image processor, feature extractor or processor that comes with the model prepares them; files of one prepared
    size go through the model together, others by themselves, so that nothing is padded.

    Args:
        kind: "images" or "audio".
        folder: Where the files are.
        model: The model that reads them.
        name: Its hub id or folder, which holds the processor.
        samples: How many files, the first by name.
        tokens: What a decoder reads: that many tokens that the model itself writes about the input, the likeliest at
            each step and never an end.
        revision: As in `load`.
        prompt: Given with each file to a model that reads text too; None: `PROMPT`.

    Raises `UnsupportedModelError` for a model that reads nothing of the kind, and `InputError` where the model comes
    without processor, the folder without files, a file cannot be read, or what was prepared does not fit the model.
    """
    medium = MEDIA[kind]
    takes = inspect.signature(model.forward).parameters
    if not any(argument in takes for argument in medium.arguments):
        raise UnsupportedModelError(f"{type(model).__name__} reads no {medium.what}s: it reads {model.main_input_name}")
    with_text = "input_ids" in takes
    if with_text and kind == "audio" and model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{type(model).__name__} reads text instead of recordings: sinkscope.measure takes either"
        )
    if prompt is not None and not with_text:
        raise InputError(f"a prompt is for models that read text with {medium.what}s, not {type(model).__name__}")
    prompt = PROMPT if prompt is None else prompt
    if kind == "images":
        _check_pillow()  # before the image processor, whose own message says less
    prepare = _preparing(kind, name, revision, prompt if with_text else None)
    files = files_in(folder, medium.endings, medium.what)
    chosen = files[:samples]
    fitting = [_in_precision(model, part) for part in _grouped([_prepared(prepare, path) for path in chosen])]
    try_out_media(model, fitting, tokens, f"what its processor makes of {medium.what}s")
    batches = tuple(written(model, part, tokens) if model.config.is_encoder_decoder else part for part in fitting)
    of = "" if len(chosen) == len(files) else f" of {len(files)}"
    texts = f', each with the text "{prompt}"' if with_text else ""
    decoder = f"; the decoder reads the {tokens} tokens it writes itself" if model.config.is_encoder_decoder else ""
    shown = f"{chosen[0].name} to {chosen[-1].name}" if len(chosen) > 1 else chosen[0].name
    description = f"{len(chosen)}{of} {medium.what}{'s'[: len(chosen) != 1]} ({shown}) from {folder}{texts}{decoder}"
    return InputReading(batches, f"what the model puts first for {medium.article} {medium.what}", description)


def _preparing(kind: str, name: str, revision: str | None, prompt: str | None) -> Callable[[Path], Mapping[str, Any]]:
    """What turns a file into model inputs with one sample."""
    if prompt is not None:
        medium = MEDIA[kind]
        return partial(_beside_text, _processor(medium, name, revision), medium, prompt)
    if kind == "images":
        processor = _loaded(AutoImageProcessor, "image processor", name, revision)
        return lambda path: processor(images=[read_image(path)], return_tensors="pt")
    extractor = _loaded(AutoFeatureExtractor, "feature extractor", name, revision)
    rate = _rate(extractor, name)
    return lambda path: extractor([read_recording(path, rate)], sampling_rate=rate, return_tensors="pt")


def _rate(extractor: Any, name: str) -> int:
    """Samples a second."""
    rate = getattr(extractor, "sampling_rate", None)
    if not isinstance(rate, int):
        raise UnsupportedModelError(f"the feature extractor of model '{name}' reads no recordings")
    return rate


def _beside_text(processor: Any, medium: Medium, prompt: str, path: Path) -> Mapping[str, Any]:
    """A file in a text: as the chat template writes it, else after its placeholder token, else as a separate input."""
    if getattr(processor, "chat_template", None):
        content = [{"type": medium.content}, {"type": "text", "text": prompt}]
        text = in_chat(processor, [{"role": "user", "content": content}], add_generation_prompt=True)
    else:
        token = getattr(processor, medium.placeholder, None)
        text = prompt if token is None else f"{token}\n{prompt}"
    options: dict[str, Any] = {"return_tensors": "pt"}
    bos = processor.tokenizer.bos_token
    if bos is not None and text.startswith(bos):
        options["add_special_tokens"] = False  # the template wrote a BOS, and the tokenizer would add another
    if medium.content == "image":
        return processor(images=[read_image(path)], text=[text], **options)
    rate = processor.feature_extractor.sampling_rate
    return processor(audio=[read_recording(path, rate)], text=[text], sampling_rate=rate, **options)


def processor_of(kind: str, name: str, revision: str | None = None) -> Any:
    """A model's processor for files of a kind and text. Raises `InputError` where there is none."""
    return _processor(MEDIA[kind], name, revision)


def _processor(medium: Medium, name: str, revision: str | None) -> Any:
    """The processor for files of a kind and text."""
    processor = _loaded(AutoProcessor, "processor", name, revision)
    if not (hasattr(processor, "tokenizer") and hasattr(processor, medium.preparer)):
        raise InputError(f"no processor for model '{name}': it comes with {type(processor).__name__} alone")
    if medium.content == "audio":
        _rate(processor.feature_extractor, name)
    return processor


def _loaded(auto: Any, what: str, name: str, revision: str | None) -> Any:
    try:
        loaded = auto.from_pretrained(own_files(name), revision=revision, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        reason = first_line(error).split(". If you")[0]
        raise InputError(f"no {what} for model '{name}': {reason}") from error
    return loaded


def _prepared(prepare: Callable[[Path], Mapping[str, Any]], path: Path) -> dict[str, Tensor]:
    try:
        return {name: value for name, value in prepare(path).items() if isinstance(value, Tensor)}
    except InputError:
        raise
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError, IndexError) as error:
        reason = first_line(error)
        raise InputError(f"the model's processor cannot prepare {path}: {reason}") from error


def _grouped(prepared: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Those of equal sizes as one dict, in the order of their first file; a file of several rows stays alone."""
    groups: dict[object, list[dict[str, Tensor]]] = {}
    for number, inputs in enumerate(prepared):
        alike = all(value.ndim and len(value) == 1 for value in inputs.values())
        size = tuple(sorted((name, tuple(value.shape), str(value.dtype)) for name, value in inputs.items()))
        groups.setdefault(size if alike else number, []).append(inputs)
    return [
        {name: torch.cat([inputs[name] for inputs in group]) for name in group[0]} if len(group) > 1 else group[0]
        for group in groups.values()
    ]


def _in_precision(model: PreTrainedModel, part: dict[str, Tensor]) -> dict[str, Tensor]:
    dtype = model.dtype  # of the first floating-point weight: quantized ones are integers
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in part.items()}


AT_ONCE = 8  # samples that are written about together


def try_out_media(model: PreTrainedModel, parts: Sequence[dict[str, Tensor]], tokens: int, what: str) -> None:
    """One sample of the smallest and of the largest size through the model.

    A processor whose sizes are not the model's is then said before anything is measured. Raises `InputError`.
    """
    by_size = sorted(parts, key=lambda part: sum(value[:1].numel() for value in part.values()))
    for part in (by_size[0], by_size[-1])[: len(parts)]:
        samples = len(next(iter(part.values())))
        # Patches of several images share one tensor in some families: then all samples go through.
        alike = all(len(value) == samples for value in part.values())
        one = {name: value[:1] for name, value in part.items()} if alike else part
        try:
            if model.config.is_encoder_decoder and "decoder_input_ids" not in one:
                written(model, one, min(2, tokens))
            else:
                with torch.no_grad():
                    model(**{name: value.to(device_of(model)) for name, value in one.items()})
        except InputError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            sizes = ", ".join(f"{name} {' × '.join(map(str, value.shape))}" for name, value in one.items())
            reason = first_line(error)
            raise InputError(f"{type(model).__name__} cannot read {what} ({sizes}): {reason}") from error


def decoder_positions(model: PreTrainedModel) -> int | None:
    """How many tokens the decoder has positions for; None where its configuration gives no number."""
    config = model.config.get_text_config(decoder=True)
    sizes = (getattr(config, name, None) for name in ("max_target_positions", "max_position_embeddings"))
    return next((size for size in sizes if isinstance(size, int)), None)


def written(model: PreTrainedModel, inputs: dict[str, Tensor], tokens: int) -> dict[str, Tensor]:
    """The inputs with `decoder_input_ids` (N, tokens): the start token and the likeliest token after token.

    Tokens that end a text are never taken, so that every row has the same length. Raises `UnsupportedModelError` for a
    model without a head that writes, `InputError` for more tokens than its decoder has positions.
    """
    limit = decoder_positions(model)
    if limit is not None and tokens > limit:
        raise InputError(f"{tokens} tokens, but the decoder has positions for {limit}: use at most {limit}")
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no head that writes what its decoder could read")
    samples = len(next(iter(inputs.values())))
    rows = [
        _row({name: value[start : start + AT_ONCE] for name, value in inputs.items()}, model, tokens)
        for start in range(0, samples, AT_ONCE)
    ]
    return {**inputs, "decoder_input_ids": torch.cat(rows)}


def _row(inputs: dict[str, Tensor], model: PreTrainedModel, tokens: int) -> Tensor:
    device = device_of(model)
    on_device = {name: value.to(device) for name, value in inputs.items()}
    count = len(next(iter(inputs.values())))
    ids = torch.full((count, 1), start_token(model), device=device)
    ends = _ends(model)
    with torch.no_grad():
        encoded = None
        while ids.shape[1] < tokens:
            known = on_device if encoded is None else {**on_device, "encoder_outputs": encoded}
            output = model(**known, decoder_input_ids=ids, use_cache=False)
            # The encoder runs once, in the first pass.
            encoded = (output.encoder_last_hidden_state,)
            logits = output.logits[:, -1].float()
            logits[:, ends] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids.cpu()


def _ends(model: PreTrainedModel) -> list[int]:
    settings = getattr(model, "generation_config", None)
    ends = getattr(settings, "eos_token_id", None)
    if ends is None:
        ends = model.config.get_text_config(decoder=True).eos_token_id
    rows = [ends] if isinstance(ends, int) else list(ends or [])
    # An end beyond the head has no column in its logits.
    return [token for token in rows if token < model.get_output_embeddings().weight.shape[0]]
