"""Where a job stands in the queue, and whether it may be preempted: what decides beside its own record and reports."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from explsched.preemption_record import PreemptionRecord
from sched_policy.model import Job
from slurm_plugin.client.records import SlurmJob, Topology
from slurm_plugin.config import OrderSection, PreemptionSection
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import SCRONTAB, Requirements, unmodelled
from slurm_plugin.observation.standing import (
    FairShares,
    lane,
    last_wait_s,
    limits_of,
    may_be_planned,
    standing_of,
    waits_for_room,
)

_NOT_SIGNALLED = frozenset({"SUSPENDED", "STOPPED", "CONFIGURING"})
"""States in which no signal reaches the batch script. Slurm also holds a suspended job that is requeued."""


def _is_ended_by_slurm(record: SlurmJob) -> bool:
    """Whether Slurm ends it for another job once its GraceTime is over, and has not suspended it for that instead."""
    return record.preempted and record.state == "RUNNING" and not record.suspended_s


class QueueRules(Struct, frozen=True):
    """What decides on a job's position in the queue beside its own record and reports; see `observe`.

    `owners` are users who have room on nodes of their own (`absences.owners`). `in_vain` are jobs that did not start
    although others were preempted for them; `served_first` is whose limits these use (`limits_of`), where limits are
    enforced: no job is preempted for their like. `only_leases`: there are reservations, and all are leases of the
    daemon. `keeps_nodes`: no job gets another number of nodes. Slurm takes the CPUs that go with them for what an admin
    has allowed, and no longer counts the job for any limit on CPUs.
    """

    now_s: float
    rules: OrderSection
    known: Remembered
    returning: frozenset[int]
    limits: PreemptionSection
    requirements: Requirements
    topology: Topology
    fair_shares: FairShares
    owners: frozenset[str]
    in_vain: frozenset[int]
    served_first: frozenset[tuple[str, str, str]]
    has_nodes: bool
    keeps_nodes: bool
    only_leases: bool

    def standing(self, job: Job, record: SlurmJob, past: PreemptionRecord | None) -> tuple[Job, str]:
        """The job with its scope, priority and permissions; and why it is left to Slurm, "" if it is not."""
        partition, why = job.partition, ""
        if record.state == "PENDING" or job.elastic is not None:
            fitting = self.requirements.node_set(record)
            why = unmodelled(record, self.topology, self.requirements.shards_per_gpu)
            why = why or ("" if fitting.nodes or not self.has_nodes else self.requirements.why_none(record))
            partition = partition if why else fitting.name
        if record.state != "PENDING" and why:
            job, why = replace(job, elastic=None), ""  # it could not be planned on other nodes once it has left these
        if self.keeps_nodes and job.elastic is not None and job.elastic.per_node is not None:
            job = replace(job, elastic=None)
        known, job_id, is_modelled = self.known, record.job_id, not why
        job = replace(job, submit_s=past.submitted_s) if past else job
        standing = standing_of(record, self.rules.scope, known.base_factors.get(job_id, 0))
        planned = may_be_planned(
            record,
            self.now_s,
            allows_preemption=job.allows_preemption,
            only_leases=self.only_leases,
            returns_at_once=job_id in self.returning,
            own_begin_s=known.rests.get(job_id),
        )
        stands = replace(
            job,
            partition=partition,
            scope=standing.scope,
            peers=standing.peers if is_modelled or self.rules.scope == "partition" else f"job {job_id}",
            native_priority=standing.native_priority,
            fair_share=self.fair_shares.of(record),
            lane=lane(record),
            is_overdue=self.last_wait_s(record) + (past.earlier_wait_s if past else 0.0) > self.rules.max_wait_s,
            eligible=job.holds_gpus or (planned and is_modelled and record.throttled_tasks < record.array_tasks),
            # Preemption does not check whether the GPUs it frees are below few enough switches.
            may_displace=is_modelled
            and not record.most_switches
            and waits_for_room(record)
            and job_id not in self.in_vain
            and record.user not in self.owners
            and limits_of(record) not in self.served_first,
            asked_to_leave=job_id in known.asked_to_leave or _is_ended_by_slurm(record),
            user_silent_s=known.unreported_s.get(record.user, 0.0),
            granted_step=known.granted_steps.get(job_id, math.inf),
        )
        return stands, why

    def spared(self, record: SlurmJob, past: PreemptionRecord | None, reported: JobProgress) -> str:
        """Why the job is not preempted although it may allow that; "" if nothing is against it."""
        if record.is_scrontab:
            return SCRONTAB
        if record.het_job_id is not None:
            return "Slurm requeues all components of a heterogeneous job together"
        if record.state in _NOT_SIGNALLED:
            return f"no signal reaches its script while it is {record.state}"
        if record.job_id in self.known.requeue_refused:
            return "Slurm has refused to requeue it, or to take the record of that"
        if record.deadline_s is not None:
            return "Slurm ends it if it waits until a whole run no longer fits before its --deadline"
        if reported.ended and record.state != "PENDING":  # its script may go on for long; who waits runs anew
            return "it has reported its end, and a requeue would run it again"
        if reported.script_dies and record.state != "PENDING":
            return "the signal would kill its script, which waits instead of ending with exec sxrun"
        if past is None or not self.limits.is_spent(past, self.now_s):
            return ""
        in_all = "" if self.limits.max_per_job is None else f", {self.limits.max_per_job} in all"
        return f"at most {self.limits.max_per_job_per_hour} times an hour{in_all}"

    def last_wait_s(self, record: SlurmJob) -> float:
        """As `standing.last_wait_s`, with what is known of our delays."""
        return last_wait_s(record, self.now_s, self.known.rests.get(record.job_id))
