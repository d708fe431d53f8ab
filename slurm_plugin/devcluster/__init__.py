"""A private, real Slurm cluster in one directory, for trying explsched out and for its tests.

munged, slurmctld and one slurmd per node run on this host and talk over loopback; character devices stand in for GPUs.
"""

from slurm_plugin.devcluster.cluster import Cluster, ClusterHealth, ClusterSpec, Product, ProductState, Status, load
from slurm_plugin.devcluster.lifecycle import down, up
from slurm_plugin.devcluster.machine import DevClusterError

__all__ = [
    "Cluster",
    "ClusterHealth",
    "ClusterSpec",
    "DevClusterError",
    "Product",
    "ProductState",
    "Status",
    "down",
    "load",
    "up",
]
