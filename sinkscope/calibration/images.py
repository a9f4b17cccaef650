"""Which tokens of a text stand for parts of an image."""

from __future__ import annotations

from torch import nn

NAMES = ("image_token_id", "image_token_index")  # of a configuration


def image_token(model: nn.Module) -> int | None:
    """The id that stands for a part of an image in the model's texts; None where its configuration names none."""
    config = getattr(model, "config", None)
    return next((found for name in NAMES if isinstance(found := getattr(config, name, None), int)), None)
