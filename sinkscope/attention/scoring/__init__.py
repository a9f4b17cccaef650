"""What makes scores from queries and keys, and what changes them before they become weights."""
