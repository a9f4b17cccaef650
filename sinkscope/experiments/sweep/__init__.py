"""Many runs: their folders, what is kept of them, and the processes that train them, here or on a cluster."""
