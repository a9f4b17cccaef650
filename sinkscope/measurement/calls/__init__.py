"""One attention call: from the wrapped lookup to its weights, a few rows at a time."""
