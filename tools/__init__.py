"""What works on the repository and ships with no wheel: pages of `docs/`, their figures, the shipped models."""
