"""Finish-time fairness of a finished simulation."""

from __future__ import annotations

import numpy as np

from sched_policy.columns import Floats
from sched_policy.simulator.outcome import Ending, Outcome
from sched_policy.simulator.steps import Steps


def finish_time_fairness(outcome: Outcome) -> Floats:
    """Rho of every completed job, in the outcome's order; 1 is fair, above 1 the job got less than its share.

    Themis (Mahajan et al., NSDI 2020, section 3) divides a job's time in the shared cluster by its time in a cluster of
    its own with 1/N of the GPUs. Here, with G the GPUs of the cluster and N the mean number of jobs in the system
    (waiting or running, the job itself included) between the job's submission and its end::

        rho = JCT / (run_s * max(1, gpus * N / G))

    A share smaller than the gang slows the job in proportion; a larger one does not make it faster. Jobs that did not
    complete, or need no time, have no rho and are left out. Shape (completed jobs,), no unit.
    """
    if not outcome.jobs:
        return np.empty(0)
    submit_s = np.array([job.submit_s for job in outcome.jobs])
    end_s = np.array([job.end_s for job in outcome.jobs])
    active = Steps.of_changes(
        np.concatenate((submit_s, end_s)), np.concatenate((np.ones(submit_s.size), -np.ones(end_s.size)))
    )
    rows = np.array(
        [row for row, job in enumerate(outcome.jobs) if job.ending is Ending.COMPLETED and job.run_s > 0],
        dtype=np.int64,
    )
    rows = rows[end_s[rows] > submit_s[rows]]
    jct_s = end_s[rows] - submit_s[rows]
    sharers = (active.integral(end_s[rows]) - active.integral(submit_s[rows])) / jct_s
    run_s = np.array([outcome.jobs[row].run_s for row in rows.tolist()])
    gpus = np.array([outcome.jobs[row].gpus for row in rows.tolist()], dtype=np.float64)
    rho: Floats = jct_s / (run_s * np.maximum(1.0, gpus * sharers / outcome.cluster.gpus))
    return rho
