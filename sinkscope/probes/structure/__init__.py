"""What a model is made of: which modules are attention layers, which blocks they stand in."""
