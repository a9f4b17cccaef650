"""The documentation site: `docs/`, the tutorials of `examples/`, and every public name of the package."""
