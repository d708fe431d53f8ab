"""Workloads of exploratory trainings with learning curves."""
