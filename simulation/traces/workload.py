"""What a generated trace should look like. The distributions are described in `generate`."""

from __future__ import annotations

from msgspec import Struct

from simulation.traces.stage_profile import GPU_COUNTS
from simulation.traces.trace import ClusterShape, TraceError


class GpuShare(Struct, frozen=True):
    """So many jobs (any unit: only proportions count) ask for so many GPUs."""

    gpus: int
    jobs: float


class WorkloadSpec(Struct, frozen=True):
    """What to generate. Raises `TraceError` naming the first value that cannot be used.

    Attributes:
        jobs: how many.
        cluster: the cluster the load refers to; no job asks for more GPUs than it has.
        load: work submitted per time over what the cluster can do, GPU-seconds per GPU-second; above 1 the queue grows.
        shares: proportions of GPU counts.
        median_run_s: median of the run time before it is bounded.
        sigma: standard deviation of the logarithm of the run time.
        shortest_run_s, longest_run_s: bounds of the run time.
        users: how many owners.
        zipf_exponent: 0 gives all users equal shares.
        limit_multiples: equally likely ratios of time limit to run time, before rounding up.
        opportunistic: share of jobs without a resource guarantee.

    """

    jobs: int
    cluster: ClusterShape
    load: float = 1.0
    shares: tuple[GpuShare, ...] = (
        GpuShare(1, 536),
        GpuShare(2, 5),
        GpuShare(4, 423),
        GpuShare(8, 465),
        GpuShare(16, 40),
        GpuShare(32, 25),
    )
    median_run_s: float = 1144.0
    sigma: float = 2.21
    shortest_run_s: float = 10.0
    longest_run_s: float = 60 * 86400.0
    users: int = 20
    zipf_exponent: float = 1.0
    limit_multiples: tuple[float, ...] = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
    opportunistic: float = 0.5

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("jobs", self.jobs, 1, 100_000_000),
            ("load", self.load, 1e-6, 1e6),
            ("median_run_s", self.median_run_s, 1e-3, 1e9),
            ("sigma", self.sigma, 0, 10),
            ("shortest_run_s", self.shortest_run_s, 1e-3, 1e9),
            ("longest_run_s", self.longest_run_s, self.shortest_run_s, 1e9),
            ("users", self.users, 1, 1_000_000),
            ("zipf_exponent", self.zipf_exponent, 0, 10),
            ("opportunistic", self.opportunistic, 0, 1),
            *(("limit_multiples", multiple, 1, 1000) for multiple in self.limit_multiples),
            *(("shares", share.jobs, 0, 1e18) for share in self.shares),
        ):
            if not least <= value <= most:
                raise TraceError(f"{name} is {value:g}, accepted are {least:g} to {most:g}")
        for share in self.shares:
            if share.gpus not in GPU_COUNTS:
                raise TraceError(f"shares: {share.gpus} GPUs, accepted are {', '.join(map(str, GPU_COUNTS))}")
        if not self.limit_multiples:
            raise TraceError("limit_multiples is empty, accepted is one or more")
        if not any(share.jobs > 0 for share in self.fitting):
            raise TraceError(f"shares: no job fits the cluster's {self.cluster.gpus} GPUs")

    @property
    def fitting(self) -> tuple[GpuShare, ...]:
        """The shares whose jobs fit the cluster."""
        return tuple(share for share in self.shares if share.gpus <= self.cluster.gpus)
