"""Replicas as Slurm jobs: what is submitted, what runs in the job, and what a replica has told about itself."""
