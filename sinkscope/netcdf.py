"""Labeled data as one netCDF file: written whole or not at all, read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import xarray as xr

from sinkscope.files import writing

ENGINE: Final = "h5netcdf"


def write_netcdf(data: xr.Dataset, path: str | Path) -> None:
    """Write one netCDF file. A failed write (full disk) raises `InputError` and leaves what stood at `path`.

    HDF5 writes into memory, as much as the file is long, and that goes to the disk: it does not survive a failed write,
    cannot close such a file, tries again when the process ends, and then ends it with a segmentation fault.
    """
    whole = data.to_netcdf(engine=ENGINE)
    with writing(path) as draft:
        draft.write_bytes(whole)


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
