"""Tiny models that read images and recordings, in folders with their processors, and files for them to read."""

from __future__ import annotations

import struct
import wave
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from sinkscope.data.tokenizer import train_bpe
from tests.families.inputs import IMAGE_TOKEN, PATCH, SIDE
from tests.families.registry import FAMILIES

RATE = 16_000
needs_torchvision = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23") and find_spec("torchvision") is None,
    reason="older releases of transformers load this image processor with torchvision alone",
)


def saved_vit(folder: Path) -> Path:
    FAMILIES["vit"].build().save_pretrained(folder)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


def saved_clip(folder: Path) -> Path:
    """Two towers: the text's tokenizer knows fewer tokens than the tower."""
    FAMILIES["clip"].build().save_pretrained(folder)
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    words = " ".join(chr(97 + letter) for letter in range(26))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=_small(words), pad_token="<pad>")
    transformers.CLIPProcessor(processor, tokenizer).save_pretrained(folder)
    return folder


def _small(words: str) -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<pad>": 0, "<unk>": 1, **{word: index for index, word in enumerate(words.split(), start=2)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


def saved_wav2vec2(folder: Path) -> Path:
    FAMILIES["wav2vec2"].build().save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained(folder)
    return folder


def saved_whisper(folder: Path) -> Path:
    """A second of sound is 100 frames, 50 after down-sampling."""
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 8, "max_source_positions": 50}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(
        vocab_size=97,
        d_model=16,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **sizes,
        **tokens,
    )
    torch.manual_seed(0)
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    return folder


def saved_hearing(folder: Path, mels: int = 8) -> Path:
    """Qwen2-Audio, which reads text beside a recording: a second is 100 frames, 25 tokens among the others."""
    tower = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "d_model": 32}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Qwen2AudioConfig(
        audio_config={**tower, "num_mel_bins": mels, "max_source_positions": 50},
        text_config={**sizes, "model_type": "qwen2", "vocab_size": 97, "num_key_value_heads": 2},
        audio_token_index=95,
    )
    torch.manual_seed(0)
    transformers.Qwen2AudioForConditionalGeneration(config).save_pretrained(folder)
    backend = _small(" ".join(chr(97 + letter) for letter in range(26)))
    backend.add_tokens([f"<filler{number}>" for number in range(95 - backend.get_vocab_size())])
    backend.add_special_tokens(["<|AUDIO|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    ears = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    transformers.Qwen2AudioProcessor(ears, tokenizer).save_pretrained(folder)
    return folder


def saved_llava(folder: Path, layers: int = 5) -> Path:
    """LLaVA, which reads text beside an image: 6 × 6 patches are 36 tokens among the others."""
    found = FAMILIES["llava"]
    options = {**found.options, "text_config": {**found.options["text_config"], "num_hidden_layers": layers}}
    torch.manual_seed(0)
    transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(**options)).save_pretrained(folder)
    backend = _small(" ".join(chr(97 + letter) for letter in range(26)))
    backend.add_tokens([f"<filler{number}>" for number in range(IMAGE_TOKEN - backend.get_vocab_size())])
    backend.add_special_tokens(["<image>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    eyes = CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    strategy = options["vision_feature_select_strategy"]  # leaves out the one token that is no patch
    made = transformers.LlavaProcessor(
        eyes, tokenizer, PATCH, vision_feature_select_strategy=strategy, num_additional_image_tokens=1
    )
    made.save_pretrained(folder)
    return folder


def saved_classifier(folder: Path) -> Path:
    """A ViT that tells five classes apart."""
    config = FAMILIES["vit"].build().config
    config.num_labels = 5
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


def saved_pair(folder: Path, config: type, text: str) -> Path:
    """BART or T5 with a tokenizer trained on `text`, whose BOS is 0, EOS 1, padding 2."""
    tokenizer = train_bpe([text], 300)
    tokens = {"pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1}
    sides = ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    bart = {"max_position_embeddings": 64, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, **dict.fromkeys(sides, 2)}
    t5 = {"d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    torch.manual_seed(0)
    sizes = t5 if config is transformers.T5Config else bart
    chosen = config(vocab_size=300, d_model=16, **sizes, **tokens)
    transformers.AutoModelForSeq2SeqLM.from_config(chosen).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def images(folder: Path, sizes: Sequence[tuple[int, int]] = ((30, 40), (34, 40), (24, 24))) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (height, width) in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def sine(count: int, step: float = 0.1) -> np.ndarray:
    """Fractions of full scale."""
    return 0.5 * np.sin(step * np.arange(count))


def recording(path: Path, channels: Sequence[np.ndarray], width: int = 2, rate: int = RATE) -> Path:
    """A WAV file of PCM with `width` bytes a sample."""
    full = 2 ** (8 * width - 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(len(channels))
        stream.setsampwidth(width)
        stream.setframerate(rate)
        for samples in zip(*channels, strict=True):
            for sample in samples:
                number = round(float(sample) * (full - 1))
                raw = bytes([number + 128]) if width == 1 else struct.pack("<q", number)[:width]
                stream.writeframesraw(raw)
    return path


def recordings(folder: Path, counts: Sequence[int] = (800, 1600, 800)) -> Path:
    for number, count in enumerate(counts):
        recording(folder / f"{number}.wav", [sine(count, 0.05 * (number + 1))])
    return folder
