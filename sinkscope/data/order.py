"""The order in which training sees its windows."""

from __future__ import annotations

from torch.utils.data import Dataset

from sinkscope.data.mixture import MixedWindows, shuffled_index
from sinkscope.data.windows import Window
from sinkscope.errors import InputError


class TrainingOrder(Dataset[Window]):
    """The `steps` · `batch_size` windows that training sees, in order: item i belongs to step i // batch_size.

    Every pass over the windows is a permutation of its own, drawn from `seed` and the number of the pass; of a mixture
    each part has its passes, and which part an item is of is drawn by weight (`MixedWindows`). Item i depends on (seed,
    i) and on nothing before it, so a resumed run goes on at any item without a stored state. It is to be read in
    sequence, by a sampler that does not shuffle again.
    """

    def __init__(self, windows: Dataset[Window], batch_size: int, steps: int, seed: int) -> None:
        if batch_size < 1 or steps < 1:
            raise InputError(f"batch_size {batch_size} and steps {steps} must be at least 1")
        self.windows, self.seed = windows, seed
        self.total = steps * batch_size

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, item: int) -> Window:
        return self.windows[self.index(item)]

    def index(self, item: int) -> int:
        """Which window item i is."""
        if not 0 <= item < self.total:
            raise IndexError(f"item {item} of {self.total}")
        if isinstance(self.windows, MixedWindows):
            return self.windows.place(item, self.seed)
        count = len(self.windows)  # type: ignore[arg-type]
        return shuffled_index(count, item, "epoch", self.seed)
