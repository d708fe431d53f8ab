"""Placements of instances that share GPUs."""
