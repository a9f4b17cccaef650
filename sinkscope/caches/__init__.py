"""Caches that drop what need not be kept, inside anybody's unmodified `generate()`."""

from sinkscope.caches import registering as registering  # so that entry points of policies are taken
from sinkscope.caches.budgets import AdaptiveHeads, Budget, HeadClasses, Pyramid, Uniform, budget_of
from sinkscope.caches.call import EvictionCall
from sinkscope.caches.classes import head_effects
from sinkscope.caches.eviction import EvictingCache, evicting
from sinkscope.caches.following import Coming, FollowedLayer, FollowingCache
from sinkscope.caches.notes import KeyNote, LastQueries, Received, RowNote
from sinkscope.caches.policies import POLICIES, Policy, policy_of
from sinkscope.caches.protect import Protect
from sinkscope.caches.rotation import LayerRotation, Rotation, measured_rotations
from sinkscope.caches.sinks import SinkSet
from sinkscope.caches.streaming import Distance, StreamingCache

__all__ = [
    "POLICIES",
    "AdaptiveHeads",
    "Budget",
    "Coming",
    "Distance",
    "EvictingCache",
    "EvictionCall",
    "FollowedLayer",
    "FollowingCache",
    "HeadClasses",
    "KeyNote",
    "LastQueries",
    "LayerRotation",
    "Policy",
    "Protect",
    "Pyramid",
    "Received",
    "Rotation",
    "RowNote",
    "SinkSet",
    "StreamingCache",
    "Uniform",
    "budget_of",
    "evicting",
    "head_effects",
    "measured_rotations",
    "policy_of",
]
