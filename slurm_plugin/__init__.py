"""The only package that talks to Slurm, and the files that an admin installs (etc/, spank/)."""
