"""What an untried training is expected to do, and for how long that is believed.

Optimism in the face of uncertainty: an untried configuration may turn out as good as the best one, and a short look
costs little. It counts as learning as fast, per GPU-second, as the best of its sweep did in the beginning; where nobody
has shown anything, as learning the whole of its sweep's improvement in one quantum, whatever its GPUs.

Nobody may live on that. A prior costs nothing to claim, a sweep's name even less, so

* a training outside a sweep has none: nothing is looked at for the sake of others;
* it ends when a training has run for a quantum without enough reports for a curve, or was requeued without them;
* where nobody of the sweep has shown anything, one training of each user has it at a time, whatever the number of the
  user's sweeps: one that runs, else the first that may start. A job array, which would start many at once, has none;
* a user whose trainings in sweeps have had a quantum in all without a curve, present and recent ones, has none.

What has no prior is ranked as a job that does not report.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sched_policy.columns import Bools, Floats
from sched_policy.model import Job
from sched_policy.outlook import Outlook
from sched_policy.snapshot import Snapshot


def prior(known: Outlook, snapshot: Snapshot, quantum_s: float) -> Floats:
    """Expected share of the sweep's improvement per GPU-second; not a number where there is no prior; shape (E,).

    What is said of jobs that are measured themselves has no meaning.
    """
    on = known.measured
    gpus = np.maximum(known.gpus, 1)
    ahead_gpu_s = quantum_s * gpus[on]
    first, _ = known.curves.improvement(np.zeros(int(on.sum())), ahead_gpu_s)
    best = np.full(int(known.sweep.max(initial=-1)) + 1, np.nan)
    np.fmax.at(best, known.sweep[on], first / known.scale[on] / ahead_gpu_s)
    shown = best[known.sweep]
    jobs = [snapshot.jobs[row] for row in known.rows.tolist()]
    believed = _believed(known, jobs, snapshot.now_s, quantum_s)
    looks = _first_looks(jobs, believed & np.isnan(shown))
    value = np.where(np.isnan(shown), np.where(looks, 1.0 / (quantum_s * gpus), np.nan), shown)
    return np.where(believed | on, value, np.nan)


def _believed(known: Outlook, jobs: list[Job], now_s: float, quantum_s: float) -> Bools:
    """Unmeasured trainings that have not had their quantum, of users who have not had theirs; shape (E,)."""
    silent_s: defaultdict[str, float] = defaultdict(float)
    untried = ~known.measured & np.array([claims_a_prior(job) for job in jobs], dtype=np.bool_)
    for i in untried.nonzero()[0].tolist():
        job = jobs[i]
        # How long a job ran before it was requeued is known from its reports only.
        if job.restarts > 0 or job.executed_s(now_s) >= quantum_s:
            untried[i] = False
            silent_s[job.user] += max(quantum_s, job.executed_s(now_s))
    spent = [job.user_silent_s + silent_s[job.user] >= quantum_s for job in jobs]
    return untried & ~np.array(spent, dtype=np.bool_)


def claims_a_prior(job: Job) -> bool:
    """Whether the job says that it belongs to a sweep: without reports that is nothing but a claim."""
    return job.exploration is not None and job.exploration.sweep is not None


def _first_looks(jobs: list[Job], untried: Bools) -> Bools:
    """Of each user's trainings in untried sweeps the one that is looked at first; shape (E,)."""
    runs: dict[str, int] = {}
    waits: dict[str, int] = {}
    for i in untried.nonzero()[0].tolist():
        job = jobs[i]
        if job.holds_gpus:
            runs.setdefault(job.user, i)
        elif job.eligible and job.array_tasks == 1:
            waits.setdefault(job.user, i)
    looks = np.zeros(len(jobs), dtype=np.bool_)
    looks[list({**waits, **runs}.values())] = True
    return looks
