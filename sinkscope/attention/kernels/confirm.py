"""Compare the fused kernels with the reference on this machine's GPU and record the result.

Run: python -m sinkscope.attention.kernels.confirm
Exit codes: 0 confirmed; 1 some case disagrees, and a former confirmation of this device is withdrawn; 2 no GPU or
no triton.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from importlib.metadata import version

import torch

from sinkscope.attention.kernels import record
from sinkscope.attention.kernels.comparison import Agreement, compare, every_case
from sinkscope.attention.kernels.entry import unavailable
from sinkscope.errors import InputError


def main() -> int:
    """Run the whole comparison and write the record; the exit code."""
    if not torch.cuda.is_available():
        return _refuse("no CUDA device here: the fused kernels can only be confirmed on one")
    if reason := unavailable():
        return _refuse(f"the fused kernels cannot be confirmed: {reason}")
    found = [compare(case, "cuda") for case in every_case()]
    wrong = [agreement for agreement in found if not agreement.agrees]
    for agreement in wrong:
        print(f"disagrees: {agreement.case}: {agreement.residuals}")
    capability = torch.cuda.get_device_capability()
    try:
        record.write(capability, None if wrong else confirmation(found, capability))
    except InputError as error:
        return _refuse(str(error))
    where = f"{torch.cuda.get_device_name()} (compute capability {capability[0]}.{capability[1]})"
    print(f"{len(found) - len(wrong)} of {len(found)} cases agree on {where}: {'not ' if wrong else ''}confirmed")
    return 1 if wrong else 0


def confirmation(found: list[Agreement], capability: tuple[int, int]) -> record.Confirmation:
    """What is recorded of a comparison in which every case agreed."""
    worst: dict[str, float] = {}
    for agreement in found:
        dtype = str(agreement.case.dtype).removeprefix("torch.")
        worst[dtype] = max(worst.get(dtype, 0.0), agreement.worst)
    return record.Confirmation(
        capability=capability,
        device=torch.cuda.get_device_name(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        kernels=record.fingerprint(),
        versions={name: version(name) for name in ("sinkscope", "torch", "triton")} | {"cuda": str(torch.version.cuda)},
        cases=len(found),
        residuals=worst,
    )


def _refuse(line: str) -> int:
    print(line, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
