"""What an experiment keeps of a run: of its training, of its model as it is, and of its model when touched."""
