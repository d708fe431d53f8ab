"""The only room that talks to Slurm, and everything an admin installs."""
