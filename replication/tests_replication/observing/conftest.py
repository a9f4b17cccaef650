from tests.training.conftest import corpus, tiny  # noqa: F401  (fixtures: recipes of seconds and their text)
