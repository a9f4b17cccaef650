"""How the pieces of a specification are validated."""

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)  # an unknown field or a NaN fails where it is written
