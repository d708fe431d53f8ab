"""Inference and training instances that share GPUs: traces, replay, checks."""
