"""Caches that drop what need not be kept, inside anybody's unmodified `generate()`."""

from sinkscope.caches.following import Coming, FollowedLayer, FollowingCache
from sinkscope.caches.rotation import LayerRotation, Rotation, measured_rotations
from sinkscope.caches.streaming import Distance, StreamingCache

__all__ = [
    "Coming",
    "Distance",
    "FollowedLayer",
    "FollowingCache",
    "LayerRotation",
    "Rotation",
    "StreamingCache",
    "measured_rotations",
]
