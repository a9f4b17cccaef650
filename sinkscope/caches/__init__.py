"""Caches that drop what need not be kept, inside anybody's unmodified `generate()`."""

from sinkscope.caches.following import Coming, FollowedLayer, FollowingCache

__all__ = ["Coming", "FollowedLayer", "FollowingCache"]
