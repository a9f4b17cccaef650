"""Calibration: less or more weight on chosen tokens of a running model, exactly and without attention maps.

A line for each name, new methods too.
"""
