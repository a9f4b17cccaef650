"""Questions asked of made-up tasks, of which the exact answer is known."""
