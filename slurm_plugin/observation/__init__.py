"""What Slurm and the jobs tell, turned into the `Snapshot` that policies plan on."""
