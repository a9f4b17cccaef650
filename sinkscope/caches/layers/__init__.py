"""Cache layers that drop keys."""
