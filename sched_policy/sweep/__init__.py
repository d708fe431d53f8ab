"""Strategies for one sweep: which of its trainings run now, which pause, and which are stopped for good.

A strategy is a pure function from a `trials.Sweep` to a `trials.SweepDecision`: no clock, files, threads or chance.
"""
