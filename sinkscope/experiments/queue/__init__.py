"""Which run is worth most next, and the work that makes one after another for hours."""
