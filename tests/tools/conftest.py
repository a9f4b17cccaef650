"""The planted experiments of the report, which the page of findings shows too."""

from tests.cli.conftest import sinkscope
from tests.report.experiments.conftest import absent, entries, normalisation, weight_decay

__all__ = ["absent", "entries", "normalisation", "sinkscope", "weight_decay"]
