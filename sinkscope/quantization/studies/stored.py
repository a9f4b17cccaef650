"""What several arms did on the same rows, with its record and its file."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.netcdf import read_netcdf, write_netcdf


@dataclass(frozen=True, eq=False)
class Arms:
    """Arms beside each other, in one dataset with the dimension `arm` and an attribute `record` of JSON."""

    data: xr.Dataset

    CALLED: ClassVar[str]  # what a file holds, for messages
    MARK: ClassVar[str]  # a coordinate that only such files have

    @property
    def record(self) -> dict[str, Any]:
        """Where the numbers come from."""
        return dict(json.loads(self.data.attrs["record"]))

    @property
    def arms(self) -> list[str]:
        return [str(name) for name in self.data["arm"].values]

    def table(self) -> pd.DataFrame:
        """A row per arm, in their order."""
        return pd.DataFrame([self._row(arm) for arm in self.arms])

    def save(self, path: str | Path) -> None:
        """Write everything to one netCDF file, whole or not at all."""
        write_netcdf(self.data, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises `InputError` for a file that is none."""
        try:
            data = read_netcdf(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        if "record" not in data.attrs or cls.MARK not in data.coords:
            raise InputError(f"{path} holds no {cls.CALLED}")
        return cls(data)

    def _rows(self) -> list[dict[str, Any]]:
        """The table as JSON-able data."""
        return list(json.loads(self.table().to_json(orient="records", double_precision=10)))

    @abstractmethod
    def _row(self, arm: str) -> dict[str, Any]:
        """An arm's row of the table."""
