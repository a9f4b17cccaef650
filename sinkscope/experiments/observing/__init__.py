"""What an experiment keeps of a model: as it is, on other inputs, and under ablations."""
