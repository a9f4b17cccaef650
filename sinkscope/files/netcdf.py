"""Labeled data as one netCDF file: written whole or not at all, read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import xarray as xr

from sinkscope.files import writing

ENGINE: Final = "h5netcdf"


def write_netcdf(data: xr.Dataset, path: str | Path) -> None:
    """Write one netCDF file. A failed write (full disk) raises `InputError` and leaves the old `path`.

    HDF5 writes the whole file to memory, and the bytes go to the disk afterwards: after a failed write to a disk, HDF5
    cannot close the file, tries again when the process ends, and crashes with a segmentation fault.
    """
    whole = data.to_netcdf(engine=ENGINE)
    with writing(path) as draft:
        draft.write_bytes(whole)


def read_netcdf(path: str | Path) -> xr.Dataset:
    """The data of a netCDF file, in memory.

    Raises `FileNotFoundError` if there is none, and `OSError` with the reason in one line for another or a damaged
    file, for which the readers raise errors of many kinds.
    """
    try:
        return xr.load_dataset(path, engine=ENGINE)
    except FileNotFoundError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise OSError(lines[0]) from error
