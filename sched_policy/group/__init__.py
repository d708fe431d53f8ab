"""Groups: which jobs share the same GPUs."""
