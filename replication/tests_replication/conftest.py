from tests.cli.conftest import sinkscope  # noqa: F401  (a fixture: the command line in this process)
