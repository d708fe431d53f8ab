"""`sexplsched`: one file per command group."""
