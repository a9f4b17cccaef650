"""Synthetic tasks in which a sink has to arise, or has not: seconds to minutes on a processor."""
