"""An eviction policy: keep what has long values."""

from __future__ import annotations

from dataclasses import dataclass

import sinkscope as ss
from sinkscope.caches import Policy


@ss.policy
@dataclass(frozen=True)
class ToyLongValues(Policy):
    """score = ‖v_k‖₂."""

    def score(self, call):
        return call.value.float().norm(dim=-1)
