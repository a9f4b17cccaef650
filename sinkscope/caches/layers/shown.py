"""What a pass of a stream is shown, the same for all layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.caches.following import Coming


@dataclass(frozen=True, eq=False)
class Shown:
    """Which keys the coming pass sees: those kept, its own, and the sinks where a row has dropped tokens.

    `kept`: tokens kept from before; `sinks`: how many there are; `dropped`: whether the row has dropped tokens, (batch
    or 1, 1), or as each query comes, (batch or 1, query); None: no row has. `by`: positions by which sinks are turned
    forward, (batch or 1, 1 or query, 1 or sinks). `copies`: whether each query has a copy of the sinks of its own, all
    before what is kept; otherwise one stands over the first rows of what is kept.
    """

    coming: Coming
    kept: int
    sinks: int
    dropped: Bool[Tensor, "batch queries"] | None = None
    by: Int[Tensor, "batch queries sinks"] | None = None
    copies: bool = False
    everyone: bool = False  # that every row has dropped tokens, known without asking the device

    @property
    def length(self) -> int:
        """Keys without copies."""
        return self.kept + self.coming.queries

    @property
    def extra(self) -> int:
        """Keys that are copies."""
        return self.sinks * self.coming.queries if self.copies else 0

    def pads(self) -> Int[Tensor, " batch"]:
        """Padding of each row, on the CPU."""
        pads = self.coming.pads
        return torch.zeros(self.coming.batch, dtype=torch.long) if pads is None else pads.cpu().long()

    def places(self) -> Int[Tensor, "batch 1 stored"]:
        """The column that each key comes from; −1 for a copy that no query needs."""
        columns = torch.arange(self.coming.total - self.length, self.coming.total).expand(self.coming.batch, -1)
        if self.dropped is None or self.sinks == 0:
            return columns[:, None]
        dropped = self.dropped.cpu().expand(self.coming.batch, -1)
        first = self.pads()[:, None] + torch.arange(self.sinks)
        if self.copies:
            front = torch.where(dropped[:, :, None], first[:, None], -1).flatten(1)
            return torch.cat([front, columns], 1)[:, None]
        front = torch.where(dropped, first, columns[:, : self.sinks])
        return torch.cat([front, columns[:, self.sinks :]], 1)[:, None]

    def mask(self, window: int, device: torch.device) -> Bool[Tensor, "batch 1 query stored"]:
        """What each query of a pass of several sees where it must see what it would see alone."""
        coming = self.coming
        columns = torch.arange(coming.total - self.length, coming.total)[None, None]
        queries = torch.arange(coming.seen, coming.total)[None, :, None]
        pads = self.pads()[:, None, None]
        seen = (columns <= queries) & (columns >= pads)
        if self.dropped is not None:
            dropped = self.dropped.cpu()[:, :, None]
            seen = seen & (~dropped | (columns > queries - window))
            if self.copies:
                own = torch.eye(coming.queries, dtype=torch.bool).repeat_interleave(self.sinks, 1)[None]
                seen = torch.cat([(own & dropped).expand(coming.batch, -1, -1), seen], -1)
        # A row that is all padding so far sees itself: a softmax over nothing is NaN.
        alone = ~seen.any(-1, keepdim=True)
        seen[..., self.extra :] |= alone & (columns == queries)
        return seen[:, None].to(device)

    def chosen(self, indices: Tensor) -> Shown:
        """Of these rows."""
        coming = self.coming
        pads = None if coming.pads is None else coming.pads[indices.to(coming.pads.device)]

        def rows(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or len(tensor) == 1 else tensor[indices.to(tensor.device)]

        return replace(
            self,
            coming=replace(coming, pads=pads, batch=len(indices)),
            dropped=rows(self.dropped),
            by=rows(self.by),
        )
