"""What was measured: labelled statistics, tables, figures, comparisons."""
