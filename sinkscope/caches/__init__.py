"""Caches that drop what need not be kept, inside anybody's unmodified `generate()`."""

from sinkscope.caches.following import Coming, FollowedLayer, FollowingCache
from sinkscope.caches.rotation import LayerRotation, Rotation, measured_rotations

__all__ = ["Coming", "FollowedLayer", "FollowingCache", "LayerRotation", "Rotation", "measured_rotations"]
