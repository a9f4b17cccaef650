"""Labeled data as one netCDF file: written whole or not at all, read whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Final

import xarray as xr

from sinkscope.files import writing

ENGINE: Final = "h5netcdf"


def write_netcdf(data: xr.Dataset, path: str | Path) -> None:
    """Write one netCDF file. A failed write (full disk) raises `InputError` and leaves what stood at `path`."""
    with writing(path) as draft, _Unfailing(draft, "w+") as file:
        file.check(lambda: data.to_netcdf(file, engine=ENGINE))


def read_netcdf(path: str | Path) -> xr.Dataset:
    """The data of a netCDF file, in memory.

    Raises `FileNotFoundError` where there is none, and `OSError` with the reason in one line for another file or a
    damaged one, of which its readers raise errors of many kinds.
    """
    try:
        return xr.load_dataset(path, engine=ENGINE)
    except FileNotFoundError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise OSError(lines[0]) from error


class _Unfailing(FileIO):
    """A file whose writes never fail while HDF5 holds it: the first failure is kept, and what comes after it is lost.

    HDF5 does not survive a failed write: it cannot close such a file, tries again when the process ends, and then
    ends it with a segmentation fault, whatever exit code the program had.
    """

    failed: OSError | None = None

    def check(self, work: Callable[[], Any]) -> None:
        """Do what writes; raise the failure that was kept."""
        try:
            work()
        except Exception as error:
            if self.failed is None:
                raise
            raise self.failed from error  # it read what had been lost
        if self.failed is not None:
            raise self.failed

    def write(self, part: Any) -> int:
        left = whole = memoryview(part).cast("B")
        while left and self.failed is None:
            left = left[self._survived(partial(FileIO.write, self, left), len(left)) :]
        return len(whole)

    def truncate(self, size: int | None = None) -> int:
        wanted = self.tell() if size is None else size
        return self._survived(partial(FileIO.truncate, self, wanted), wanted)

    def _survived(self, step: Callable[[], Any], otherwise: int) -> int:
        if self.failed is None:
            try:
                return int(step())
            except OSError as error:
                self.failed = error
        return otherwise
