"""Reading images and recordings from their files."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sinkscope.data.media import files_in, media_reading, read_image, read_recording
from sinkscope.errors import InputError
from tests.families.processors import RATE, recording, sine
from tests.families.registry import FAMILIES


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_planted_sine_is_read_back_from_every_width(tmp_path: Path, width: int) -> None:
    path = recording(tmp_path / "a.wav", [sine(100)], width)
    assert read_recording(path, RATE) == pytest.approx(sine(100), abs=2.0 ** (2 - 8 * min(width, 3)))


def test_channels_are_averaged(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.wav", [sine(50), np.zeros(50)])
    assert read_recording(path, RATE) == pytest.approx(sine(50) / 2, abs=1e-4)


def test_another_sampling_rate_is_refused_with_both_rates(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.wav", [sine(50)], rate=8000)
    with pytest.raises(InputError, match=r"8000 samples a second, the model reads 16000: convert it"):
        read_recording(path, RATE)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"def return"])
def test_what_is_no_recording_is_bad_input(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read the recording .*a\.wav"):
        read_recording(tmp_path / "a.wav", RATE)


def test_a_recording_of_more_bits_than_are_read_is_bad_input(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.wav", [sine(50)])
    content = bytearray(path.read_bytes())
    content[32:36] = struct.pack("<HH", 8, 64)  # bytes of a frame, bits of a sample
    path.write_bytes(content)
    with pytest.raises(InputError, match="it has 64 bits a sample, at most 32 are read"):
        read_recording(path, RATE)


def test_a_chunk_that_is_longer_than_its_file_is_bad_input(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.wav", [sine(50)])
    content = bytearray(path.read_bytes())
    content[12:16] = b"junk"  # the format's chunk: the reader skips it, from the file's end on
    content[16:20] = struct.pack("<I", 2**31 - 2)
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot read the recording"):
        read_recording(path, RATE)


def test_an_empty_recording_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        read_recording(recording(tmp_path / "a.wav", [np.zeros(0)]), RATE)


def test_images_come_in_three_colors(tmp_path: Path) -> None:
    gray = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(gray).save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png")), np.stack([gray] * 3, -1))


def test_a_photo_is_read_upright(tmp_path: Path) -> None:
    """As the camera's note says: here the file's left column is the top row."""
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:, :8] = 255
    notes = Image.Exif()
    notes[0x0112] = 6  # orientation: to be turned by 90° clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=notes)
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png"))[:, :, 0], np.rot90(pixels, -1))


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_values_that_eight_bits_cannot_hold_are_refused(tmp_path: Path, kind: type) -> None:
    Image.fromarray(np.full((4, 4), 1000, kind)).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"a\.tif has more than 8 bits a channel"):
        read_image(tmp_path / "a.tif")


def test_what_is_no_image_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(InputError, match=r"cannot read the image .*a\.png: it is damaged, or no image"):
        read_image(tmp_path / "a.png")
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "b.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:60])
    with pytest.raises(InputError, match=r"cannot read the image .*b\.png"):
        read_image(tmp_path / "b.png")


def test_without_pillow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"sinkscope\[images\]"):
        read_image(tmp_path / "a.png")
    model = FAMILIES["vit"].build()  # before its processor is looked for, which it lacks
    with pytest.raises(InputError, match=r"sinkscope\[images\]"):
        media_reading("images", tmp_path, model, "vit", samples=1, tokens=1)


def test_files_are_sorted_and_others_left_out(tmp_path: Path) -> None:
    for name in ("b.png", "a.PNG", "c.txt", ".d.png"):
        (tmp_path / name).touch()
    assert [path.name for path in files_in(tmp_path, (".png",), "image")] == ["a.PNG", "b.png"]
    with pytest.raises(InputError, match=r"no recording in the folder .*expected files ending in \.wav"):
        files_in(tmp_path, (".wav",), "recording")
    with pytest.raises(InputError, match="no such folder of images"):
        files_in(tmp_path / "none", (".png",), "image")
