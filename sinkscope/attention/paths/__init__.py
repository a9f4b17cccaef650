"""Ways to compute an operation that agree with the reference, or are not offered."""
