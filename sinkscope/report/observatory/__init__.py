"""The page of one measurement: every metric of every head with one linked selection, tokens, depth, geometry."""
