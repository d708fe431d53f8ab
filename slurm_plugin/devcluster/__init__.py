"""A private, real Slurm cluster in one directory, for trying explsched out and for its tests.

munged, slurmctld and one slurmd per node run on this host, on loopback, with character devices standing in for GPUs.
"""

from slurm_plugin.devcluster.lifecycle import Cluster, down, load, up
from slurm_plugin.devcluster.spec import ClusterSpec, DevClusterError

__all__ = ["Cluster", "ClusterSpec", "DevClusterError", "down", "load", "up"]
