"""What was changed in Slurm, when and why; and how to take it back."""
