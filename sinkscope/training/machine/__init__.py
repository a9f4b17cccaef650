"""The machine that trains: what it must be able to do, what a process may use and leaves as it was, and compiling."""

from sinkscope.training.machine.checks import check_machine, resolved_device
from sinkscope.training.machine.compiling import compiling, require_compiler, unchanged_matmuls
from sinkscope.training.machine.process import keep_freed_memory, preserved_rng, processors

__all__ = [
    "check_machine",
    "compiling",
    "keep_freed_memory",
    "preserved_rng",
    "processors",
    "require_compiler",
    "resolved_device",
    "unchanged_matmuls",
]
