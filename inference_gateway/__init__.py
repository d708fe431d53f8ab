"""The inference gateway: replicas as Slurm jobs behind HAProxy, as many as the request rate needs."""
