"""Pieces that compute scores from queries and keys, or change them before normalization."""
