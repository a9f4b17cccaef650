"""Random inputs for tiny models: one function for each kind of thing that models read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

VOCABULARY, IMAGE_TOKEN = 97, 95
SIDE, PATCH, COLOURS = 24, 4, 3  # of images
MELS, FRAMES = 8, 48  # of sounds


def tokens(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """Token ids."""
    return {"input_ids": _ids(samples, length, generator)}


def pairs(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """Source and target ids, of unequal length."""
    ids = _ids(samples, length, generator)
    return {"input_ids": ids, "decoder_input_ids": ids[:, 5:]}


def pixels(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """Images alone."""
    return {"pixel_values": torch.randn(samples, COLOURS, SIDE, SIDE, generator=generator)}


def spectrograms(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """Sounds as spectrograms, and what is written down."""
    features = torch.randn(samples, MELS, FRAMES, generator=generator)
    return {"input_features": features, "decoder_input_ids": _ids(samples, length, generator)}


def waves(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """Sounds as they are."""
    return {"input_values": torch.randn(samples, 800, generator=generator)}


def text_and_image(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """A text and an image, each for a tower of its own."""
    return tokens(samples, length, generator) | pixels(samples, length, generator)


def image_in_text(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """A text with a place for each patch of one image."""
    return _placed(samples, length, (SIDE // PATCH) ** 2, generator) | pixels(samples, length, generator)


def image_in_typed_text(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """The same, told which tokens stand for the image."""
    given = image_in_text(samples, length, generator)
    given["token_type_ids"] = (given["input_ids"] == IMAGE_TOKEN).long()
    return given


def tiles_in_text(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """A text with a list of images, four patches to a place."""
    image = torch.randn(samples, 1, COLOURS, SIDE, SIDE, generator=generator)
    return _placed(samples, length, (SIDE // PATCH) ** 2 // 4, generator) | {"pixel_values": image}


def patches_in_text(samples: int, length: int, generator: Generator) -> dict[str, Tensor]:
    """A text with images cut into patches, all in one row, four patches to a place."""
    side = SIDE // PATCH
    given = _placed(samples, length, side**2 // 4, generator)
    return given | {
        "pixel_values": torch.randn(samples * side**2, COLOURS * PATCH**2, generator=generator),
        "image_grid_thw": torch.tensor([[1, side, side]] * samples),
        "mm_token_type_ids": (given["input_ids"] == IMAGE_TOKEN).int(),
    }


INPUTS: dict[str, Callable[[int, int, Generator], dict[str, Tensor]]] = {
    "tokens": tokens,
    "pairs": pairs,
    "pixels": pixels,
    "spectrograms": spectrograms,
    "waves": waves,
    "text_and_image": text_and_image,
    "image_in_text": image_in_text,
    "image_in_typed_text": image_in_typed_text,
    "tiles_in_text": tiles_in_text,
    "patches_in_text": patches_in_text,
}


def _ids(samples: int, length: int, generator: Generator) -> Tensor:
    return torch.randint(3, IMAGE_TOKEN - 3, (samples, length), generator=generator)


def _placed(samples: int, length: int, places: int, generator: Generator) -> dict[str, Tensor]:
    """Ids of `length` tokens of text, the image's places after the first two."""
    ids = _ids(samples, length + places, generator)
    ids[:, 2 : 2 + places] = IMAGE_TOKEN
    return {"input_ids": ids}
