"""Jobs for which others were preempted, and that did not start. Pure.

Something that is not modelled keeps such a job from its GPUs, so nobody makes room for it again until it has started by
itself. When and for whom a job was requeued stands in its own AdminComment: this outlives the daemon for as long as
the preempted job is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from explsched.preemption_record import PreemptionRecord
from slurm_plugin.client.records import SlurmJob


def served_in_vain(
    jobs: Mapping[int, SlurmJob], served_s: Mapping[int, float], preempted: Iterable[PreemptionRecord]
) -> frozenset[int]:
    """Waiting jobs that have not started since others were last requeued for them.

    `served_s` is what the daemon itself remembers, `preempted` what AdminComments tell.
    """
    latest_s = dict(served_s)
    for record in preempted:
        for one in record.latest:
            if one.beneficiary is not None:
                latest_s[one.beneficiary] = max(one.time_s, latest_s.get(one.beneficiary, one.time_s))
    if not latest_s:
        return frozenset()
    task_start_s: dict[int, float] = {}  # of an array, whose own record keeps waiting while its tasks start
    for job in jobs.values():
        if job.array_job_id in latest_s and job.state != "PENDING" and job.start_s is not None:
            task_start_s[job.array_job_id] = max(job.start_s, task_start_s.get(job.array_job_id, 0.0))
    return frozenset(
        job_id
        for job_id, time_s in latest_s.items()
        if job_id in jobs and _waits_since(jobs[job_id], time_s) and task_start_s.get(job_id, 0.0) < time_s
    )


def _waits_since(job: SlurmJob, time_s: float) -> bool:
    """Whether the job waits and has not run since a moment: Slurm dates a job anew when it is requeued."""
    has_run = job.restarts > 0 and job.submit_s > time_s
    return job.state == "PENDING" and not has_run
