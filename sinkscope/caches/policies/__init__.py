"""Eviction policies: which stored keys to keep. One line in `BUILT_IN` puts a policy on the command line.

Policies of other packages are registered with `sinkscope.policy`.
"""

from __future__ import annotations

from sinkscope.caches.policies.expected import ExpectedAttention
from sinkscope.caches.policies.fastgen import FastGen
from sinkscope.caches.policies.images import ImageEdges, LookM
from sinkscope.caches.policies.keys import KeyDiff, KeyNorm, LagKV
from sinkscope.caches.policies.last_queries import TOVA, FastV, Scissorhands, SnapKV
from sinkscope.caches.policies.places import RandomKeys, RandomLike, Streaming
from sinkscope.caches.policies.policy import Policy
from sinkscope.caches.policies.q_hitter import QHitter
from sinkscope.caches.policies.received import H2O, VATP, ObservedAttention
from sinkscope.caches.policies.spread import AdaKV, PyramidKV
from sinkscope.errors import InputError, unknown
from sinkscope.registry import Registry

__all__ = [
    "H2O",
    "POLICIES",
    "TOVA",
    "VATP",
    "AdaKV",
    "ExpectedAttention",
    "FastGen",
    "FastV",
    "ImageEdges",
    "KeyDiff",
    "KeyNorm",
    "LagKV",
    "LookM",
    "ObservedAttention",
    "Policy",
    "PyramidKV",
    "QHitter",
    "RandomKeys",
    "RandomLike",
    "Scissorhands",
    "SnapKV",
    "Streaming",
    "policy_of",
]

BUILT_IN: dict[str, type[Policy]] = {
    "streaming": Streaming,
    "random": RandomKeys,
    "key-norm": KeyNorm,
    "keydiff": KeyDiff,
    "lagkv": LagKV,
    "snapkv": SnapKV,
    "tova": TOVA,
    "scissorhands": Scissorhands,
    "fastv": FastV,
    "h2o": H2O,
    "observed": ObservedAttention,
    "vatp": VATP,
    "expected": ExpectedAttention,
    "fastgen": FastGen,
    "look-m": LookM,
    "ada-kv": AdaKV,
    "pyramidkv": PyramidKV,
    "qhitter": QHitter,
}
POLICIES: Registry[type[Policy]] = Registry("policy", BUILT_IN)


def policy_of(policy: Policy | str) -> Policy:
    """The policy itself, or the one of that name with its defaults. Raises `InputError` for an unknown name."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise InputError(f"policy: expected a policy or one of {', '.join(POLICIES)}, got {type(policy).__name__}")
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    return POLICIES[policy]()
