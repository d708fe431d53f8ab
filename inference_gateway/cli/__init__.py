"""The commands `sexplsched gateway ...`, one file each."""
