"""Reading an image, or a recording, from its file."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.errors import InputError

WIDTHS = {2: ("<i2", 2**15), 3: ("<i4", 2**31), 4: ("<i4", 2**31)}  # bytes of a sample: its type, and full scale


def files_in(folder: Path, endings: Sequence[str], what: str) -> list[Path]:
    """The files of a folder with one of these endings, sorted by name; hidden ones are left out.

    Raises `InputError` for what is no folder, and for one without such a file.
    """
    if not folder.is_dir():
        raise InputError(f"no such folder of {what}s: '{folder}'")
    found = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in endings and not path.name.startswith(".")
    )
    if not found:
        raise InputError(f"no {what} in the folder '{folder}': expected files ending in {', '.join(endings)}")
    return found


def read_image(path: Path) -> Any:
    """An image in RGB. Raises `InputError` for a file that cannot be read, and where Pillow is missing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("reading images needs the package pillow: pip install 'sinkscope[images]'") from error
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged, or no image"
        raise InputError(f"cannot read the image {path}: {reason}") from error


def read_recording(path: Path, rate: int) -> Float[np.ndarray, "time"]:
    """A WAV file's samples in [-1, 1], the mean over its channels.

    Raises `InputError` for a file that cannot be read, one without samples, and one of another sampling rate than
    `rate` Hz: resampling is left to tools made for it.
    """
    try:
        with wave.open(str(path), "rb") as stream:
            found, channels, width = stream.getframerate(), stream.getnchannels(), stream.getsampwidth()
            raw = stream.readframes(stream.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        reason = str(error) or "it ends too early"
        raise InputError(f"cannot read the recording {path} as a PCM WAV file: {reason}") from error
    if found != rate:
        raise InputError(
            f"{path} has {found} samples a second, the model reads {rate}: convert it, such as with "
            f"`ffmpeg -i {path.name} -ar {rate} resampled.wav`"
        )
    samples = _scaled(raw, width)
    if len(samples) < channels:
        raise InputError(f"the recording {path} is empty")
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
