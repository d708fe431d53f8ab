"""Strategies for one sweep: which of its trainings run now, which pause, which are stopped for good.

A strategy is a pure function from a `trials.Sweep` to a `decision.Decision`: no clock, no files, no threads, no chance.
"""
