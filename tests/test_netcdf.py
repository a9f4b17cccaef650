"""Labeled data as one file: whole or absent, also where the disk is full in its middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.files.netcdf import read_netcdf, write_netcdf
from sinkscope.registry import imported


def some(rows: int = 50) -> xr.Dataset:
    draw = np.random.default_rng(0)
    values = {f"v{index}": (("a", "b"), draw.normal(size=(rows, 40)).astype("f4")) for index in range(8)}
    return xr.Dataset(values, attrs={"record": "x" * 70_000}).assign_coords(
        name=("a", [f"été {i}" for i in range(rows)])
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_netcdf(some(), tmp_path / "a.nc")
    assert read_netcdf(tmp_path / "a.nc").identical(some())
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]


PROGRAM = """
import resource, sys
from tests.test_netcdf import some
from sinkscope.errors import InputError
from sinkscope.files.netcdf import write_netcdf
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    write_netcdf(some(), sys.argv[1])
except InputError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 50_000])
def test_a_disk_that_is_full_keeps_the_old_file_and_the_process_ends_by_itself(tmp_path: Path, most: int) -> None:
    """HDF5, which has failed to write, ends a process with a segmentation fault."""
    write_netcdf(some(3), tmp_path / "a.nc")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "SINKSCOPE_NO_SHAPE_CHECKS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "a.nc", str(most)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 1, done.returncode
    assert done.stderr == f"cannot write {tmp_path}/a.nc: File too large\n"
    assert read_netcdf(tmp_path / "a.nc").identical(some(3))
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]


def failure(data: xr.Dataset, path: Path) -> str | None:
    try:
        write_netcdf(data, path)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes")
def test_a_failure_at_any_byte_is_told(tmp_path: Path) -> None:
    """As on a disk with room for what came before."""
    import resource

    data, usual = some(2)[["v0"]], resource.getrlimit(resource.RLIMIT_FSIZE)
    write_netcdf(data, tmp_path / "whole.nc")
    whole = (tmp_path / "whole.nc").stat().st_size
    for most in range(0, whole, whole // 20):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, usual[1]))
            said = failure(data, tmp_path / "a.nc")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert said == f"cannot write {tmp_path}/a.nc: File too large"
        assert [path.name for path in tmp_path.iterdir()] == ["whole.nc"]
    write_netcdf(data, tmp_path / "a.nc")
    assert read_netcdf(tmp_path / "a.nc").identical(data)


LOADERS = (
    "measurement:Measurement.load",
    "trials:load",
    "trials:stored_choice",
)


@pytest.mark.parametrize("loader", LOADERS)
def test_what_is_none_or_damaged_is_refused_in_a_line(tmp_path: Path, loader: str) -> None:
    load = imported(f"sinkscope.{loader}")
    write_netcdf(some(), tmp_path / "other.nc")
    whole = (tmp_path / "other.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.nc").write_text("no netCDF")
    for name in ("other.nc", "cut.nc", "text.nc", "absent.nc"):
        with pytest.raises(InputError, match=name) as raised:
            load(tmp_path / name)
        assert "\n" not in str(raised.value)
