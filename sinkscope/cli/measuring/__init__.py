"""What the commands that measure share: the job, where results go, and what is left there."""
