"""What Slurm's main scheduler starts between two passes of the policy. Pure.

slurmctld runs it at most once in `batch_sched_delay` after something has changed, and every `sched_interval`. It takes
the queue in order of priority, and once a job does not fit, all others of the partition wait for backfill.
"""

from __future__ import annotations

from collections.abc import Iterator

from sched_policy.model import JobState
from sched_policy.plan import Plan, Start
from sched_policy.queue_order import queue_order
from sched_policy.snapshot import Snapshot


def head(plan: Plan, snapshot: Snapshot, ordered_s: float) -> Iterator[Start]:
    """Starts of the plan that come before the first waiting job of their partition that does not start.

    Jobs submitted after `ordered_s`, when the policy put the queue in order, stand behind all others in order of
    submission. Jobs that the policy has to change first (their size, their group) wait for it.
    """
    starts = {start.job_id: start for start in plan.starts}
    for job_id in (*(resize.job_id for resize in plan.resizes), *(i for group in plan.groups for i in group.job_ids)):
        starts.pop(job_id, None)
    waiting = {job.job_id: job for job in snapshot.jobs if job.state is JobState.PENDING}
    ranked = [job_id for job_id in queue_order(plan, snapshot) if job_id in waiting]
    known = [job_id for job_id in ranked if waiting[job_id].submit_s <= ordered_s]
    new = sorted(set(ranked) - set(known), key=lambda job_id: (waiting[job_id].submit_s, job_id))
    blocked: set[str] = set()
    for job_id in (*known, *new):
        partition = waiting[job_id].partition
        if partition in blocked:
            continue
        if job_id in starts:
            yield starts[job_id]
        else:
            blocked.add(partition)
