"""Attention operations on transformers models: attach, train, save, load, detach."""

from sinkscope.model.attached.attaching import attach, detach, trainable_only
from sinkscope.model.attached.config import AttachedConfig, Attachment
from sinkscope.model.attached.families import FAMILIES
from sinkscope.model.attached.loading import register
from sinkscope.model.attached.shift import Shift
from sinkscope.model.attached.start import changes, unchanged

__all__ = [
    "FAMILIES",
    "AttachedConfig",
    "Attachment",
    "Shift",
    "attach",
    "changes",
    "detach",
    "register",
    "trainable_only",
    "unchanged",
]
