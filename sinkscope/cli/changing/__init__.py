"""Commands that change a model to keep: what they choose is reported on texts that had no part in it."""
