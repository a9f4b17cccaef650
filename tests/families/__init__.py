"""What must hold for every family of transformers, and the tiny models it is checked on."""
