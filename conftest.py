"""Both trees of tests, `tests` and `replication/tests_replication`, have the fixtures and the settings of one plugin."""

pytest_plugins = ["tests.plugin"]
