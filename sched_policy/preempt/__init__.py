"""Preemption rules: which running jobs make room. Only jobs with a checkpoint signal are ever chosen."""
