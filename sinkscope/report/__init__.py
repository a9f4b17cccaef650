"""Figures and the self-contained HTML page, from stored results only: measurement files and run folders."""
