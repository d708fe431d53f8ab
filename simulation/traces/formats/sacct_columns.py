"""The columns of sacct's output that a history cannot do without."""

REQUIRED = ("Submit", "Start", "End", "State")
"""Columns by which the format is known."""
