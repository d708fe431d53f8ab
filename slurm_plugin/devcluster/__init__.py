"""A private, real Slurm cluster in one directory, for trying explsched out and for its tests.

munged, slurmctld and one slurmd per node run on this host and talk over loopback; character devices stand in for GPUs.
"""

from slurm_plugin.devcluster.cluster import Cluster, ClusterSpec, Product, ProductState, State, Status, load
from slurm_plugin.devcluster.lifecycle import down, up
from slurm_plugin.devcluster.machine import DevClusterError

__all__ = [
    "Cluster",
    "ClusterSpec",
    "DevClusterError",
    "Product",
    "ProductState",
    "State",
    "Status",
    "down",
    "load",
    "up",
]
