"""Stages of iterations, measured and timed by hand."""
