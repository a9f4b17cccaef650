"""Many runs: what a job is, where its run lies, and the processes that make it, here or on a cluster."""
