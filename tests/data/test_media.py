"""From a folder of images or recordings to what a model is given: what its own processor makes of each file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from sinkscope.data import InputReading
from sinkscope.data.media import MEDIA, PROMPT, media_digest, media_reading, read_recording, written
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.model import load
from tests.families.inputs import IMAGE_TOKEN
from tests.families.processors import (
    RATE,
    images,
    needs_torchvision,
    recordings,
    saved_clip,
    saved_hearing,
    saved_llava,
    saved_vit,
    saved_wav2vec2,
    saved_whisper,
)
from tests.families.registry import FAMILIES


def read(kind: str, place: Path, folder: Path, **options: object) -> InputReading:
    return media_reading(kind, folder, load(place), str(place), **{"samples": 9, "tokens": 6, **options})


@needs_torchvision
def test_images_are_what_the_models_processor_makes_of_each(tmp_path: Path) -> None:
    place, folder = saved_vit(tmp_path / "vit"), images(tmp_path / "images")
    [part] = read("images", place, folder).parts
    processor = AutoImageProcessor.from_pretrained(place)
    paths = sorted(folder.iterdir())
    expected = [processor(images=[Image.open(path)], return_tensors="pt")["pixel_values"] for path in paths]
    assert torch.equal(part["pixel_values"], torch.cat(expected))


@needs_torchvision
def test_the_first_samples_are_taken_and_said(tmp_path: Path) -> None:
    found = read("images", saved_vit(tmp_path / "vit"), images(tmp_path / "images"), samples=2)
    assert len(found.parts[0]["pixel_values"]) == 2
    assert found.description.startswith("2 of 3 images (0.png to 1.png)")


def test_recordings_of_one_length_go_together_and_nothing_is_padded(tmp_path: Path) -> None:
    place, folder = saved_wav2vec2(tmp_path / "model"), recordings(tmp_path / "sounds", (800, 1600, 800))
    found = read("audio", place, folder)
    assert [tuple(part["input_values"].shape) for part in found.parts] == [(2, 800), (1, 1600)]
    assert found.description.startswith("3 recordings (0.wav to 2.wav)")  # not to 1.wav, which goes last
    extractor = AutoFeatureExtractor.from_pretrained(place)
    for row, name in ((found.parts[0]["input_values"][1], "2.wav"), (found.parts[1]["input_values"][0], "1.wav")):
        alone = extractor([read_recording(folder / name, RATE)], sampling_rate=RATE, return_tensors="pt")
        assert torch.equal(row, alone["input_values"][0])


def test_inputs_are_as_precise_as_the_first_weights_that_are_no_integers(tmp_path: Path) -> None:
    place, folder = saved_wav2vec2(tmp_path / "model"), recordings(tmp_path / "sounds", (800,))
    model = load(place).bfloat16()
    model.masked_spec_embed = torch.nn.Parameter(model.masked_spec_embed.char(), requires_grad=False)
    assert next(model.parameters()).dtype == torch.int8
    (part,) = media_reading("audio", folder, model, str(place), samples=9, tokens=6).parts
    assert part["input_values"].dtype == torch.bfloat16


def test_a_decoder_reads_what_the_model_writes_token_by_token(tmp_path: Path) -> None:
    place = saved_whisper(tmp_path / "model")
    [part] = read("audio", place, recordings(tmp_path / "sounds", (800, 900)), tokens=6).parts
    model, ids = load(place), part["decoder_input_ids"]
    assert ids.shape == (2, 6)
    assert set(ids[:, 0].tolist()) == {3}
    with torch.no_grad():
        logits = model(input_features=part["input_features"], decoder_input_ids=ids).logits
    logits[..., 2] = -torch.inf  # what ends a text
    assert torch.equal(logits.argmax(-1)[:, :-1], ids[:, 1:])
    model.generation_config.eos_token_id = end = int(ids[0, 1])  # what it would write, were it not an end
    assert end not in written(model, {"input_features": part["input_features"]}, 6)["decoder_input_ids"][:, 1:]
    with pytest.raises(InputError, match="the decoder has positions for 32"):
        read("audio", place, tmp_path / "sounds", tokens=33)


def test_a_model_that_reads_text_too_is_given_a_prompt(tmp_path: Path) -> None:
    place, folder = saved_clip(tmp_path / "clip"), images(tmp_path / "images")
    found = read("images", place, folder, prompt="a b c")
    [part] = found.parts
    assert part["input_ids"].tolist() == [[2, 3, 4]] * 3
    assert 'each with the text "a b c"' in found.description
    assert found.one(64)["pixel_values"].shape[0] == 1


def test_an_empty_prompt_is_a_prompt(tmp_path: Path) -> None:
    place, folder = saved_llava(tmp_path / "model"), images(tmp_path / "images")
    found = read("images", place, folder, prompt="")
    assert 'each with the text ""' in found.description
    assert {*found.parts[0]["input_ids"].flatten().tolist()} == {IMAGE_TOKEN}


@pytest.mark.parametrize(("kind", "saved"), [("images", saved_llava), ("audio", saved_hearing)])
def test_a_chat_template_that_writes_a_bos_gets_no_second_one(
    kind: str, saved: Callable[..., Path], tmp_path: Path
) -> None:
    """Where the tokenizer adds one to every text, too; a template that writes none leaves it to the tokenizer."""
    place, medium = saved(tmp_path / "model"), MEDIA[kind]
    folder = images(tmp_path / "files") if kind == "images" else recordings(tmp_path / "files", (1600,))
    processor = AutoProcessor.from_pretrained(place)
    processor.tokenizer.add_special_tokens({"bos_token": "<unk>"})
    processor.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", 1)]
    )
    rows = []
    for start in ("{{ bos_token }}", ""):
        processor.chat_template = f"{start}{getattr(processor, medium.placeholder)} a b c"
        processor.save_pretrained(place)
        rows.append(read(kind, place, folder).parts[0]["input_ids"][0].tolist())
    assert rows[0] == rows[1]
    assert [place for place, token in enumerate(rows[0]) if token == 1] == [0]


def test_a_chat_template_that_cannot_be_filled_is_one_line(tmp_path: Path) -> None:
    place, folder = saved_llava(tmp_path / "model"), images(tmp_path / "files")
    processor = AutoProcessor.from_pretrained(place)
    processor.chat_template = "{{ raise_exception('no images here') }}"
    processor.save_pretrained(place)
    with pytest.raises(InputError, match="the chat template cannot be filled: no images here"):
        read("images", place, folder)


def test_a_recording_stands_in_a_text(tmp_path: Path) -> None:
    """As many places as the model hears frames, where the text says so, and the prompt behind them."""
    place, folder = saved_hearing(tmp_path / "model"), recordings(tmp_path / "sounds", (1600, 3200, 1600))
    found = read("audio", place, folder, prompt="a b c d")
    assert [len(part["input_ids"]) for part in found.parts] == [2, 1]
    for part, heard in zip(found.parts, (2, 5), strict=True):
        for row, mask in zip(part["input_ids"], part["feature_attention_mask"], strict=True):
            places = (row == 95).nonzero()[:, 0]
            frames = int(mask.sum())
            assert len(places) == ((frames - 1) // 2 + 1 - 2) // 2 + 1 == heard
            after = row[places[-1] :].tolist()
            assert [2, 3, 4, 5] in [after[at : at + 4] for at in range(len(after))]
    assert 'each with the text "a b c d"' in found.description
    extractor = AutoFeatureExtractor.from_pretrained(place)
    alone = extractor([read_recording(folder / "1.wav", RATE)], sampling_rate=RATE, return_tensors="pt")
    assert torch.equal(found.parts[1]["input_features"], alone["input_features"])
    assert f'each with the text "{PROMPT}"' in read("audio", place, folder).description


@pytest.mark.parametrize("saved", [saved_hearing, saved_whisper])
def test_a_processor_whose_sizes_are_not_the_models_is_said(saved: Callable[..., Path], tmp_path: Path) -> None:
    place, folder = saved(tmp_path / "model"), recordings(tmp_path / "sounds")
    kind = AutoFeatureExtractor.from_pretrained(place)
    other = type(kind)(feature_size=10, chunk_length=1)
    if saved is saved_hearing:
        processor = AutoProcessor.from_pretrained(place)
        processor.feature_extractor = other
        processor.save_pretrained(place)
    else:
        other.save_pretrained(place)
    with pytest.raises(InputError, match=r"what its processor makes of recordings \(.*1 × 10 × 100") as said:
        read("audio", place, folder)
    assert "\n" not in str(said.value)


@needs_torchvision
def test_an_image_processor_of_another_size_is_said(tmp_path: Path) -> None:
    place, folder = saved_vit(tmp_path / "vit"), images(tmp_path / "images")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(place)
    with pytest.raises(InputError, match=r"cannot read what its processor makes of images \(pixel_values 1 × 3 × 32"):
        read("images", place, folder)


def test_what_a_model_does_not_read_is_said(tmp_path: Path) -> None:
    vit, clip = saved_vit(tmp_path / "vit"), saved_clip(tmp_path / "clip")
    folder = images(tmp_path / "images")
    with pytest.raises(UnsupportedModelError, match="ViTModel reads no recordings: it reads pixel_values"):
        read("audio", vit, folder)
    with pytest.raises(InputError, match="a prompt is for models that read text"):
        read("images", vit, folder, prompt="what")
    for name in ("preprocessor_config.json", "processor_config.json"):
        (vit / name).unlink(missing_ok=True)
        (clip / name).unlink(missing_ok=True)
    with pytest.raises(InputError, match="no image processor for model"):
        read("images", vit, folder)
    with pytest.raises(InputError, match="no processor for model"):
        read("images", clip, folder)
    FAMILIES["llama"].build().save_pretrained(tmp_path / "llama")
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM reads no images: it reads input_ids"):
        read("images", tmp_path / "llama", folder)


def test_the_digest_is_that_of_the_files_that_are_read(tmp_path: Path) -> None:
    folder = images(tmp_path / "images")
    before = media_digest("images", folder, 2)
    (folder / "2.png").write_bytes(b"another")
    assert media_digest("images", folder, 2) == before != media_digest("images", folder, 3)
    (folder / "1.png").write_bytes(b"another")
    assert media_digest("images", folder, 2) != before
    assert set(MEDIA) == {"images", "audio"}
