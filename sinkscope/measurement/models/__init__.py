"""Many models on several inputs, one at a time, into one table (Gu et al. 2025, Tables 1 and 8)."""
