"""Makes traces from documented distributions, for tests and benchmarks that need no site's data.

* Model: uniform over those of `stage_profile`, as in the traces of the Muri simulator.
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
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sched_policy.model import StageProfile
from simulation.traces.stage_profile import MODELS, profile
from simulation.traces.trace import StageTimes, Trace, TraceJob
from simulation.traces.workload import WorkloadSpec

_ASKED_S = tuple(3600.0 * hours for hours in (1 / 6, 0.5, 1, 2, 4, 8, 12, 24, 48, 72))
_WEEK_S = 7 * 86400.0


def generate(spec: WorkloadSpec, seed: int) -> Trace:
    """A trace with jobs 1, 2, ... in order of submission, the first at 0. The same spec and seed give the same trace.

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
