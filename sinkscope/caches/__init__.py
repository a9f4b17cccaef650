"""Key-value caches that drop tokens inside an unmodified `generate()`: streaming, eviction, and what engines do."""

from sinkscope.caches import registering as registering  # so that entry points of policies are taken
from sinkscope.caches.budgets import AdaptiveHeads, Budget, HeadClasses, Pyramid, Uniform, budget_of
from sinkscope.caches.call import EvictionCall
from sinkscope.caches.chunks import Chunks, join_chunks
from sinkscope.caches.engines import ENGINES, EngineCache, ServedCache, engine
from sinkscope.caches.eviction import EvictingCache, caching, evicting
from sinkscope.caches.following import Coming, FollowedLayer, FollowingCache
from sinkscope.caches.notes import Heads, KeyNote, LastQueries, Received, RowNote
from sinkscope.caches.policies import POLICIES, Policy, QHitter, RandomLike, policy_of
from sinkscope.caches.protect import Protect
from sinkscope.caches.retrieval import head_effects
from sinkscope.caches.rotation import LayerRotation, Rotation, measured_rotations
from sinkscope.caches.sinks import SinkSet
from sinkscope.caches.sizes import Held, Stream, held, keys_within
from sinkscope.caches.streaming import Distance, Renumbered, StreamingCache, trained_length

__all__ = [
    "ENGINES",
    "POLICIES",
    "AdaptiveHeads",
    "Budget",
    "Chunks",
    "Coming",
    "Distance",
    "EngineCache",
    "EvictingCache",
    "EvictionCall",
    "FollowedLayer",
    "FollowingCache",
    "HeadClasses",
    "Heads",
    "Held",
    "KeyNote",
    "LastQueries",
    "LayerRotation",
    "Policy",
    "Protect",
    "Pyramid",
    "QHitter",
    "RandomLike",
    "Received",
    "Renumbered",
    "Rotation",
    "RowNote",
    "ServedCache",
    "SinkSet",
    "Stream",
    "StreamingCache",
    "Uniform",
    "budget_of",
    "caching",
    "engine",
    "evicting",
    "head_effects",
    "held",
    "join_chunks",
    "keys_within",
    "measured_rotations",
    "policy_of",
    "trained_length",
]
