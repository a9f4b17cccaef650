from tests.report.experiments.conftest import *  # noqa: F403  (fixtures)
