"""Both trees of tests, `tests` and `replication/tests_replication`, take fixtures and settings from one plugin."""

pytest_plugins = ["tests.plugin"]
