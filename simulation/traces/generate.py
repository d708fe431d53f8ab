"""Makes traces from documented distributions, for tests and benchmarks that need no site's data.

* Model: uniform over `MODELS`, as in the traces of the Muri simulator.
* GPUs: in given proportions, by default those of Muri's first trace; counts that the cluster lacks are left out.
* Run time: log-normal with given median and sigma, within bounds, then whole iterations. The default has the median
  (1,144 s) and mean (13,136 s) of the Philly trace (Jeon et al., USENIX ATC 2019): sigma = sqrt(2 ln(mean / median)).
* Gaps between submissions: exponential, then scaled so that the work of all jobs is exactly `load` times what the
  cluster can do from the first submission to the last.
* User: Zipf. The k-th of n users has a share proportional to 1 / k^exponent.
* Time limit: the run time times one of a few multiples, rounded up to a time people ask for (10 or 30 min, 1, 2, 4,
  8 or 12 h, 1, 2 or 3 days, whole weeks). Users ask for round times well above their need: Mu'alem and Feitelson, IEEE
  TPDS 12(6), 2001. No job is cut off by its limit.
* Priority: opportunistic (AntMan) with a given probability; about half in Muri's traces.
* Stage times: those of eight models on 1 to 32 GPUs, as the traces of the Muri simulator state them (Zhao et al.,
  "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022; github.com/Rivendile/Muri).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sched_policy.model import StageProfile
from simulation.traces.formats.table import LONGEST_S
from simulation.traces.trace import ClusterShape, StageTimes, Trace, TraceError, TraceJob

GPU_COUNTS = (1, 2, 4, 8, 16, 32)


# Per GPU count: iteration, loading data (storage and CPU), computing on the GPU, synchronising; ms per iteration.
_STAGES_MS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "vgg16": (
        (107, 117, 68, 0),
        (191, 114, 72, 40),
        (201, 82, 72, 67),
        (214, 82, 75, 66),
        (332, 83, 68, 110),
        (336, 87, 67, 131),
    ),
    "vgg19": (
        (109, 114, 80, 0),
        (205, 115, 83, 41),
        (212, 84, 85, 73),
        (226, 82, 88, 60),
        (302, 102, 78, 123),
        (356, 89, 79, 141),
    ),
    "resnet18": (
        (779, 711, 110, 0),
        (881, 687, 110, 95),
        (921, 723, 113, 73),
        (1010, 784, 117, 77),
        (1055, 736, 108, 93),
        (1059, 712, 111, 93),
    ),
    "shufflenet_v2_x1_0": (
        (798, 706, 59, 0),
        (850, 747, 58, 18),
        (886, 703, 62, 17),
        (957, 769, 57, 10),
        (1006, 776, 57, 21),
        (1019, 799, 56, 24),
    ),
    "bert": (
        (178, 0.5, 160, 0),
        (195, 0.5, 163, 18),
        (190, 0.5, 163, 18),
        (192, 0.5, 167, 59),
        (244, 0.5, 166, 86),
        (260, 0.5, 166, 133),
    ),
    "gpt2": (
        (426, 0.6, 410, 0),
        (464, 0.7, 416, 40),
        (433, 0.6, 413, 20),
        (437, 0.6, 419, 49),
        (491, 0.6, 415, 137),
        (514, 0.7, 414, 216),
    ),
    "a2c": (
        (517, 514, 14, 0),
        (525, 504, 14, 0.5),
        (533, 502, 10, 0.3),
        (555, 502, 14, 0.4),
        (567, 514, 14, 1.2),
        (585, 507, 14, 2),
    ),
    "dqn": (
        (490, 446, 8, 0),
        (495, 441, 8, 0.6),
        (505, 440, 8, 0.4),
        (509, 435, 8, 0.5),
        (525, 438, 8, 1.2),
        (546, 437, 8, 1.6),
    ),
}

MODELS = tuple(_STAGES_MS)


def profile(model: str, gpus: int = 1) -> StageProfile:
    """The stage times of a model of `MODELS` on a GPU count of `GPU_COUNTS`. Raises `KeyError` or `ValueError`."""
    iteration, io, gpu, net = _STAGES_MS[model][GPU_COUNTS.index(gpus)]
    return StageProfile(iteration / 1000, io / 1000, gpu / 1000, net / 1000)


class GangShare(Struct, frozen=True):
    """So many jobs (any unit: only proportions count) ask for so many GPUs."""

    gpus: int
    jobs: float


class WorkloadSpec(Struct, frozen=True):
    """The distributions of a generated trace. Raises `TraceError` naming the first value that cannot be used.

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
    shares: tuple[GangShare, ...] = (
        GangShare(1, 536),
        GangShare(2, 5),
        GangShare(4, 423),
        GangShare(8, 465),
        GangShare(16, 40),
        GangShare(32, 25),
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
                raise TraceError(f"{name} is {value:g}, accepted: {least:g} to {most:g}")
        for share in self.shares:
            if share.gpus not in GPU_COUNTS:
                raise TraceError(f"shares: {share.gpus} GPUs, accepted: {', '.join(map(str, GPU_COUNTS))}")
        if not self.limit_multiples:
            raise TraceError("limit_multiples is empty, accepted: one or more")
        if not any(share.jobs > 0 for share in self.fitting):
            raise TraceError(f"shares: no job fits the cluster's {self.cluster.gpus} GPUs")

    @property
    def fitting(self) -> tuple[GangShare, ...]:
        """The shares whose jobs fit the cluster."""
        return tuple(share for share in self.shares if share.gpus <= self.cluster.gpus)


_ASKED_S = tuple(3600.0 * hours for hours in (1 / 6, 0.5, 1, 2, 4, 8, 12, 24, 48, 72))
_WEEK_S = 7 * 86400.0


def generate(spec: WorkloadSpec, seed: int) -> Trace:
    """A trace with jobs 1, 2, ... in order of submission, the first at 0. The same spec and seed give the same trace.

    Raises `TraceError` if they come over more time than a trace may have.

    Every property is drawn from a stream of its own, so that jobs keep their other properties when one is changed:
    traces of two loads differ in nothing but submit times.
    """
    # The number of streams is part of the result: append, never reorder.
    kinds, sizes, runs, gaps, owners, limits, guarantees = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(7)
    )
    shares = spec.fitting
    weights = np.array([share.jobs for share in shares], dtype=float)
    models = kinds.integers(len(MODELS), size=spec.jobs)
    sized = sizes.choice(len(shares), size=spec.jobs, p=weights / weights.sum())
    wanted_s = np.clip(
        runs.lognormal(math.log(spec.median_run_s), spec.sigma, spec.jobs), spec.shortest_run_s, spec.longest_run_s
    )
    ranks = np.arange(1, spec.users + 1, dtype=float) ** -spec.zipf_exponent
    users = owners.choice(spec.users, size=spec.jobs, p=ranks / ranks.sum())
    multiples = limits.choice(np.array(spec.limit_multiples), size=spec.jobs)
    opportunistic = guarantees.random(spec.jobs) < spec.opportunistic

    profiles = [[profile(model, share.gpus) for share in shares] for model in MODELS]
    draft = [
        _job(
            job_id=i + 1,
            gpus=shares[sized[i]].gpus,
            wanted_s=float(wanted_s[i]),
            alone=profiles[models[i]][sized[i]],
            model=MODELS[models[i]],
        )
        for i in range(spec.jobs)
    ]
    span_s = math.fsum(job.gpus * job.run_s for job in draft) / (spec.cluster.gpus * spec.load)
    if span_s > LONGEST_S:
        raise TraceError(
            f"load is {spec.load:g}: the last job would come after {span_s:.3g} s, accepted: up to {LONGEST_S:g} s"
        )
    submit_s = _submissions(gaps, spec.jobs, span_s)
    return Trace.of(
        replace(
            job,
            submit_s=round(float(submit_s[i]), 3),
            time_limit_s=asked_s(job.run_s * float(multiples[i])),
            user=f"user{users[i] + 1}",
            priority=int(opportunistic[i]),
        )
        for i, job in enumerate(draft)
    )


def asked_s(needed_s: float) -> float:
    """The shortest time people ask for that is not below `needed_s`."""
    return next((asked for asked in _ASKED_S if asked >= needed_s), math.ceil(needed_s / _WEEK_S) * _WEEK_S)


def _job(job_id: int, gpus: int, wanted_s: float, alone: StageProfile, model: str) -> TraceJob:
    iterations = max(1, round(wanted_s / alone.iteration_s))
    run_s = round(iterations * alone.iteration_s, 3)  # whole milliseconds, as the profile has
    stages = StageTimes(alone.io_s, alone.gpu_s, alone.net_s)
    return TraceJob(job_id, 0.0, gpus, run_s, iterations=iterations, stages=stages, model=model)


def _submissions(gaps: np.random.Generator, jobs: int, span_s: float) -> NDArray[np.float64]:
    """Submit times: the first at 0, the last at `span_s`, in between as a Poisson process."""
    reached = np.concatenate(([0.0], np.cumsum(gaps.standard_exponential(jobs - 1))))
    return reached * (span_s / reached[-1]) if jobs > 1 else reached
