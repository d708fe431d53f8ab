"""Jobs that share a GPU: planned groups, their pins, and the annotations that survive a restart."""
