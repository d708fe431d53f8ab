"""Turns the state of Slurm and the reports of jobs into the `Snapshot` that policies plan on."""
