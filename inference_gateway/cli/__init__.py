"""The commands `sexplsched gateway ...`."""
