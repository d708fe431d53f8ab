"""Jobs that share GPUs, live: what they hold, where Slurm would put them, which groups there are and should be."""
