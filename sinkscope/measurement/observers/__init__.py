"""What is read while a model runs: each observer turns calls and block outputs into small sums."""
