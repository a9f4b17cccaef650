"""Images and recordings as inputs to measure on, through the processor that a model comes with."""

from sinkscope.data.media.media import MEDIA, PROMPT, Medium, media_digest, media_reading, processor_of

__all__ = ["MEDIA", "PROMPT", "Medium", "media_digest", "media_reading", "processor_of"]
