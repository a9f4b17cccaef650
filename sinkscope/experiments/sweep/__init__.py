"""Many runs: where they lie, what is kept of them, and the processes that make them, here or on a cluster."""
