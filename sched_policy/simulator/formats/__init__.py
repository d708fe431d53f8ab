"""Readers: one file per trace format."""
