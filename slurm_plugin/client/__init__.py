"""The Slurm seam: one protocol (`protocol.SlurmClient`), two adapters (`cli`, `pyslurm_`)."""
