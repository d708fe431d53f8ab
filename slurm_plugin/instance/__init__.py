"""That one daemon at most steers a cluster."""
