"""Finish-time fairness of a finished simulation."""

from __future__ import annotations

from itertools import chain

from simulation.results.outcome import Ending, Outcome
from simulation.results.steps import Steps


def finish_time_fairness(outcome: Outcome) -> list[float]:
    """Rho of every completed job, in the outcome's order; 1 is fair, above 1 the job got less than its share.

    Themis (Mahajan et al., NSDI 2020, section 3) divides a job's time in the shared cluster by its time in a cluster of
    its own with 1/N of the GPUs. Here, with G the GPUs of the cluster and N the mean number of jobs in the system
    (waiting or running, the job itself included) between the job's submission and its end::

        rho = JCT / (run_s * max(1, gpus * N / G))

    A share smaller than the gang slows the job in proportion; a larger one does not make it faster. Jobs that did not
    complete, or need no time, have no rho and are left out.
    """
    active = Steps.of_changes(chain.from_iterable(((job.submit_s, 1.0), (job.end_s, -1.0)) for job in outcome.jobs))
    rho = []
    for job in outcome.jobs:
        if job.ending is Ending.COMPLETED and job.run_s > 0 and job.end_s > job.submit_s:
            sharers = active.mean(job.submit_s, job.end_s)
            alone_s = job.run_s * max(1.0, job.gpus * sharers / outcome.cluster.gpus)
            rho.append((job.end_s - job.submit_s) / alone_s)
    return rho
